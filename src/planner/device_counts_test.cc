// What is said where no plan is found: numbers of devices that have none, and those that would do.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include "base/fs.h"
#include "planner/planner.h"
#include "planner/test_small.h"

using namespace mw;
using namespace mw::planner;
using namespace mw::planner::test;

TEST_CASE("everything that is wrong with a request is said at once") {
  Request request = small(17);
  request.base.seq_len = 128;
  CHECK(message_of(request) ==
        "--gpus: is 17, but box.toml has 16 devices; use at most 16\n"
        "--seq-len: is 128, but small.json has 64 positions; use at most 64\n"
        "--gpus: no plan has 17 ranks: tp must divide the 4 heads, pp the 4 layers or up to a "
        "quarter more, and dp the global batch of 8; use 16 devices, or another batch");
  request = small(7);
  CHECK(message_of(request) ==
        "--gpus: no plan has 7 ranks: tp must divide the 4 heads, pp the 4 layers or up to a "
        "quarter more, and dp the global batch of 8; use 4 or 8 devices, or another batch");
  request = small(1'000'000'000);  // as quick as 7
  request.base.cluster.devices = 0;
  CHECK(message_of(request) ==
        "--gpus: no plan has 1000000000 ranks: tp must divide the 4 heads, pp the 4 layers or up "
        "to a quarter more, and dp the global batch of 8; use 128 devices, or another batch");
  request = small_nodes(11);  // whole nodes are proposed, others taken
  CHECK(message_of(request) ==
        "--gpus: no plan has 11 ranks: tp must divide the 4 heads, pp the 4 layers or up to a "
        "quarter more, and dp the global batch of 12; use 8 or 12 devices, or another batch");
  CHECK(message_of(small_nodes(6)) == "no error");
  request = small_nodes(8);
  request.base.model.heads = request.base.model.kv_heads = 5;
  Diagnostics none;
  request.only = parse_only({"tp=5"}, none);
  CHECK(message_of(request).ends_with("; use 5 or 10 devices, or another batch or --only"));
  request = small(8);
  request.method = Method::kPtdP;
  request.only = parse_only({"tp=2"}, none);
  CHECK(message_of(request) ==
        "--only: the rules of ptdp choose themselves; use --planner exhaustive");
}

TEST_CASE("of ranks that share a memory as many are proposed as fit") {
  Request request = small(8);
  request.base.cluster.cores = 4;
  request.base.model.layers = 1;
  const auto least = [&](int64_t ranks) {
    Request of = request;
    of.gpus = ranks;
    of.simulated = 1000;  // all
    Bytes bytes = request.base.cluster.device.memory;
    for (const Candidate& here : search(of).plans) bytes = std::min(bytes, here.needed);
    return bytes;
  };
  const Bytes four = least(4);
  REQUIRE(least(8).value > four.value * 11 / 10);
  request.base.cluster.device.memory = Bytes(four.value * 21 / 20);
  const std::string message = message_of(request);
  CAPTURE(message);
  CHECK(message.find("; 4 would do, with ") != std::string::npos);
  request.base.cluster.device.memory = Bytes(1000);
  CHECK(message_of(request).ends_with("; fewer would not do with this batch either"));
}

TEST_CASE("a mixture that does not fit in a box is told how many devices of such would do") {
  Request request = small_mixture(2);
  request.base.cluster.devices = request.base.cluster.links.front().devices = 4;
  request.base.cluster.device.memory = Bytes(700'000);
  CHECK(message_of(request).find(" devices (it has 4), with dp=") != std::string::npos);
}

TEST_CASE("a device without links to others is told so") {
  Request request = small(1, 0.0005);
  request.base.cluster.links.clear();
  request.base.cluster.devices = 1;
  CHECK(message_of(request).ends_with("; it has no [[link]] to other devices"));
}

TEST_CASE("full recomputation holds less than a stack's selective one") {
  Request request = small(1, 0.0018);
  request.base.cluster.stack.selective_op = true;
  const std::string all = message_of(request);
  request.only.recompute = {compile::Recompute::kFull};
  CHECK(all == message_of(request));
  CHECK(all.find("recompute=full") != std::string::npos);
}

TEST_CASE("a model that fits on no number of devices is told so") {
  Request request = small(1);
  request.base.cluster.device.memory = Bytes(1000);
  CHECK(message_of(request).ends_with("; nor on sixty-four times as many with this batch of 8"));
}

TEST_CASE("a model that does not fit is told the least number of devices that would do") {
  const Request request = small(1, 0.0018);
  const std::string message = message_of(request);
  CAPTURE(message);
  CHECK(message.find("small.json: does not fit on 1 device of box: the fullest rank needs at "
                     "least ") == 0);
  CHECK(message.find("; the least that would do is 4 devices, with ") != std::string::npos);
  Request fewer = request;
  fewer.base.cluster.devices = 2;
  CAPTURE(message_of(fewer));
  CHECK(message_of(fewer).find("; the least that would do is 4 devices (it has 2), with ") !=
        std::string::npos);
}

TEST_CASE("the least number of devices is that of plans under any schedule, with divided experts") {
  FileSystem& fs = posix_fs();
  const std::string root = MW_SOURCE_DIR;
  Request request;
  const auto take = [&](const char* model, int64_t seq_len, int64_t batch) {
    const std::string file = fmt::format("{}/models/{}.json", root, model);
    request.base.model = models::parse_config(fs.read_file(file), file);
    request.base.seq_len = seq_len;
    request.base.global_batch = batch;
  };
  request.base.cluster = cluster::load_cluster(fs, "a100-40gb", {root + "/clusters"});
  request.threads = 2;
  request.gpus = 2;
  take("mixtral-8x7b", 32768, 15);  // no microbatch of a whole sequence fits on 32
  const std::string slices = message_of(request);
  CAPTURE(slices);
  CHECK(slices.find(
            "; the least that would do in whole nodes of 8 is 32 devices, with dp=1,tp=1,pp=32,"
            "schedule=seq-1f1b,") != std::string::npos);
  take("qwen3-30b-a3b", 4096, 16);
  const std::string experts = message_of(request);
  CAPTURE(experts);
  CHECK(experts.find("; the least that would do in whole nodes of 8 is 16 devices, with "
                     "dp=8,tp=1,pp=2,ep=8,") != std::string::npos);
  request.gpus = 16;
  request.method = Method::kPtdP;
  CHECK(message_of(request).find(
            ": no plan by the rules of ptdp fits on 16 devices of DGX A100 40 GB, but others do") !=
        std::string::npos);
}

TEST_CASE("the least number of devices is looked for among all numbers that have a plan") {
  // tp 1, 2 or 4, pp 1 or 3, dp 1 or 3: nothing has 2^k devices beyond 4.
  Request request = small(1, 0.0018);
  request.base.model.layers = 3;
  request.base.global_batch = 3;
  request.base.cluster.devices = 0;
  const std::string message = message_of(request);
  CAPTURE(message);
  CHECK(message.find("; the least that would do is 3 devices, with ") != std::string::npos);
  Request more = request;
  more.base.cluster.device.memory = Bytes(700'000);
  CHECK(message_of(more).find("; the least that would do is 12 devices, with ") !=
        std::string::npos);
}

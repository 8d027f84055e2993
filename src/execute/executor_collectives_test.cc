#include "execute/executor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "execute/mesh_groups.h"
#include "execute/test_programs.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using cluster::Mesh;
using ir::AxisGroup;
using ir::CollectiveAttrs;
using ir::Holders;
using ir::OpKind;
using pipeline::PortKind;
using pipeline::Program;

// A collective over mesh axes on x_AB, whose elements are x() of the rank.
struct Case {
  OpKind kind;
  CollectiveAttrs attrs;
  std::vector<int64_t> in, out;
  std::function<float(int, int64_t, int64_t)> expected;  // rank, row, column
};

float x(int64_t rank, int64_t row, int64_t column) {
  return static_cast<float>(rank * 100 + row * 10 + column);
}

const AxisGroup tp{{"tp"}}, dp{{"dp"}}, both{{"dp", "tp"}};
const CollectiveAttrs dim0{tp, ir::Reduction::kSum, 0, 0, 0},
    dim1{tp, ir::Reduction::kSum, 1, 0, 0};

CollectiveAttrs with(CollectiveAttrs attrs, ir::DeviceGroup group) {
  attrs.group = std::move(group);
  return attrs;
}

// On ranks 2d + t: the tp peers of r are r - r % 2 and that + 1, its dp peers r % 2 and that + 2.
void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    CAPTURE(ir::op_name(c.kind));
    CAPTURE(to_string(ir::Attributes(c.attrs)));
    FragmentBuilder fragment("F");
    fragment.output(
        fragment.collective(c.kind, c.attrs, fragment.input("x", f32(c.in)), f32(c.out)), "y");
    const OneFragment one(Mesh({{"dp", 2}, {"tp", 2}}), fragment, f32(c.in), f32(c.out));
    FakeBackend backend;
    Executor executor({&one.program}, backend, {});
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < c.in[0] * c.in[1]; ++i)
        state(executor, r, "x")[i] = x(r, i / c.in[1], i % c.in[1]);
    }
    executor.run(0, no_loads);
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < c.out[0] * c.out[1]; ++i) {
        CHECK(state(executor, r, "y")[i] == c.expected(r, i / c.out[1], i % c.out[1]));
      }
    }
  }
}

TEST_CASE("collectives over mesh axes reduce and scatter any dimension") {
  CollectiveAttrs largest = dim0, smallest = dim0;
  largest.op = ir::Reduction::kMax;
  smallest.op = ir::Reduction::kMin;
  check({
      {OpKind::kAllReduce,
       dim0,
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(r & ~1, i, j) + x(r | 1, i, j); }},
      {OpKind::kAllReduce,
       largest,
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(r | 1, i, j); }},
      {OpKind::kAllReduce,
       smallest,
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(r & ~1, i, j); }},
      {OpKind::kReduceScatter,
       largest,
       {2, 4},
       {1, 4},
       [](int r, int64_t, int64_t j) { return x(r | 1, r & 1, j); }},
      {OpKind::kAllReduce,
       with(dim0, dp),
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(r & 1, i, j) + x(r | 2, i, j); }},
      {OpKind::kAllReduce,
       with(dim0, both),
       {2, 4},
       {2, 4},
       [](int, int64_t i, int64_t j) { return 600 + 4 * x(0, i, j); }},
      {OpKind::kAllReduce,
       with(dim0, AxisGroup{{"cp"}}),
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(r, i, j); }},
      {OpKind::kReduceScatter,
       dim0,
       {2, 4},
       {1, 4},
       [](int r, int64_t, int64_t j) { return x(r & ~1, r & 1, j) + x(r | 1, r & 1, j); }},
      {OpKind::kReduceScatter,
       dim1,
       {2, 4},
       {2, 2},
       [](int r, int64_t i, int64_t j) {
         return x(r & ~1, i, (r & 1) * 2 + j) + x(r | 1, i, (r & 1) * 2 + j);
       }},
  });
}

TEST_CASE("collectives over mesh axes gather and exchange any dimension") {
  CollectiveAttrs rows_to_columns = dim1, columns_to_rows = dim0, same = dim1;
  rows_to_columns.concat_dim = 0;
  columns_to_rows.concat_dim = 1;
  same.concat_dim = 1;
  CollectiveAttrs moved = with(dim0, both);
  moved.from = {"dp"};
  moved.to = {"tp"};
  check({
      {OpKind::kAllGather,
       dim0,
       {2, 4},
       {4, 4},
       [](int r, int64_t i, int64_t j) { return x((r & ~1) + i / 2, i % 2, j); }},
      {OpKind::kAllGather,
       dim1,
       {2, 4},
       {2, 8},
       [](int r, int64_t i, int64_t j) { return x((r & ~1) + j / 4, i, j % 4); }},
      {OpKind::kAllGather,
       with(dim1, AxisGroup{{"tp", "dp"}}),
       {2, 4},
       {2, 16},
       [](int, int64_t i, int64_t j) {
         const int64_t k = j / 4;
         return x(k / 2 + 2 * (k % 2), i, j % 4);
       }},
      {OpKind::kAllToAll,
       rows_to_columns,
       {2, 4},
       {4, 2},
       [](int r, int64_t i, int64_t j) { return x((r & ~1) + i / 2, i % 2, (r & 1) * 2 + j); }},
      {OpKind::kAllToAll,
       columns_to_rows,
       {2, 4},
       {1, 8},
       [](int r, int64_t, int64_t j) { return x((r & ~1) + j / 4, r & 1, j % 4); }},
      {OpKind::kAllToAll,
       columns_to_rows,
       {4, 2},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x((r & ~1) + j / 2, (r & 1) * 2 + i, j % 2); }},
      {OpKind::kAllToAll,
       same,
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x((r & ~1) + j / 2, i, (r & 1) * 2 + j % 2); }},
      // From over dp to over tp: rank 2d + t has shard d and gets shard t.
      {OpKind::kPermute,
       moved,
       {2, 4},
       {2, 4},
       [](int r, int64_t i, int64_t j) { return x(2 * (r & 1) + r / 2, i, j); }},
  });
}

TEST_CASE(
    "a list of tensors is reduced in one operation, in place where results lie over operands") {
  FragmentBuilder fragment("F");
  const ValueId x = fragment.input("x", f32({2}), PortKind::kState);
  const ValueId y = fragment.input("y", f32({3}), PortKind::kState);
  const auto sums = fragment.op(OpKind::kAllReduce,
                                CollectiveAttrs{AxisGroup{{"dp"}}, ir::Reduction::kSum, 0, 0, 0},
                                {x, y}, {f32({2}), f32({3})});
  fragment.alias(sums[0], x);
  fragment.alias(sums[1], y);
  fragment.output(sums[0], "x", PortKind::kState);
  fragment.output(sums[1], "y", PortKind::kState);
  const OneFragment one(Mesh({{"dp", 4}}), fragment, f32({2}), f32({3}));
  FakeBackend backend;
  Executor executor({&one.program}, backend, {});
  for (int r = 0; r < 4; ++r) {
    std::fill_n(state(executor, r, "x"), 2, static_cast<float>(r));
    std::fill_n(state(executor, r, "y"), 3, static_cast<float>(10 * r));
  }
  executor.run(0, no_loads);
  for (int r = 0; r < 4; ++r) {
    CHECK(state(executor, r, "x")[1] == 6);
    CHECK(state(executor, r, "y")[2] == 60);
    CHECK(executor.measured()[0].bytes_sent == Bytes(30));  // 2 * 3/4 of 20 bytes
  }
}

TEST_CASE("what is scattered in place lies in each rank's own part") {
  FragmentBuilder fragment("F");
  const ValueId whole = fragment.input("x", f32({8, 1}), PortKind::kState);
  const ValueId part =
      fragment.collective(OpKind::kReduceScatter, with(dim0, dp), whole, f32({2, 1}));
  fragment.alias(part, whole);
  fragment.output(fragment.scale(part, 2), "y");
  const OneFragment one(Mesh({{"dp", 4}, {"tp", 2}}), fragment, f32({8, 1}), f32({2, 1}));
  FakeBackend backend;
  Executor executor({&one.program}, backend, {});
  for (int r = 0; r < 8; ++r)
    for (int i = 0; i < 8; ++i) state(executor, r, "x")[i] = x(r, i, 0);
  executor.run(0, no_loads);
  for (int r = 0; r < 8; ++r) {
    CAPTURE(r);
    const int own = r / 2;
    for (int i = 0; i < 8; ++i) {
      // The ranks of a group are those of one tp coordinate.
      float sum = 0;
      for (int d = 0; d < 4; ++d) sum += x(2 * d + r % 2, i, 0);
      CHECK(state(executor, r, "x")[i] == (i / 2 == own ? sum : x(r, i, 0)));
      if (i / 2 == own) CHECK(state(executor, r, "y")[i % 2] == 2 * sum);
    }
  }
}

TEST_CASE("a list of tensors is staged side by side where their parts are no runs of memory") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"tp", 2}});
  FragmentBuilder fragment("F");
  const ValueIds whole =
      fragment.op(OpKind::kAllGather, dim1,
                  {fragment.input("a", f32({2, 2})), fragment.input("b", f32({2, 3}))},
                  {f32({2, 4}), f32({2, 6})});
  fragment.output(whole[0], "a2");
  fragment.output(whole[1], "b2");
  const ValueId part = fragment.input("c", f32({1, 2}));
  fragment.output(fragment.collective(OpKind::kAllGather, dim0, part, f32({2, 2})), "c2");
  program.fragments = {fragment.build()};
  program.ranks.resize(1);
  RankBuilder r(program.ranks[0]);
  const BufferId a = r.state("a", f32({2, 2})), b = r.state("b", f32({2, 3})),
                 c = r.state("c", f32({1, 2})), a2 = r.state("a2", f32({2, 4})),
                 b2 = r.state("b2", f32({2, 6})), c2 = r.state("c2", f32({2, 2}));
  r.call(0, {a, b, c, a2, b2, c2});
  Program without = program;
  without.ranks[0].commands.clear();
  FakeBackend backend;
  for (const bool first : {false, true}) {  // the program that needs the scratch
    Executor executor(first ? std::vector<const Program*>{&program, &without}
                            : std::vector<const Program*>{&without, &program},
                      backend, {});
    for (int rank = 0; rank < 2; ++rank) {
      for (int64_t i = 0; i < 4; ++i) state(executor, rank, "a")[i] = x(rank, i / 2, i % 2);
      for (int64_t i = 0; i < 6; ++i) state(executor, rank, "b")[i] = x(rank, 5 + i / 3, i % 3);
    }
    executor.run(first ? 0 : 1, no_loads);
    for (int rank = 0; rank < 2; ++rank) {
      for (int64_t i = 0; i < 8; ++i)
        CHECK(state(executor, rank, "a2")[i] == x(i % 4 / 2, i / 4, i % 2));
      for (int64_t i = 0; i < 12; ++i)
        CHECK(state(executor, rank, "b2")[i] == x(i % 6 / 3, 5 + i / 6, i % 3));
      CHECK(executor.measured()[static_cast<size_t>(rank)].scratch == Bytes(64 + 64));
    }
  }
}

TEST_CASE("a started all-reduce ends before what follows on its stream, and with its call") {
  enum class Behind { kNothing, kCollective, kCopy };
  for (const Behind behind : {Behind::kNothing, Behind::kCollective, Behind::kCopy}) {
    CAPTURE(static_cast<int>(behind));
    FragmentBuilder fragment("B");
    const ValueId in = fragment.input("x", f32({4}));
    const ValueId sum = fragment.collective(OpKind::kAllReduce, dim0, in, f32({4}));
    const ValueId beside = fragment.scale(in, 2);
    ValueId out = sum;
    if (behind == Behind::kCollective) {
      const ValueId twice = fragment.collective(OpKind::kAllReduce, dim0, beside, f32({4}));
      out = fragment.op(OpKind::kAdd, ir::NoAttrs{}, {sum, twice}, {f32({4})})[0];
    } else if (behind == Behind::kCopy) {
      out = fragment.op(OpKind::kCopy, ir::NoAttrs{}, {sum}, {f32({4})})[0];
    }
    fragment.output(out, "y");
    OneFragment one(Mesh({{"tp", 2}}), fragment, f32({4}), f32({4}));
    std::vector<pipeline::Launch>& launches = one.program.fragments[0].launches;
    launches[0] = {StreamId(1), {}, EventId(0)};
    if (behind == Behind::kCollective) {  // on a stream of its own
      launches[2] = {StreamId(2), {}, EventId(1)};
      launches[3].waits = {EventId(0), EventId(1)};
    } else if (behind == Behind::kCopy) {  // which needs no event
      launches[2].stream = StreamId(1);
    }
    FakeBackend backend;
    Executor executor({&one.program}, backend, {});
    for (int run = 0; run < 3; ++run) {
      for (int r = 0; r < 2; ++r) std::fill_n(state(executor, r, "x"), 4, 1.0f + r);
      executor.run(0, no_loads);
      for (int r = 0; r < 2; ++r)
        CHECK(state(executor, r, "y")[3] == (behind == Behind::kCollective ? 9 : 3));
    }
  }
}

TEST_CASE("an all-reduce goes on beside the ops between its start and who waits for it") {
  FragmentBuilder fragment("B");
  const ValueId in = fragment.input("x", f32({4}));
  const ValueId sum =
      fragment.collective(OpKind::kAllReduce, dim0, fragment.scale(in, 2), f32({4}));
  const ValueId beside = fragment.op(OpKind::kCopy, ir::NoAttrs{}, {in}, {f32({4})})[0];
  fragment.output(fragment.op(OpKind::kAdd, ir::NoAttrs{}, {sum, beside}, {f32({4})})[0], "y");
  OneFragment one(Mesh({{"tp", 2}}), fragment, f32({4}), f32({4}));
  std::vector<pipeline::Launch>& launches = one.program.fragments[0].launches;
  launches[1] = {StreamId(1), {}, EventId(0)};
  launches[3].waits = {EventId(0)};
  // Rank 1 comes to the all-reduce after rank 0 is past the op behind it.
  FakeBackend backend;
  std::atomic<bool> is_past = false;
  backend.on(OpKind::kScale, [&](const FakeBackend::Call& call) {
    while (call.rank == RankId(1) && !is_past) std::this_thread::yield();
    for (int64_t i = 0; i < 4; ++i) call.out()[i] = 2 * call.in(0)[i];
  });
  backend.on(OpKind::kCopy, [&](const FakeBackend::Call& call) {
    std::copy_n(call.in(0), 4, call.out());
    if (call.rank == RankId(0)) is_past = true;
  });
  ExecutorOptions options;
  options.stall_seconds = 20;
  for (const bool check_finite : {false, true}) {
    options.check_finite = check_finite;
    is_past = check_finite;  // every result is looked at before the next op
    Executor executor({&one.program}, backend, options);
    for (int run = 0; run < 3; ++run) {
      for (int r = 0; r < 2; ++r) std::fill_n(state(executor, r, "x"), 4, 1.0f + 10 * r);
      executor.run(0, no_loads);
      for (int r = 0; r < 2; ++r) {
        CHECK(state(executor, r, "y")[3] == 2 + 22 + 1 + 10 * r);
        CHECK(executor.measured()[0].instructions == 4);
        CHECK(executor.measured()[0].bytes_sent == Bytes(16));
      }
      is_past = check_finite;
    }
  }
}

TEST_CASE("a started all-reduce takes what its op says: sum, maximum or minimum") {
  for (const auto op : {ir::Reduction::kSum, ir::Reduction::kMax, ir::Reduction::kMin}) {
    CAPTURE(static_cast<int>(op));
    CollectiveAttrs attrs = dim0;
    attrs.op = op;
    FragmentBuilder fragment("B");
    const ValueId in = fragment.input("x", f32({1}));
    const ValueId of_all = fragment.collective(OpKind::kAllReduce, attrs, in, f32({1}));
    const ValueId beside = fragment.scale(in, 10);
    fragment.output(fragment.op(OpKind::kAdd, ir::NoAttrs{}, {of_all, beside}, {f32({1})})[0], "y");
    OneFragment one(Mesh({{"tp", 2}}), fragment, f32({1}), f32({1}));
    one.program.fragments[0].launches[0] = {StreamId(1), {}, EventId(0)};
    one.program.fragments[0].launches[2].waits = {EventId(0)};
    FakeBackend backend;
    Executor executor({&one.program}, backend, {});
    for (int r = 0; r < 2; ++r) state(executor, r, "x")[0] = 2.0f + 3 * r;
    executor.run(0, no_loads);
    const float of_both = op == ir::Reduction::kSum ? 7 : op == ir::Reduction::kMax ? 5 : 2;
    for (int r = 0; r < 2; ++r) CHECK(state(executor, r, "y")[0] == of_both + 10 * (2 + 3 * r));
  }
}

// Pipeline ranks 0 and 2 of three sum a gradient that they hold, over `axes` as well.
Program reduced_by_holders(const Mesh& mesh, const ir::Axes& axes) {
  Program program;
  program.name = "train";
  program.mesh = mesh;
  FragmentBuilder fragment("REDUCE_GRAD");
  const ValueId x = fragment.input("tbl.grad", f32({2}), PortKind::kState);
  const ValueId sum = fragment.collective(
      OpKind::kAllReduce, {Holders{"tbl.grad", axes}, ir::Reduction::kSum, 0, 0, 0}, x, f32({2}));
  fragment.alias(sum, x);
  fragment.output(sum, "tbl.grad", PortKind::kState);
  program.fragments = {fragment.build()};
  program.ranks.resize(3);
  for (const int p : {0, 2}) {
    RankBuilder r(program.ranks[static_cast<size_t>(p)]);
    r.call(0, {r.state("tbl.grad", f32({2}))});
  }
  return program;
}

TEST_CASE(
    "the holders of a state reduce it across pipeline ranks with the same other coordinates") {
  const Program program = reduced_by_holders(Mesh({{"pp", 3}, {"dp", 2}}), {});
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (const int r : {0, 1, 4, 5}) state(executor, r, "tbl.grad")[0] = static_cast<float>(1 << r);
  executor.run(0, no_loads);
  for (const int r : {0, 4}) CHECK(state(executor, r, "tbl.grad")[0] == 17);
  for (const int r : {1, 5}) CHECK(state(executor, r, "tbl.grad")[0] == 34);
  CHECK(!executor.find_state(RankId(2), "tbl.grad").valid());
}

TEST_CASE("the holders of a state reduce it with their data-parallel ranks in one group") {
  const Program program = reduced_by_holders(Mesh({{"pp", 3}, {"dp", 2}, {"tp", 2}}), {"dp"});
  CHECK(members_of(program, RankId(11), ir::Holders{"tbl.grad", {"dp"}}) ==
        std::vector<RankId>{RankId(1), RankId(9), RankId(3), RankId(11)});
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (const int r : {0, 1, 2, 3, 8, 9, 10, 11})
    state(executor, r, "tbl.grad")[0] = static_cast<float>(1 << r);
  executor.run(0, no_loads);
  for (const int r : {0, 2, 8, 10}) CHECK(state(executor, r, "tbl.grad")[0] == 1 + 4 + 256 + 1024);
  for (const int r : {1, 3, 9, 11}) CHECK(state(executor, r, "tbl.grad")[0] == 2 + 8 + 512 + 2048);
}

TEST_CASE(
    "where one pipeline rank could start an all-reduce of holders and the other not, none is") {
  Program program = reduced_by_holders(Mesh({{"pp", 3}}), {});
  // Rank 2's fragment has an op beside the all-reduce, which is launched to go on beside it.
  FragmentBuilder fragment("REDUCE_GRAD 2");
  const ValueId x = fragment.input("tbl.grad", f32({2}), PortKind::kState);
  const ValueId sum = fragment.collective(
      OpKind::kAllReduce, {Holders{"tbl.grad"}, ir::Reduction::kSum, 0, 0, 0}, x, f32({2}));
  fragment.alias(sum, x);
  fragment.scale(fragment.input("y", f32({2}), PortKind::kState), 2);
  fragment.output(sum, "tbl.grad", PortKind::kState);
  program.fragments.push_back(fragment.build());
  program.fragments[1].launches[0] = {StreamId(1), {}, EventId(0)};
  program.ranks[2] = {};
  RankBuilder r(program.ranks[2]);
  const BufferId grad = r.state("tbl.grad", f32({2}));
  r.call(1, {grad, r.state("y", f32({2}))});
  r.finish(program.fragments[1].workspace);
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (const int rank : {0, 2}) state(executor, rank, "tbl.grad")[1] = static_cast<float>(1 + rank);
  executor.run(0, no_loads);
  for (const int rank : {0, 2}) CHECK(state(executor, rank, "tbl.grad")[1] == 4);
}

TEST_CASE("members that run different collectives are told so") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 2}});
  for (const int64_t n : {2, 3}) {
    FragmentBuilder fragment("F");
    const ValueId x = fragment.input("g", f32({n}));
    fragment.output(fragment.collective(OpKind::kAllReduce,
                                        {Holders{"g"}, ir::Reduction::kSum, 0, 0, 0}, x, f32({n})),
                    "y");
    program.fragments.push_back(fragment.build());
  }
  program.ranks.resize(2);
  for (int p = 0; p < 2; ++p) {
    RankBuilder r(program.ranks[static_cast<size_t>(p)]);
    const BufferId g = r.state("g", f32({p + 2}));
    r.call(p, {g, r.state("y", f32({p + 2}))});
  }
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  const std::string error = error_of([&] { executor.run(0, no_loads); });
  CHECK(contains(error, {"command 0 call 'F'", "op 0 all_reduce '%1' of 'g', peer rank",
                         "all_reduce sum f32 [2]"}));
  CHECK(error.find("peer ranks") == std::string::npos);  // not the rank itself
}

TEST_CASE("a group that a member never calls is a failed check, not a hang") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 2}});
  FragmentBuilder fragment("F");
  const ValueId x = fragment.input("x", f32({2}));
  fragment.output(
      fragment.collective(OpKind::kAllReduce, {AxisGroup{{"pp"}}, ir::Reduction::kSum, 0, 0, 0}, x,
                          f32({2})),
      "y");
  program.fragments = {fragment.build()};
  program.ranks.resize(2);
  RankBuilder r(program.ranks[0]);
  const BufferId in = r.state("x", f32({2}));
  r.call(0, {in, r.state("y", f32({2}))});
  FakeBackend backend;
  const std::string error = error_of([&] { Executor({&program}, backend, {}); });
  CHECK(contains(error, {"of the group ranks 0, 1 only rank 0 run collectives in it"}));
}

}  // namespace
}  // namespace mw::execute

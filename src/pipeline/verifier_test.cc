#include "pipeline/verifier.h"

#include <functional>
#include <vector>

#include <doctest/doctest.h>

#include "base/text.h"
#include "pipeline/test_interpreter.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verify.h"
#include "pipeline/volume.h"

using namespace mw;
using namespace mw::pipeline;

static std::string all_findings(const Program& program, const VerifyOptions& options = {}) {
  return join(verify(program, options).findings, "\n");
}

static std::vector<PipelineSpec> specs() {
  std::vector<PipelineSpec> list;
  for (const int64_t dp : {1, 2}) {
    for (const int64_t tp : {1, 2}) {
      for (const bool zero : {false, true}) {
        if (zero && dp == 1) continue;
        list.push_back({.ranks = 1, .microbatches = 3, .dp = dp, .tp = tp, .zero = zero});
        list.push_back({.ranks = 3, .microbatches = 5, .dp = dp, .tp = tp, .zero = zero});
        list.push_back(
            {.ranks = 2, .microbatches = 4, .dp = dp, .tp = tp, .schedule = "gpipe", .zero = zero});
        list.push_back({.ranks = 2,
                        .chunks = 2,
                        .microbatches = 4,
                        .dp = dp,
                        .tp = tp,
                        .schedule = "interleaved-1f1b",
                        .zero = zero});
        list.push_back({.ranks = 2,
                        .microbatches = 3,
                        .dp = dp,
                        .tp = tp,
                        .zero = zero,
                        .slots = 2,
                        .streams = true});
        list.push_back(
            {.ranks = 3, .microbatches = 4, .dp = dp, .tp = tp, .zero = zero, .tied = 1});
        for (const int32_t tied : {1, 2, 3}) {
          list.push_back({.ranks = 2,
                          .chunks = 2,
                          .microbatches = 2,
                          .dp = dp,
                          .tp = tp,
                          .schedule = "interleaved-1f1b",
                          .zero = zero,
                          .streams = tied == 2,
                          .tied = tied});
        }
      }
    }
  }
  return list;
}

TEST_CASE("hand-lowered pipelines of all schedules and meshes are sound") {
  for (const PipelineSpec& spec : specs()) {
    CAPTURE(spec.ranks);
    CAPTURE(spec.dp);
    CAPTURE(spec.tp);
    CAPTURE(spec.zero);
    CHECK(all_findings(make_pipeline(spec)) == "");
  }
}

TEST_CASE("a sound program ends with the same states whatever the order in which its devices run") {
  for (const PipelineSpec& spec : specs()) {
    const Program program = make_pipeline(spec);
    const auto states = Interpreter(program, 1).run();
    CHECK(states == Interpreter(program, 2).run());
    // Stages of one rank accumulate in the order that the pipeline does.
    for (size_t d = 0; d < states.size(); ++d) {
      for (const Buffer& buffer : program
                                      .ranks[static_cast<size_t>(program.mesh.index(
                                          RankId(static_cast<int64_t>(d)), {"pp"}))]
                                      .buffers) {
        if (buffer.name() != "grad_norm") continue;
        float norm;
        std::memcpy(&norm, states[d].data() + buffer.storage.offset, 4);
        CHECK(norm > 0);
        CHECK(std::isfinite(norm));
      }
    }
  }
}

namespace {

const PipelineSpec kSpec{.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2};

Fragment& fragment(Program& program, const std::string& name) {
  for (Fragment& f : program.fragments) {
    if (f.name == name) return f;
  }
  throw CheckFailure("no fragment " + name);
}
BufferId buffer(const Program& program, size_t rank, const std::string& name) {
  const auto& buffers = program.ranks[rank].buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].name() == name) return BufferId(static_cast<int64_t>(b));
  }
  throw CheckFailure("no buffer " + name);
}
size_t find_command(const Program& program, size_t rank, const std::string& text) {
  for (size_t c = 0; c < program.ranks[rank].commands.size(); ++c) {
    const Command& command = program.ranks[rank].commands[c];
    if (to_string(command.kind) + " " + to_string(command.action) == text) return c;
  }
  throw CheckFailure("no command " + text);
}
// Whoever reads the op's result reads its operand instead.
void skip(Fragment& f, ir::OpKind kind) {
  for (const ir::Op& op : f.graph.ops) {
    if (op.kind != kind) continue;
    const ValueId from = op.results[0], to = op.operands[0];
    for (ir::Op& reader : f.graph.ops)
      std::replace(reader.operands.begin(), reader.operands.end(), from, to);
    return;
  }
}
bool finds(const Program& program, const std::string& text, const VerifyOptions& options = {}) {
  const std::string all = all_findings(program, options);
  const bool found = all.find(text) != std::string::npos;
  if (!found) MESSAGE(all);
  return found;
}

}  // namespace

TEST_CASE("a forgotten all-reduce is found where the pending sum is read") {
  Program program = make_pipeline(kSpec);
  skip(fragment(program, "UPDATE rank 0"), ir::OpKind::kAllReduce);
  CHECK(finds(
      program,
      "fragment 'UPDATE rank 0': op 1 (norm_blocks -> %2) needs a gradient as [{}], but it is [{}] "
      "partial{\"dp\"}: a reduction is missing"));
  program = make_pipeline(kSpec);
  skip(fragment(program, "F stage 1"), ir::OpKind::kAllReduce);
  CHECK(finds(program, "fragment 'F stage 1': op 4 (mul -> %8) reads two pending operands"));
}

TEST_CASE("a sum over an axis that is not pending is found") {
  Program program = make_pipeline(kSpec);
  for (ir::Op& op : fragment(program, "F stage 0").graph.ops) {
    if (op.kind == ir::OpKind::kAllReduce)
      std::get<ir::CollectiveAttrs>(op.attrs).group = ir::AxisGroup{{"dp"}};
  }
  CHECK(finds(program,
              "reduces over dp, over which [{\"dp\"}, {}] partial{\"tp\"} is not pending: it would "
              "be counted twice"));
}

TEST_CASE("too few slots are a deadlock that names both ranks") {
  CHECK(all_findings(make_pipeline({.ranks = 2, .microbatches = 3, .slots = 1})) == "");
  // Under gpipe rank 1 keeps all that it received for its backwards.
  const Program program =
      make_pipeline({.ranks = 2, .microbatches = 3, .schedule = "gpipe", .slots = 1});
  CHECK(finds(program,
              "pipeline rank 0, command 4 (acquire message 1 of channel 'y0', 0F1, peer pipeline "
              "rank 1) waits forever "
              "for message 0 to be released (1 slots); pipeline rank 1 is at command 2\n"
              "pipeline rank 1, command 2 (receive message 1 of channel 'y0', 1F1, peer pipeline "
              "rank 0) waits forever "
              "for the message; pipeline rank 0 is at command 4"));
}

TEST_CASE("a value of another microbatch is found") {
  Program program = make_pipeline(kSpec);
  Command& command = program.ranks[0].commands[find_command(program, 0, "call 0B1")];
  std::replace(command.buffers.begin(), command.buffers.end(), buffer(program, 0, "h0#1"),
               buffer(program, 0, "h0#2"));
  CHECK(finds(program, "(call 'B stage 0', 0B1) "));
}

TEST_CASE("a microbatch that is missing or twice in a gradient is found at the update") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 3});
  auto& commands = program.ranks[0].commands;
  const size_t b1 = find_command(program, 0, "call 0B1");
  commands.insert(commands.begin() + static_cast<int64_t>(b1), Command(commands[b1]));
  CHECK(all_findings(program) ==
        "pipeline rank 0, command 12 (call 'UPDATE rank 0', UPDATE) op 3 (adamw) takes 'grad/0', "
        "whose elements 0 to 128 hold "
        "microbatch 1 2 times");
  commands.erase(commands.begin() + static_cast<int64_t>(b1),
                 commands.begin() + static_cast<int64_t>(b1) + 2);
  CHECK(all_findings(program) ==
        "pipeline rank 0, command 10 (call 'UPDATE rank 0', UPDATE) op 3 (adamw) takes 'grad/0', "
        "whose elements 0 to 128 hold "
        "microbatch 1 0 times");
}

TEST_CASE("buffers that share bytes while both are alive are found") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 2, .schedule = "gpipe"});
  auto& buffers = program.ranks[0].buffers;
  buffers[buffer(program, 0, "h0#1").index()].storage.offset =
      buffers[buffer(program, 0, "h0#0").index()].storage.offset;
  CHECK(all_findings(program) ==
        "pipeline rank 0, command 4 (call 'B stage 0', 0B0) reads 'h0#0' for port 'h0', but its "
        "bytes hold 'h0#1'");
}

TEST_CASE("a weight that was updated in parts must be gathered before it is read") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 1, .dp = 2, .zero = true});
  auto& commands = program.ranks[0].commands;
  commands.push_back(commands[find_command(program, 0, "call 0F0")]);
  const std::string sound = all_findings(program);
  CHECK(sound.find("a gather is missing") == std::string::npos);
  // The gathered weights go to another place.
  Buffer elsewhere = program.ranks[0].buffers[buffer(program, 0, "weight/0").index()];
  elsewhere.storage = Storage();
  elsewhere.storage.offset = program.ranks[0].arena.value;
  program.ranks[0].buffers.push_back(elsewhere);
  auto& arguments = commands[commands.size() - 2].buffers;
  const BufferId weight = buffer(program, 0, "weight/0");
  std::replace(arguments.begin(), arguments.end(), weight,
               BufferId(static_cast<int64_t>(program.ranks[0].buffers.size()) - 1));
  CHECK(finds(program,
              "reads 'w1.0' for port 'w1.0', but its bytes hold 'weight/0#own', which is one "
              "device's part of it: a "
              "gather is missing"));
}

TEST_CASE("the figures of a pipeline are those of the closed forms") {
  const PipelineSpec spec{.ranks = 2, .microbatches = 5, .dp = 2, .tp = 2};
  const Program program = make_pipeline(spec);
  const Verification verification = verify(program);
  REQUIRE(verification.sound());
  const int64_t boundary = PipelineMaker::kB * PipelineMaker::kD * 4;  // bytes of y on a device
  for (const RankFigures& rank : verification.ranks) {
    CHECK(rank.bytes_by_group.at("pp").value == 5 * boundary);
    // Rank 0 sums y forward, rank 1 y forward and dx backward, over two devices each: 2 (n - 1) / n
    // of the bytes.
    const bool is_first = &rank == &verification.ranks[0];
    CHECK(rank.bytes_by_group.at("tp").value == (is_first ? 5 : 10) * boundary);
    CHECK(rank.collectives_by_group.at("tp") == (is_first ? 5 : 10));
    CHECK(rank.bytes_by_group.at("dp").value == 2 * 256 * 4 + (is_first ? 0 : 4));
    CHECK(rank.bytes_by_group.at("pp,tp").value == (2 * 3 * 4 * 8 + 3) / 4);
    Bytes sum;
    for (const auto& [group, bytes] : rank.bytes_by_group) sum += bytes;
    CHECK(rank.bytes_sent == sum);
    CHECK(rank.arena_peak == program.ranks[is_first ? 0 : 1].arena);
  }
  // Rank 0 of 1F1B keeps two microbatches of h and x, whatever their number.
  const auto activations = [&](int32_t microbatches) {
    PipelineSpec more = spec;
    more.microbatches = microbatches;
    return verify(make_pipeline(more)).ranks[0].peak_by_category.at(Category::kActivations);
  };
  CHECK(activations(3) == activations(12));
  CHECK(activations(3).value == 2 * PipelineMaker::kB * PipelineMaker::kF / 2 * 4);
}

TEST_CASE("a collective's volume is the ring's, rounded up once for the whole list") {
  using ir::OpKind;
  CHECK(collective_volume(OpKind::kAllReduce, Bytes(1000), 4).value == 1500);
  CHECK(collective_volume(OpKind::kAllReduce, Bytes(10), 3).value == 14);
  CHECK(collective_volume(OpKind::kAllGather, Bytes(10), 3).value == 7);
  CHECK(collective_volume(OpKind::kReduceScatter, Bytes(int64_t{1} << 60), 8).value ==
        (int64_t{1} << 60) / 8 * 7);
  CHECK(collective_volume(OpKind::kAllToAll, Bytes(12), 1).value == 0);
  CHECK_THROWS_AS(collective_volume(OpKind::kDot, Bytes(12), 2), CheckFailure);
}

TEST_CASE("buffers and workspace must lie in the arena") {
  const Program sound = make_pipeline({.ranks = 1, .microbatches = 2});
  Program program = sound;
  program.ranks[0].arena = Bytes(sound.ranks[0].arena.value - 1);
  CHECK(finds(program, fmt::format("of {}", program.ranks[0].arena.value)));
  program = sound;
  program.fragments[0].workspace = Bytes(-64);
  CHECK(
      finds(program, "fragment '" + program.fragments[0].name + "' has a workspace of -64 bytes"));
}

TEST_CASE("a program above the memory limit says what takes the memory") {
  const Program program = make_pipeline({.ranks = 1, .microbatches = 2});
  CHECK(finds(program, "pipeline rank 0 needs ", {.memory_limit = Bytes(1000)}));
  CHECK(all_findings(program, {.memory_limit = Bytes(1 << 20)}) == "");
}

TEST_CASE("structure that nothing else can be asked of is reported alone") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 2});
  program.ranks[0].commands[2].fragment = FragmentId(17);
  program.ranks[0].buffers[1].storage.parent = BufferId(5);
  CHECK(all_findings(program) ==
        "pipeline rank 0, buffer 1 'w1.0' is a view of buffer 5, which is not before it\n"
        "pipeline rank 0, command 2 (call, 0B0) calls fragment 17 of 3");
}

TEST_CASE("a program prints what it does") {
  const std::string text =
      to_text(make_pipeline({.ranks = 2, .microbatches = 2, .dp = 2, .zero = true}));
  for (const char* line :
       {"program \"train\" on {pp:2, dp:2, tp:1}, 2 microbatches\n", "  in boundary \"y0\" = y0\n",
        "channel 0 \"y0\" from 0 to 1: 2 x f32[4,8]\n",
        "  buffer 3 weights \"weight/0#own\": f32[256], of f32[512] as [{\"dp\"}], in buffer 0 at "
        "0 + 1024 x "
        "index over {dp}\n",
        "  command 3 0F0: publish message 0 of channel 0, microbatch 0, pair -1, buffers"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
}

TEST_CASE("own parts lie side by side and fill what they are of") {
  struct Edit {
    const char* name;
    std::function<void(Buffer&)> edit;
    const char* finding;
  };
  const std::vector<Edit> edits = {
      {"parts over each other", [](Buffer& b) { b.storage.part.edit().stride -= 64; },
       "has 2 parts of 1024 bytes, 960 apart, that do not fill the 2048 bytes of 'weight/0'"},
      {"parts behind the first bytes", [](Buffer& b) { b.storage.offset = 64; },
       "has 2 parts of 1024 bytes, 1024 apart, that do not fill the 2048 bytes of 'weight/0'"},
      {"one part", [](Buffer& b) { b.storage.part.edit().axes = {"tp"}; },
       "has 1 parts of 1024 bytes, 1024 apart, that do not fill the 2048 bytes of 'weight/0'"},
      {"smaller parts",
       [](Buffer& b) {
         b.layout.edit().type = ir::make_type(DType::kF32, {64});
         b.layout.edit().global_type = ir::make_type(DType::kF32, {128});
       },
       "has 2 parts of 256 bytes, 1024 apart, that do not fill the 2048 bytes of 'weight/0'"},
      {"a part that is held as the whole",
       [](Buffer& b) { b.layout.edit().sharding = sharding::parse_sharding("[{}]"); },
       R"(is a part of 'weight/0', must be held as [{"dp"}], but is as [{}])"},
  };
  for (const Edit& edit : edits) {
    CAPTURE(edit.name);
    Program program = make_pipeline({.ranks = 1, .microbatches = 2, .dp = 2, .zero = true});
    REQUIRE(verify(program).sound());
    for (Buffer& buffer : program.ranks[0].buffers)
      if (!buffer.storage.part->axes.empty()) edit.edit(buffer);
    const std::string all = join(verify(program).findings, "\n");
    CAPTURE(all);
    CHECK(all.find(edit.finding) != std::string::npos);
  }
}

TEST_CASE("a rank may take all of its memory, and not a byte more") {
  const Program program = make_pipeline({.ranks = 1, .microbatches = 2});
  const Bytes needs = memory_of(program, verify(program).ranks[0], 0);
  CHECK(verify(program, {.memory_limit = needs}).sound());
  CHECK_FALSE(verify(program, {.memory_limit = needs - Bytes(1)}).sound());
}

TEST_CASE("a rank's memory has all slots of what it receives, and none of what it sends") {
  Program program;
  program.channels = {{"y0", 0, 1, ir::make_type(DType::kF32, {4, 8}), 3},
                      {"dy0", 1, 0, ir::make_type(DType::kF32, {2}), 2}};
  RankFigures figures;
  figures.state_bytes = Bytes(1000);
  figures.arena_peak = Bytes(10000);
  CHECK(memory_of(program, figures, 0).value == 11000 + 2 * 8);
  CHECK(memory_of(program, figures, 1).value == 11000 + 3 * 128);
}

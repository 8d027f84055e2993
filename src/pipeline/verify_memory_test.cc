// The check of the arenas on calls whose ports are used as a table says.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/text.h"
#include "pipeline/verify.h"

using namespace mw;
using namespace mw::pipeline;

namespace {

PortUse reading(int32_t first, int32_t last) {
  PortUse use;
  use.first_read = first;
  use.last_read = last;
  use.touched = true;
  return use;
}
PortUse writing(int32_t first, int32_t last, PortUse use = {}) {
  use.first_write = first;
  use.last_write = last;
  use.touched = true;
  return use;
}

// One rank on the first device of {dp: 2} with 256 bytes of states and 512 of step arena.
struct OneRank {
  Program program;
  std::vector<FragmentInfo> info;

  OneRank() {
    program.mesh = cluster::Mesh({{"dp", 2}});
    rank().state_arena = Bytes(256);
    rank().arena = Bytes(512);
  }
  RankProgram& rank() {
    if (program.ranks.empty()) program.ranks.emplace_back();
    return program.ranks[0];
  }
  BufferId buffer(Storage::Kind kind, int64_t offset, int64_t bytes) {
    Buffer b;
    b.layout.edit().type = ir::make_type(DType::kU8, {bytes});
    b.storage.kind = kind;
    b.storage.offset = offset;
    b.value = "b" + std::to_string(rank().buffers.size());
    rank().buffers.push_back(b);
    return BufferId(static_cast<int64_t>(rank().buffers.size()) - 1);
  }
  BufferId arena(int64_t offset, int64_t bytes) {
    return buffer(Storage::Kind::kArena, offset, bytes);
  }
  BufferId view(BufferId parent, int64_t offset, int64_t bytes, sharding::Axes axes = {},
                int64_t stride = 0) {
    const BufferId id = buffer(Storage::Kind::kView, offset, bytes);
    Storage& storage = rank().buffers.back().storage;
    storage.parent = parent;
    storage.part = {std::move(axes), stride};
    return id;
  }
  struct Used {
    BufferId buffer;
    PortUse use;
    bool input = true;
  };
  // A call of eight ops of a kind; inputs first.
  Command& call(const std::vector<Used>& ports, ir::OpKind kind = ir::OpKind::kAdd) {
    Fragment& fragment = program.fragments.emplace_back();
    fragment.name = "F";
    fragment.graph.ops.resize(8);
    for (ir::Op& op : fragment.graph.ops) op.kind = kind;
    FragmentInfo& of = info.emplace_back();
    Command& command = rank().commands.emplace_back();
    command.fragment = FragmentId(static_cast<int64_t>(program.fragments.size()) - 1);
    for (const Used& port : ports) {
      const std::string number = std::to_string(of.ports.size());
      of.ports.emplace_back().name = "p" + number;
      of.uses.push_back(port.use);
      of.update_of.push_back(-1);
      of.inputs += port.input;
      command.buffers.push_back(port.buffer);
    }
    return command;
  }
  void write(BufferId id) { call({{id, writing(0, 0), false}}); }
  void read(BufferId id) { call({{id, reading(0, 0)}}); }
  void work(int64_t bytes, int64_t at, const std::vector<Used>& ports = {}) {
    call(ports).workspace_offset = at;
    program.fragments.back().workspace = Bytes(bytes);
  }

  std::string findings() const {
    const VerifyOptions options;
    const Checked checked{program, options, info, {}};
    Diagnostics out;
    check_memory(checked, out);
    return join(out.findings(), "\n");
  }
};

struct Row {
  const char* name;
  std::function<void(OneRank&)> make;
  const char* finding;  // "": none
};

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    OneRank rank;
    row.make(rank);
    const std::string text = rank.findings();
    CAPTURE(text);
    if (*row.finding == 0) {
      CHECK(text.empty());
    } else {
      CHECK(text.find(row.finding) != std::string::npos);
    }
  }
}

TEST_CASE("where buffers and workspaces lie, to the byte") {
  using Kind = Storage::Kind;
  check({
      {"states side by side",
       [](OneRank& r) { r.buffer(Kind::kState, 0, 64), r.buffer(Kind::kState, 64, 192); }, ""},
      {"states that share the end of one",
       [](OneRank& r) { r.buffer(Kind::kState, 0, 65), r.buffer(Kind::kState, 64, 64); },
       "'b1' overlaps state 'b0'"},
      {"a state beyond its arena", [](OneRank& r) { r.buffer(Kind::kState, 192, 65); },
       "ends at byte 257 of 256 of the states"},
      {"a step buffer beyond its arena", [](OneRank& r) { r.write(r.arena(448, 65)); },
       "ends at byte 513 of 512 of the step arena"},
      {"a step buffer that nobody uses", [](OneRank& r) { r.arena(448, 65); }, ""},
      {"a buffer at no multiple", [](OneRank& r) { r.write(r.arena(32, 8)); },
       "begins at byte 32, not a multiple of 64"},
      {"a workspace up to the end", [](OneRank& r) { r.work(64, 448); }, ""},
      {"a workspace beyond it", [](OneRank& r) { r.work(65, 448); },
       "a workspace of 65 bytes at byte 448 does not lie in the arena of 512"},
      {"a workspace before the arena", [](OneRank& r) { r.work(64, -64); },
       "a workspace of 64 bytes at byte -64 does not lie"},
      {"a workspace at no multiple", [](OneRank& r) { r.work(64, 32); }, "at byte 32 does not lie"},
      {"parts that fill what they are of",
       [](OneRank& r) { r.view(r.arena(0, 128), 0, 64, {"dp"}, 64); }, ""},
      {"a last part beyond its end", [](OneRank& r) { r.view(r.arena(0, 127), 0, 64, {"dp"}, 64); },
       "ends at byte 128 of 'b0', which has 127"},
  });
}

TEST_CASE("what a call works over is gone, and is none of its ports") {
  check({
      {"between two ports",
       [](OneRank& r) {
         r.work(64, 64,
                {{r.arena(0, 64), writing(0, 0), false}, {r.arena(128, 64), writing(0, 0), false}});
       },
       ""},
      {"over the end of a port",
       [](OneRank& r) { r.work(64, 64, {{r.arena(0, 65), writing(0, 0), false}}); },
       "works over 'b0'"},
      {"over the begin of a port",
       [](OneRank& r) { r.work(65, 64, {{r.arena(128, 64), writing(0, 0), false}}); },
       "works over 'b0'"},
      {"over a port that it does not touch",
       [](OneRank& r) { r.work(64, 0, {{r.arena(0, 64), PortUse(), false}}); }, ""},
      {"beside a state, which lies elsewhere",
       [](OneRank& r) { r.work(64, 0, {{r.buffer(Storage::Kind::kState, 0, 64), reading(0, 0)}}); },
       ""},
      {"over the last byte of what is read later",
       [](OneRank& r) {
         const BufferId b = r.arena(0, 65);
         r.write(b), r.work(64, 64), r.read(b);
       },
       "reads 'b0' for port 'p0', but a call worked there"},
      {"behind what is read later",
       [](OneRank& r) {
         const BufferId b = r.arena(0, 64);
         r.write(b), r.work(64, 64), r.read(b);
       },
       ""},
  });
}

TEST_CASE("what is read is what was written there last, or was part of it") {
  check({
      {"never written", [](OneRank& r) { r.read(r.arena(0, 64)); }, "but nothing was written"},
      {"another buffer's",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128), b = r.arena(64, 64);
         r.write(a), r.write(b), r.read(a);
       },
       "reads 'b0' for port 'p0', but its bytes hold 'b1'"},
      {"a whole that was written by its pieces",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128);
         r.write(r.view(a, 0, 64)), r.write(r.view(a, 64, 64)), r.read(a);
       },
       ""},
      {"a part of what was written whole",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128);
         r.write(a), r.read(r.view(a, 0, 64, {"dp"}, 64));
       },
       ""},
      {"a whole of which a device wrote its part",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128);
         r.write(a), r.write(r.view(a, 0, 64, {"dp"}, 64)), r.read(a);
       },
       "which is one device's part of it"},
      {"a whole of which a device wrote a piece of its part",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128), part = r.view(a, 0, 64, {"dp"}, 64);
         r.write(a), r.write(r.view(part, 0, 32)), r.read(a);
       },
       "which is one device's part of it"},
      {"a piece of a part that was written",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 128), part = r.view(a, 0, 64, {"dp"}, 64);
         r.write(part), r.read(r.view(part, 0, 32));
       },
       ""},
      {"an input that its reader wrote over",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 64);
         r.write(a), r.call({{a, writing(1, 1, reading(0, 0))}}), r.read(a);
       },
       "but a call that consumed it wrote over it"},
      {"the later of two outputs in one place",
       [](OneRank& r) {
         const BufferId a = r.arena(0, 64), b = r.arena(0, 64);
         r.call({{a, writing(2, 3), false}, {b, writing(0, 1), false}}), r.read(a);
       },
       ""},
  });
}

TEST_CASE("ports that share bytes take turns") {
  // `a` is written in ops 2 to 4; how `b` is used, and in a call of which ops.
  const auto share = [](PortUse b, ir::OpKind kind = ir::OpKind::kAdd, int64_t b_at = 64) {
    return [=](OneRank& r) {
      const BufferId first = r.arena(0, 128), second = r.arena(b_at, 64);
      r.write(second);
      r.call({{second, b}, {first, writing(2, 4), false}}, kind);
    };
  };
  const char* const used = "over 'b1', which port 'p0' still uses";
  const ir::OpKind gather = ir::OpKind::kAllGather, scatter = ir::OpKind::kReduceScatter;
  check({
      {"read before", share(reading(0, 1)), ""},
      {"read by the op that writes", share(reading(0, 2)), used},
      {"read by a gather that writes over its own part", share(reading(0, 2), gather), ""},
      {"read by a scatter", share(reading(0, 2), scatter), ""},
      {"read behind the gather", share(reading(0, 3), gather), used},
      {"side by side", share(reading(0, 7), ir::OpKind::kAdd, 128), ""},
      {"overlapping in the last bytes", share(reading(0, 7)), used},
      {"written behind", share(writing(5, 6)), ""},
      {"written between", share(writing(3, 6)), used},
      {"written behind and read there", share(writing(5, 6, reading(6, 6))), ""},
      {"read behind before it is written", share(writing(6, 6, reading(5, 6))), used},
      {"written by the last op, which is no gather", share(writing(4, 6)), used},
      {"gathered by it", share(writing(4, 6), gather), ""},
      {"written where what is read has begun before",
       [](OneRank& r) {
         const BufferId early = r.arena(0, 128), late = r.arena(64, 64);
         r.write(early);
         r.call({{early, reading(0, 7)}, {late, writing(2, 4), false}});
       },
       "over 'b0', which port 'p0' still uses"},
  });
}

}  // namespace

// Small programs that this room's tests run, and what they ask of them.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "execute/executor.h"
#include "execute/test_support.h"

namespace mw::execute {

inline const Loader no_loads = [](const std::string&, int32_t, RankId, const ir::TensorType&,
                                  void*) {};

// Whether `text` has the parts in this order.
inline bool contains(const std::string& text, const std::vector<std::string>& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    at = text.find(part, at);
    if (at == std::string::npos) {
      MESSAGE("missing '" << part << "' in: " << text);
      return false;
    }
    at += part.size();
  }
  return true;
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

inline float* state(Executor& executor, int rank, const std::string& name) {
  return static_cast<float*>(
      executor.state_data(RankId(rank), executor.find_state(RankId(rank), name)));
}

// Two pipeline ranks, three microbatches of 4 numbers. Rank 0 doubles what it loads twice (a
// workspace value between) and sends it; rank 1 adds what it receives to the state "sum", in place.
inline pipeline::Program two_stages(int slots = 2) {
  pipeline::Program program;
  program.name = "train";
  program.mesh = cluster::Mesh({{"pp", 2}});
  program.microbatches = 3;
  const ir::TensorType type = f32({4});
  FragmentBuilder f0("F stage 0");
  f0.output(f0.scale(f0.scale(f0.input("x", type, pipeline::PortKind::kData), 2), 2), "y");
  FragmentBuilder f1("F stage 1");
  const ValueId sum = f1.input("sum", type, pipeline::PortKind::kState);
  const ValueId y = f1.input("y", type);
  const ValueId updated = f1.op(ir::OpKind::kAccumulate, ir::NoAttrs{}, {sum, y}, {type})[0];
  f1.alias(updated, sum);
  f1.output(updated, "sum", pipeline::PortKind::kState);
  program.fragments = {f0.build(), f1.build()};
  program.channels = {{"y 0->1", 0, 1, type, slots}};
  program.ranks.resize(2);
  RankBuilder r0(program.ranks[0]), r1(program.ranks[1]);
  r1.stage = 1;
  const BufferId x = r0.arena("x", type);
  const BufferId total = r1.state("sum", type);
  for (int m = 0; m < 3; ++m) {
    const BufferId out = r0.slot("y", type, 0, m % slots);
    const BufferId in = r1.slot("y", type, 0, m % slots);
    r0.load("x", x, m);
    r0.message(pipeline::Command::Kind::kAcquire, 0, m);
    r0.call(0, {x, out}, m);
    r0.message(pipeline::Command::Kind::kPublish, 0, m);
    r1.message(pipeline::Command::Kind::kReceive, 0, m);
    r1.call(1, {total, in}, m);
    r1.message(pipeline::Command::Kind::kRelease, 0, m);
  }
  r0.finish(program.fragments[0].workspace);
  r1.finish(program.fragments[1].workspace);
  return program;
}

inline const Loader load_ramp = [](const std::string&, int32_t microbatch, RankId,
                                   const ir::TensorType& type, void* data) {
  for (int64_t i = 0; i < type.elements(); ++i) {
    static_cast<float*>(data)[i] = static_cast<float>(100 * microbatch + i);
  }
};

// Every rank runs one fragment on state "x" -> state "y".
struct OneFragment {
  pipeline::Program program;
  OneFragment(cluster::Mesh mesh, FragmentBuilder& fragment, const ir::TensorType& x,
              const ir::TensorType& y) {
    program.name = "train";
    program.mesh = std::move(mesh);
    program.fragments = {fragment.build()};
    program.ranks.resize(static_cast<size_t>(program.mesh.axis_size("pp")));
    for (pipeline::RankProgram& rank : program.ranks) {
      RankBuilder r(rank);
      r.stage = 0;
      const BufferId in = r.state("x", x);
      const BufferId out = r.state("y", y);
      r.call(0, {in, out});
      r.finish(program.fragments[0].workspace);
    }
  }
};

}  // namespace mw::execute

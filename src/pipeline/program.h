// Program: what every rank does in one call (init, one training step, one evaluation step), in two
// levels: a table of fragments (local graphs with explicit collectives, shared by every microbatch
// and every identical chunk) and, per pipeline rank, a list of commands that call fragments on
// buffers and move boundary values. All ranks that share a pipeline coordinate run the same
// RankProgram; groups, peers and shard offsets are resolved from the mesh coordinates. Immutable
// once made; verify, simulate and execute take it by const reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "pipeline/schedule.h"
#include "pipeline/shared.h"
#include "sharding/sharding.h"

namespace mw::pipeline {

// How a value enters or leaves a fragment.
enum class PortKind : uint8_t {
  kBoundary,  // from or to another stage
  kSaved,     // F -> I -> W of one unit
  kCarried,   // unit to another of the same stage and microbatch (sequence slices)
  kState,     // outlives a microbatch; outputs of this kind are updated in place
  kData,      // the caller fills it: tokens, positions, learning rate
};

struct Port {
  PortKind kind = PortKind::kData;
  ValueId value;     // in Fragment::graph
  std::string name;  // the global value's or state's name
  bool consumed =
      false;  // input: nothing reads its buffer after this call, so the call may write over it
};

// When an op of a fragment starts: after the ops before it on its stream and after the events it
// waits for. A call ends when all its ops have ended.
struct Launch {
  StreamId stream{0};          // 0 compute, 1.. one for each communication axis
  std::vector<EventId> waits;  // of the same fragment
  EventId records;             // invalid: none
};

struct Fragment {
  std::string name;  // "F stage 0"
  ActionKind kind = ActionKind::kF;
  int32_t samples = 1;  // microbatches a call
  int32_t slice = -1;
  ir::Graph graph;                            // local shapes
  std::vector<sharding::Sharding> shardings;  // [value] on the stage's mesh
  std::vector<ir::TensorType> global_types;   // [value]
  std::vector<Port> inputs;                   // graph.inputs, in order
  std::vector<Port> outputs;     // graph.outputs, in order; then graph.updates (kState)
  std::vector<Launch> launches;  // [op]
  // Static plan of the values inside: byte offset in the call's workspace; kNotPlanned: a port's
  // buffer or an alias.
  static constexpr int64_t kNotPlanned = -1;
  std::vector<int64_t> workspace_offset;  // [value]
  // The value whose memory this value shares (in-place results, views), invalid: its own.
  // Transitive roots.
  ValueIds alias_of;                  // [value]
  std::vector<int64_t> alias_offset;  // [value] bytes into the root
  Bytes workspace;
};

enum class Category : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kMetrics,
  kActivations,
  kBoundary,
  kData,
  kWorkspace
};
std::string to_string(Category category);

// A part of a buffer that every device has its own of: the one at its index along `axes`, `stride`
// bytes apart. ZeRO: a rank's own part of a flat group.
struct OwnPart {
  sharding::Axes axes;
  int64_t stride = 0;
  friend bool operator==(const OwnPart&, const OwnPart&) = default;
};

// Where the bytes of a buffer are.
struct Storage {
  enum class Kind : uint8_t {
    kState,  // at `offset` of the rank's state arena: lives across calls and programs
    kArena,  // at `offset` of the rank's step arena
    kSlot,   // slot `slot` of `channel`'s ring
    kView,   // inside another buffer
  };
  int64_t offset = 0;    // bytes
  Shared<OwnPart> part;  // kView: which of `parent`, behind `offset`; no axes: all of it
  int32_t channel = -1;
  int32_t slot = 0;
  BufferId parent;  // kView
  Kind kind = Kind::kArena;
};

// A value's types and how it lies on the ranks.
struct Layout {
  ir::TensorType type;  // local
  ir::TensorType global_type;
  sharding::Sharding sharding;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// There are as many as a step has values and microbatches: they hold what is their own alone.
struct Buffer {
  Shared<Layout> layout;
  Storage storage;
  Name value;               // global value's or state's name
  int32_t microbatch = -1;  // -1: one for all
  Category category = Category::kActivations;

  std::string name() const;                                    // with the microbatch: "h.3/out#5"
  const ir::TensorType& type() const { return layout->type; }  // local
  const ir::TensorType& global_type() const { return layout->global_type; }
  const sharding::Sharding& sharding() const { return layout->sharding; }
  Bytes bytes() const { return type().bytes(); }
};

// A ring of slots owned by a pair of pipeline ranks, one value from one stage to another; every
// mesh coordinate of the stage has its own ring. Sequence k uses slot k mod slots.
struct Channel {
  std::string name;          // "h.3/out 0->1"
  int32_t from = 0, to = 0;  // pipeline ranks
  ir::TensorType type;       // local
  int32_t slots = 1;
};

struct Command {
  enum class Kind : uint8_t {
    kLoad,     // the caller fills `buffers[0]` with data input `name` of `microbatch` (-1: once a
               // step)
    kCall,     // run `fragment` on `buffers`: its inputs, then its outputs that are not state
    kAcquire,  // producer: wait until the slot of `sequence` is free
    kPublish,  // producer: the slot of `sequence` is written; the transfer starts
    kReceive,  // consumer: wait until the slot of `sequence` is there; it is read in place
    kRelease,  // consumer: the slot of `sequence` goes back
  } kind = Kind::kCall;
  Action action;        // which schedule action this is part of
  FragmentId fragment;  // kCall
  int32_t names =
      -1;  // kCall: Program::names, what ports and values are called here; -1: as in the fragment
  int32_t microbatch = -1;
  int32_t channel = -1;
  int32_t sequence = 0;
  int64_t workspace_offset = 0;  // kCall: in the step arena, of the values inside the fragment
  Name name;                     // kLoad
  BufferIds buffers;
};
std::string to_string(Command::Kind kind);
// "F stage 3", of a slice "F stage 3/1", on a replica "F stage 3^1"; of a whole rank's the
// fragment's name, which several stages may have together. REQUIRES: it calls the fragment.
std::string call_name(const Command& command, const Fragment& fragment);

struct RankProgram {
  std::vector<Buffer>
      buffers;  // the first `states` are the same in every program of a compiled plan
  int32_t states = 0;
  std::vector<Command> commands;
  // Post-validation. The first `repeatable` commands write no state but what they report, and one
  // of those states is `amended`: where it is not 0 behind them on one rank, it is on all, and all
  // go back to their first command when the step before has been amended.
  int32_t repeatable = 0;
  BufferId amended;  // f32 scalar
  Bytes state_arena;
  Bytes arena;  // step buffers, and behind those that are alive the workspace of a fragment's call
};

struct Program {
  std::string name;    // "init", "train", "eval"
  cluster::Mesh mesh;  // all ranks; the axis "pp" (if any) selects the RankProgram
  int32_t microbatches = 1;
  std::vector<Fragment> fragments;
  // A fragment that several stages call has no stage's names: here they are, one list a (stage,
  // fragment), of the ports in the order of Command::buffers, then of all values of its graph.
  std::vector<std::vector<std::string>> names;
  std::vector<Channel> channels;
  std::vector<RankProgram> ranks;  // [pipeline coordinate]
};

// Every field; two programs with the same text do the same.
std::string to_text(const Program& program);
// xxh3 of to_text, as hex: the trace of a run names it.
std::string program_hash(const Program& program);

}  // namespace mw::pipeline

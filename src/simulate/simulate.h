// Discrete-event simulation of a program: what every pipeline rank would do when, on a cluster.
//
// The ranks that share a pipeline coordinate run the same program at the same time, so one of them
// stands for all: the cost does not grow with dp or tp. A fragment's ops are timed once, with their
// streams and events; calls, messages and collectives across pipeline ranks are events. What is
// simulated is the program that runs: commands in order, slots, credits, rendezvous.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/hardware.h"
#include "cost/op_time.h"
#include "pipeline/buffer_lives.h"
#include "pipeline/program.h"
#include "simulate/overlap.h"
#include "trace/trace.h"

namespace mw::simulate {

struct Options {
  Overlap overlap;
  // PTD-P: a boundary value that is whole on all tp ranks is sent in tp parts and gathered by the
  // receiver [Narayanan 2021, section 4.1]. Bytes then differ from the program's.
  bool scatter_gather = false;
  bool tf32 = false;                // f32 products on tensor cores
  cost::Fp8 fp8 = cost::Fp8::kOff;  // products of linear layers
  bool host = true;                 // the host's work to issue ops
  bool figures = true;              // bytes and instructions, to be equal to the verifier's
  bool order_hash = true;           // with figures: the order of instructions too
  bool trace = false;               // spans of calls, waits and messages, memory samples
  bool op_spans = false;     // with trace: spans of ops in place of calls, as a real run records
  bool program_hash = true;  // with trace: name the program's hash
  int32_t calls = 1;         // of one step that the program has, one behind the other
};

// As a software stack runs: its overlap and scatter/gather. Throws Error for a word that is none.
Options options_of(const cluster::Stack& stack);

enum class WaitReason : uint8_t { kReceive, kSlot, kCollective, kSend, kGather };
inline constexpr int kWaitReasons = 5;
std::string_view wait_reason_name(WaitReason reason);  // "receive", "slot", …

// A time that a rank stood still for another.
struct Wait {
  int32_t command = 0;  // that waited
  WaitReason reason = WaitReason::kReceive;
  Seconds begin, end;
  int32_t peer = -1;          // pipeline rank that it waited for
  int32_t peer_command = -1;  // the command there that ended the wait
  // When that command did so; a message is on its way from then to `end`. Behind `end` where other
  // work of the rank came before that.
  Seconds peer_time;
};

struct LiveTensor {
  std::string name;
  pipeline::Category category = pipeline::Category::kActivations;
  Bytes bytes;
};

struct MemoryPeak {
  Bytes bytes;  // alive: states, slots, step buffers, workspace
  Seconds time;
  int32_t command = -1;
  std::string at;  // what runs then: "B of stage 1, microbatch 3"
  std::map<pipeline::Category, Bytes> by_category;
  // Alive then, largest first, at most kLargest: tensors, a channel's slots, a call's temporaries.
  std::vector<LiveTensor> largest;
};
inline constexpr size_t kLargest = 8;

struct RankResult {
  RankId rank;  // the device that stands for the pipeline coordinate
  // The step is the sum of these: computation, communication that nothing hides by group label,
  // gaps in which the device waits for the host or for another stream, waits for others, what is
  // left behind the rank's last command, and waits for a core.
  Seconds compute;
  // By what it is for (pipeline::group_entry): "tp", "cp", "ep", "dp", "dp of experts", "pp".
  std::map<std::string, Seconds> exposed_comm;
  Seconds gaps;
  std::array<Seconds, kWaitReasons> waits;
  Seconds idle;
  Seconds core_wait;  // while other ranks have all cores: of ranks that are threads of one machine

  std::map<std::string, Seconds> comm;  // all of it, hidden or not, by group: "tp", "dp,ep"
  Flops flops;                          // executed by one device
  Flops recomputed_flops;  // of products that are made again, causal attention as the whole square
  MemoryPeak peak;
  Bytes reserved;  // state arena, step arena and slots, as the memory plan lays them out

  // As pipeline::RankFigures counts them.
  Bytes bytes_sent;
  int64_t instructions = 0;
  uint64_t order_hash = 0;
  std::map<std::string, Bytes> bytes_by_group;
  std::map<std::string, int64_t> collectives_by_group;

  Seconds total_wait() const;
  Seconds total_exposed_comm() const;
};

// A piece of the longest chain of work and messages that ends with the step.
struct PathPart {
  int32_t rank = 0;  // pipeline rank that works, or that sends
  Seconds begin, end;
  bool message = false;
};

struct Result {
  Seconds step;
  std::vector<RankResult> ranks;         // [pipeline coordinate]
  std::vector<std::vector<Wait>> waits;  // [pipeline coordinate], in order
  std::vector<PathPart> critical_path;   // in time
  int64_t events = 0;                    // commands and messages handled
  trace::Trace trace;                    // empty unless asked for

  // Mean over pipeline ranks of the share of the step in which a rank waits for another or has
  // ended.
  double bubble() const;
};

// What a pipeline rank holds where it is not what the program's memory plan says.
struct Held {
  pipeline::BufferLives lives;     // beside calls
  std::vector<int64_t> workspace;  // [command] of a call: bytes at its fullest op beyond its start
  Bytes reserved;
  // At the fullest instant of all.
  std::map<pipeline::Category, Bytes> by_category;
  std::vector<LiveTensor> largest;
};

// `held`: of every pipeline rank, in place of what the program holds; empty: as the program says.
// Throws Error where the cluster has fewer devices than the program's mesh. CheckFailure where the
// program cannot end (pipeline::verify finds that).
Result simulate(const pipeline::Program& program, const cluster::Cluster& cluster,
                const Options& options = {}, const std::vector<Held>& held = {});

// "B of stage 3, microbatch 7", "UPDATE".
std::string command_name(const pipeline::Program& program, int32_t rank, int32_t command);

// The critical path in sentences: what it is made of, and the longest waits.
std::vector<std::string> explain(const Result& result, const pipeline::Program& program);
// Of that who computes more than the others, and the longest waits.
std::vector<std::string> explain_waits(const Result& result, const pipeline::Program& program);

}  // namespace mw::simulate

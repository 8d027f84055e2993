// An executor of rank programs in exact arithmetic (field.h) that shares nothing with the verifier,
// the executor and the kernels but the program itself: the oracle of all three. One device moves at
// a time, in a random order, and so do the streams of a call as far as their events allow. Every
// byte of memory knows what was written to it last, so that what is read must have been written, as
// a whole, through the same buffer or as the same value of the same call.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "field_ops.h"
#include "pipeline/program.h"

namespace mw::field {

// Bytes as cells: the first of an element has its value, and whose it is.
class Memory {
 public:
  explicit Memory(int64_t bytes = 0) : cells_(static_cast<size_t>(bytes)) {}
  // None where not all of it was written as that.
  std::optional<Array> read(int64_t at, const ir::TensorType& type, int64_t owner) const;
  void write(int64_t at, const Array& array, int64_t owner);
  void copy(const Memory& from, int64_t at, int64_t bytes);

 private:
  struct Cell {
    uint64_t value = 0;
    int64_t owner = -1;  // with the element's size
  };
  void check(int64_t at, int64_t bytes) const;
  std::vector<Cell> cells_;
};

struct MachineOptions {
  uint64_t seed = 0;     // of all choices
  bool copying = false;  // a slot is two memories; shared: producer and consumer use the same
  bool late = false;     // copying: a message moves when it is received, not when it is published
};

// An element of a data input; of a scalar the index is empty and the microbatch -1.
using Loader =
    std::function<uint64_t(const std::string& name, int32_t microbatch, const Index& global)>;

class Machine {
 public:
  // The states are zeros. REQUIRES: outlived by the program, whose states all later ones have.
  Machine(const pipeline::Program& program, const MachineOptions& options);

  // One call on all devices; true: they stand at the repeat point, and the step before is to be
  // amended. `validated` is called for every device at its repeat point. Throws CheckFailure (or
  // std::out_of_range) where the program does what cannot be done.
  bool run(const pipeline::Program& program, const Loader& loader,
           const std::function<void(RankId)>& validated = nullptr);

  Array state(RankId rank, BufferId buffer);
  void set_state(RankId rank, BufferId buffer, const Array& array);
  const pipeline::RankProgram& rank_program(RankId rank) const;

 private:
  struct Place {
    Memory* memory = nullptr;
    int64_t offset = 0, owner = 0;
  };
  // A fragment's values and streams.
  struct Code {
    struct Value {
      int64_t port = -1;  // -1: workspace
      int64_t offset = 0;
      size_t root = 0;
    };
    std::vector<Value> values;
    std::vector<std::vector<size_t>> streams;  // ops, in order
    std::vector<std::vector<size_t>> waits;    // [op] for the ends of others
  };
  struct Device {
    RankId id;
    int32_t pipeline = 0;
    Memory states, arena;
    size_t command = 0;
    bool stopped = false;
    // Of the call that it is in.
    bool in_call = false;
    int64_t calls = 0;
    std::vector<size_t> next;  // [stream]
    std::vector<bool> ended, arrived;
    std::map<std::vector<RankId>, size_t> collectives;  // that it has arrived at, by group
  };
  struct Ring {
    Memory slots[2];                // the producer's, the consumer's
    std::vector<int64_t> held[2];   // [slot] the message that they may touch there, or -1
    std::set<int64_t> messages[4];  // acquired, published, received, released
  };
  struct Collective {
    std::string signature;
    std::map<RankId, std::vector<Array>> operands;
  };

  void begin(const pipeline::Program& program);
  void end() const;
  bool step(Device& device);
  bool channel_command(Device& device, const pipeline::Command& command);
  void load(Device& device, const pipeline::Command& command);
  bool call(Device& device, const pipeline::Command& command);
  bool is_alias(const pipeline::Fragment& fragment, const ir::Op& op) const;
  bool run_op(Device& device, const pipeline::Command& command, size_t op);
  bool collective(Device& device, const pipeline::Command& command, size_t op);
  Array read(Device& device, const pipeline::Command& command, ValueId value);
  void write(Device& device, const pipeline::Command& command, ValueId value, const Array& array);
  Place place_of(Device& device, const pipeline::Command& command, ValueId value);
  Place place_of(Device& device, BufferId buffer);
  Ring& ring(const Device& device, int32_t channel);
  std::vector<RankId> members(const Device& device, const ir::DeviceGroup& group) const;
  Code code_of(const pipeline::Fragment& fragment) const;
  size_t choose(size_t n) { return random_u32({.seed = options_.seed}, turn_++) % n; }
  std::string where(const Device& device) const;

  const MachineOptions options_;
  uint64_t turn_ = 0;
  std::vector<Device> devices_;
  const pipeline::Program* program_;
  const Loader* loader_ = nullptr;
  std::vector<Code> codes_;               // [fragment]
  std::vector<std::vector<Ring>> rings_;  // [channel][device without its pipeline coordinate]
  std::map<std::pair<std::vector<RankId>, size_t>, Collective> collectives_;
};

}  // namespace mw::field

// For this room's tests: runs the programs of test_pipeline.h on real numbers. All devices take
// turns in a random order; what nobody wrote, a released slot, and a workspace before a call hold
// NaNs. So do the streams of a call, as far as their events allow. Two programs have the same
// effect if all devices end with the same bytes in their states.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/update_ops.h"
#include "pipeline/memory_plan.h"
#include "pipeline/program.h"

namespace mw::pipeline {

class Interpreter {
 public:
  Interpreter(const Program& program, uint64_t seed) : program_(program), seed_(seed) {
    for (int64_t d = 0; d < program.mesh.size(); ++d) devices_.push_back(make_device(RankId(d)));
    for (const Channel& channel : program.channels) {
      rings_.emplace_back();
      for (int64_t i = 0; i < program.mesh.size(); ++i) {
        rings_.back().push_back(
            {std::vector<char>(static_cast<size_t>(channel.slots * channel.type.bytes().value),
                               kPoison),
             {},
             {}});
      }
    }
  }

  // The states of all devices at the end. Throws CheckFailure if the devices wait for each other or
  // do what cannot be done.
  std::vector<std::vector<char>> run() {
    size_t left = devices_.size();
    int64_t idle = 0;
    for (const Device& device : devices_) left -= device.program->commands.empty() ? 1 : 0;
    while (left > 0) {
      Device& device = devices_[random_u32({.seed = seed_}, turn_++) % devices_.size()];
      if (done(device)) continue;
      const bool moved = step(device);
      idle = moved ? 0 : idle + 1;
      if (done(device)) --left;
      MW_CHECK(idle < 400 * static_cast<int64_t>(devices_.size()),
               "the devices wait for each other");
    }
    std::vector<std::vector<char>> states;
    for (Device& device : devices_) states.push_back(std::move(device.states));
    return states;
  }

 private:
  static constexpr char kPoison = '\xff';  // a float of these bytes is a NaN

  struct Device {
    RankId id;
    const RankProgram* program = nullptr;
    int32_t pipeline = 0;
    std::vector<char> states, arena;
    size_t command = 0;
    std::vector<bool> ended, arrived_at;  // [op] of the command's call
    size_t ops_left = 0;
    bool in_call = false;
    std::map<std::string, size_t> arrived;  // group -> operations
  };
  struct Ring {
    std::vector<char> slots;
    std::map<int64_t, bool> published, released;
  };
  struct Operation {
    std::map<int64_t, std::vector<std::vector<char>>> operands;  // [device]
    std::string signature;
  };

  Device make_device(RankId id) {
    Device device;
    device.id = id;
    device.pipeline = static_cast<int32_t>(program_.mesh.index(id, {"pp"}));
    device.program = &program_.ranks[static_cast<size_t>(device.pipeline)];
    device.states.assign(static_cast<size_t>(device.program->state_arena.value), 0);
    device.arena.assign(static_cast<size_t>(device.program->arena.value), kPoison);
    for (int32_t b = 0; b < device.program->states; ++b) {
      const Buffer& buffer = device.program->buffers[static_cast<size_t>(b)];
      if (buffer.storage.kind != Storage::Kind::kState || buffer.category == Category::kGradients ||
          buffer.category == Category::kMetrics) {
        continue;
      }
      // Replicas over dp start alike, whatever shard of the state they hold.
      const bool split = !buffer.sharding().dims.empty() && !buffer.sharding().dims[0].empty();
      const int64_t elements = buffer.type().elements();
      const int64_t base =
          split ? program_.mesh.index(id, buffer.sharding().dims[0]) * elements : 0;
      const RngKey key{.seed = 1,
                       .step = static_cast<uint64_t>(program_.mesh.index(id, {"tp"})),
                       .site = rng_site(buffer.name())};
      for (int64_t e = 0; e < elements; ++e) {
        const float value = 0.5F * random_uniform(key, static_cast<uint64_t>(base + e));
        std::memcpy(device.states.data() + buffer.storage.offset + e * 4, &value, 4);
      }
    }
    return device;
  }

  static bool done(const Device& device) {
    return device.command == device.program->commands.size();
  }

  bool step(Device& device) {
    const Command& command = device.program->commands[device.command];
    const auto channel = static_cast<size_t>(command.channel);
    switch (command.kind) {
      case Command::Kind::kLoad: load(device, command); break;
      case Command::Kind::kCall:
        if (!call(device, command)) return false;
        break;
      case Command::Kind::kAcquire: {
        const int64_t before = command.sequence - program_.channels[channel].slots;
        if (before >= 0 && !ring(device, channel).released.count(before)) return false;
        break;
      }
      case Command::Kind::kPublish: ring(device, channel).published[command.sequence] = true; break;
      case Command::Kind::kReceive:
        if (!ring(device, channel).published.count(command.sequence)) return false;
        break;
      case Command::Kind::kRelease: {
        Ring& r = ring(device, channel);
        r.released[command.sequence] = true;
        const int64_t bytes = program_.channels[channel].type.bytes().value;
        std::memset(r.slots.data() + command.sequence % program_.channels[channel].slots * bytes,
                    kPoison, static_cast<size_t>(bytes));
      }
    }
    ++device.command;
    return true;
  }

  // Devices that differ in the pipeline coordinate only share a ring.
  Ring& ring(const Device& device, size_t channel) {
    return rings_[channel][static_cast<size_t>(program_.mesh.index(device.id, {"dp", "tp"}))];
  }

  char* data(Device& device, BufferId id) {
    const Buffer& buffer = device.program->buffers[id.index()];
    const Storage& storage = buffer.storage;
    switch (storage.kind) {
      case Storage::Kind::kState: return device.states.data() + storage.offset;
      case Storage::Kind::kArena: return device.arena.data() + storage.offset;
      case Storage::Kind::kSlot: {
        const auto channel = static_cast<size_t>(storage.channel);
        return ring(device, channel).slots.data() +
               storage.slot * program_.channels[channel].type.bytes().value;
      }
      case Storage::Kind::kView:
        return data(device, storage.parent) + storage.offset +
               program_.mesh.index(device.id, storage.part->axes) * storage.part->stride;
    }
    return nullptr;
  }

  void load(Device& device, const Command& command) {
    const ir::TensorType& type = device.program->buffers[command.buffers[0].index()].type();
    char* to = data(device, command.buffers[0]);
    const RngKey key{.seed = 2,
                     .step = static_cast<uint64_t>(command.microbatch + 1),
                     .site = rng_site(command.name)};
    const auto replica = static_cast<uint64_t>(program_.mesh.index(device.id, {"dp"}));
    for (int64_t e = 0; e < type.elements(); ++e) {
      if (type.dtype == DType::kI64) {
        const int64_t one = 1;
        std::memcpy(to + e * 8, &one, 8);
      } else {
        const bool scalar = type.rank() == 0;
        const float value =
            random_uniform(key, scalar ? 0 : replica * 4096 + static_cast<uint64_t>(e)) -
            (scalar ? 0.F : 0.25F);
        std::memcpy(to + e * 4, &value, 4);
      }
    }
  }

  // Bytes from where the first member of its group has what was scattered to where this one has it.
  int64_t own_part(const Device& device, const Fragment& fragment, ValueId v) const {
    if (!lies_in_own_part(fragment, v)) return 0;
    const ir::Graph& graph = fragment.graph;
    const auto& attrs = graph.op(graph.value(v).producer).as<ir::CollectiveAttrs>();
    const std::vector<RankId> members = members_of(device, attrs.group);
    return (std::find(members.begin(), members.end(), device.id) - members.begin()) *
           graph.type(v).bytes().value;
  }
  char* value(Device& device, const Command& command, ValueId v) {
    const Fragment& fragment = program_.fragments[command.fragment.index()];
    const ValueId alias = fragment.alias_of[v.index()];
    const ValueId root = alias.valid() ? alias : v;
    const int64_t offset =
        alias.valid() ? fragment.alias_offset[v.index()] + own_part(device, fragment, v) : 0;
    size_t port = 0;
    for (const Port& p : fragment.inputs) {
      if (p.value == root) return data(device, command.buffers[port]) + offset;
      ++port;
    }
    for (const Port& p : fragment.outputs) {
      if (p.kind == PortKind::kState) continue;
      if (p.value == root) return data(device, command.buffers[port]) + offset;
      ++port;
    }
    return device.arena.data() + command.workspace_offset +
           fragment.workspace_offset[root.index()] + offset;
  }

  // False: waits in a collective. Otherwise runs one op; the call is done when none is left.
  bool call(Device& device, const Command& command) {
    const Fragment& fragment = program_.fragments[command.fragment.index()];
    const size_t ops = fragment.graph.ops.size();
    if (!device.in_call) {
      std::memset(device.arena.data() + command.workspace_offset, kPoison,
                  static_cast<size_t>(fragment.workspace.value));
      device.ended.assign(ops, false);
      device.arrived_at.assign(ops, false);
      device.ops_left = ops;
      device.in_call = true;
    }
    while (device.ops_left > 0) {
      const std::vector<size_t> ready = ready_ops(device, fragment);
      MW_CHECK(!ready.empty(), "no stream can go on");
      // Any of them, but one that waits for other devices only if all do.
      const size_t start = random_u32({.seed = seed_ + 1}, turn_++) % ready.size();
      bool moved = false;
      for (size_t i = 0; i < ready.size() && !moved; ++i) {
        const size_t o = ready[(start + i) % ready.size()];
        const ir::Op& op = fragment.graph.ops[o];
        if (!ir::is_collective(op.kind))
          run_op(device, command, fragment, op);
        else if (!collective(device, command, fragment, o))
          continue;
        device.ended[o] = moved = true;
        --device.ops_left;
      }
      if (!moved) return false;
    }
    device.in_call = false;
    return true;
  }

  // The next op of every stream whose events are recorded.
  std::vector<size_t> ready_ops(const Device& device, const Fragment& fragment) const {
    std::vector<size_t> ready;
    std::vector<StreamId> seen;
    for (size_t o = 0; o < fragment.launches.size(); ++o) {
      const Launch& launch = fragment.launches[o];
      if (device.ended[o] || std::find(seen.begin(), seen.end(), launch.stream) != seen.end())
        continue;
      seen.push_back(launch.stream);
      bool free = true;
      for (size_t before = 0; before < fragment.launches.size(); ++before) {
        const bool waited_for = std::find(launch.waits.begin(), launch.waits.end(),
                                          fragment.launches[before].records) != launch.waits.end();
        if (waited_for && !device.ended[before]) free = false;
      }
      if (free) ready.push_back(o);
    }
    return ready;
  }

  using Bytes_ = std::vector<char>;
  Bytes_ bytes_of(Device& device, const Command& command, const Fragment& fragment, ValueId v) {
    const char* from = value(device, command, v);
    return Bytes_(from, from + fragment.graph.type(v).bytes().value);
  }

  std::vector<RankId> members_of(const Device& device, const ir::DeviceGroup& group) const {
    if (const auto* axes = std::get_if<ir::AxisGroup>(&group))
      return program_.mesh.members(device.id, axes->axes);
    const ir::Holders& holders = std::get<ir::Holders>(group);
    std::vector<RankId> members;
    for (const RankId beside : program_.mesh.members(device.id, holders.axes)) {
      for (const RankId other : program_.mesh.members(beside, {"pp"})) {
        const auto& rank = *devices_[other.index()].program;
        const bool holds = std::any_of(rank.buffers.begin(), rank.buffers.begin() + rank.states,
                                       [&](const Buffer& b) { return b.value == holders.state; });
        if (holds) members.push_back(other);
      }
    }
    return members;
  }

  bool collective(Device& device, const Command& command, const Fragment& fragment, size_t o) {
    const ir::Op& op = fragment.graph.ops[o];
    const auto& attrs = op.as<ir::CollectiveAttrs>();
    const std::vector<RankId> members = members_of(device, attrs.group);
    std::string group;
    for (const RankId r : members) group += std::to_string(r.value) + " ";
    Operation& operation = operations_[{group, device.arrived[group]}];
    if (!device.arrived_at[o]) {
      std::string signature = std::string(ir::op_name(op.kind)) + std::to_string(attrs.dim);
      for (const ValueId v : op.operands) {
        operation.operands[device.id.value].push_back(bytes_of(device, command, fragment, v));
        signature += ir::to_string(fragment.graph.type(v));
      }
      if (operation.signature.empty()) operation.signature = signature;
      MW_CHECK(operation.signature == signature, "{} meets {}", signature, operation.signature);
      device.arrived_at[o] = true;
    }
    if (operation.operands.size() < members.size()) return false;
    ++device.arrived[group];
    const auto me =
        static_cast<size_t>(std::find(members.begin(), members.end(), device.id) - members.begin());
    for (size_t i = 0; i < op.operands.size(); ++i) {
      std::vector<const Bytes_*> parts;
      for (const RankId r : members) parts.push_back(&operation.operands[r.value][i]);
      const Bytes_ result = combine(op.kind, parts, me, fragment.graph.type(op.operands[i]).dtype);
      const auto wanted = static_cast<size_t>(fragment.graph.type(op.results[i]).bytes().value);
      MW_CHECK(result.size() == wanted, "a collective makes {} bytes, not {}", result.size(),
               wanted);
      std::memcpy(value(device, command, op.results[i]), result.data(), wanted);
    }
    return true;
  }

  static Bytes_ combine(ir::OpKind kind, const std::vector<const Bytes_*>& parts, size_t me,
                        DType dtype) {
    Bytes_ result;
    if (kind == ir::OpKind::kAllGather) {
      for (const Bytes_* part : parts) result.insert(result.end(), part->begin(), part->end());
      return result;
    }
    result = *parts[0];
    const auto sum = [&]<typename T>(T) {
      for (size_t p = 1; p < parts.size(); ++p) {
        for (size_t at = 0; at < result.size(); at += sizeof(T)) {
          T a, b;
          std::memcpy(&a, result.data() + at, sizeof(T));
          std::memcpy(&b, parts[p]->data() + at, sizeof(T));
          a += b;
          std::memcpy(result.data() + at, &a, sizeof(T));
        }
      }
    };
    if (dtype == DType::kF64)
      sum(double());
    else
      sum(float());
    if (kind != ir::OpKind::kReduceScatter) return result;
    const size_t size = result.size() / parts.size();
    return Bytes_(result.begin() + static_cast<int64_t>(me * size),
                  result.begin() + static_cast<int64_t>((me + 1) * size));
  }

  void run_op(Device& device, const Command& command, const Fragment& fragment, const ir::Op& op) {
    const ir::Graph& graph = fragment.graph;
    // Operands are read before results are written: what works in place here must be allowed to,
    // which others check.
    std::vector<Bytes_> in;
    for (const ValueId v : op.operands) in.push_back(bytes_of(device, command, fragment, v));
    const auto x = [&](size_t i) { return reinterpret_cast<const float*>(in[i].data()); };
    const auto y = [&](size_t i) {
      return reinterpret_cast<float*>(value(device, command, op.results[i]));
    };
    const int64_t n = op.results.empty() ? 0 : graph.type(op.results[0]).elements();
    const auto map = [&](auto function) {
      for (int64_t i = 0; i < n; ++i) y(0)[i] = function(i);
    };
    switch (op.kind) {
      case ir::OpKind::kRelu: return map([&](int64_t i) { return std::max(0.F, x(0)[i]); });
      case ir::OpKind::kReluGrad:
        return map([&](int64_t i) { return x(1)[i] > 0 ? x(0)[i] : 0.F; });
      case ir::OpKind::kMul: return map([&](int64_t i) { return x(0)[i] * x(1)[i]; });
      case ir::OpKind::kAdd:
      case ir::OpKind::kAccumulate: return map([&](int64_t i) { return x(0)[i] + x(1)[i]; });
      case ir::OpKind::kScale: {
        const auto factor = static_cast<float>(op.as<ir::ScaleAttrs>().factor);
        return map([&](int64_t i) { return x(0)[i] * factor; });
      }
      case ir::OpKind::kCopy:
      case ir::OpKind::kReshape: return map([&](int64_t i) { return x(0)[i]; });
      case ir::OpKind::kZero: return map([&](int64_t) { return 0.F; });
      case ir::OpKind::kReduce: {
        float sum = 0;
        for (int64_t i = 0; i < graph.type(op.operands[0]).elements(); ++i) sum += x(0)[i];
        return map([&](int64_t) { return sum; });
      }
      case ir::OpKind::kDot: return dot(graph, op, in, y(0));
      case ir::OpKind::kNormBlocks: {
        auto* block = reinterpret_cast<double*>(y(0));
        for (size_t g = 0; g < op.operands.size(); ++g) {
          for (int64_t e = 0; e < graph.type(op.operands[g]).elements(); ++e) {
            if (e % ops::kNormBlock == 0) *block = 0;
            *block += double(x(g)[e]) * x(g)[e];
            if ((e + 1) % ops::kNormBlock == 0) ++block;
          }
        }
        return;
      }
      case ir::OpKind::kNormParameters: {
        const auto* blocks = reinterpret_cast<const double*>(in[0].data());
        auto* sums = reinterpret_cast<double*>(y(0));
        for (int64_t i = 0; i < n; ++i) sums[i] = 0;
        const ir::FlatAttrs& attrs = op.as<ir::FlatAttrs>();
        for (size_t g = 0; g < attrs.groups.size(); ++g) {
          for (const ir::Segment& segment : attrs.groups[g]) {
            if (!segment.counts) continue;
            for (int64_t b = segment.begin / ops::kNormBlock; b * ops::kNormBlock < segment.end;
                 ++b)
              sums[segment.parameter] += blocks[b];
          }
          blocks += attrs.group_elements[g] / ops::kNormBlock;
        }
        return;
      }
      case ir::OpKind::kClip: {
        const auto* sums = reinterpret_cast<const double*>(in[0].data());
        double total = 0;
        for (int64_t i = 0; i < graph.type(op.operands[0]).elements(); ++i) total += sums[i];
        y(0)[0] = static_cast<float>(std::sqrt(total));
        y(1)[0] = static_cast<float>(1 / (1 + std::sqrt(total)));
        return;
      }
      case ir::OpKind::kAdamW:
        for (int64_t i = 0; i < n; ++i) {
          const float g = x(1)[i] * x(4)[0], m = 0.9F * x(2)[i] + 0.1F * g,
                      v = 0.9F * x(3)[i] + 0.1F * g * g;
          y(0)[i] = x(0)[i] - x(5)[0] * m / (1 + std::sqrt(v));
          y(1)[i] = m;
          y(2)[i] = v;
        }
        return;
      default: MW_CHECK(false, "the interpreter does not know {}", ir::op_name(op.kind));
    }
  }

  static void dot(const ir::Graph& graph, const ir::Op& op, const std::vector<Bytes_>& in,
                  float* y) {
    const auto& attrs = op.as<ir::DotAttrs>();
    std::string letters;
    std::map<char, int64_t> size;
    const std::string* const names[] = {&attrs.lhs, &attrs.rhs};
    for (size_t i = 0; i < 2; ++i) {
      for (size_t d = 0; d < names[i]->size(); ++d) {
        const char letter = (*names[i])[d];
        if (size.emplace(letter, graph.type(op.operands[i]).dims[d].size).second) letters += letter;
      }
    }
    std::map<char, int64_t> at;
    const auto index = [&](const std::string& name) {
      int64_t i = 0;
      for (const char letter : name) i = i * size[letter] + at[letter];
      return i;
    };
    const auto* a = reinterpret_cast<const float*>(in[0].data());
    const auto* b = reinterpret_cast<const float*>(in[1].data());
    int64_t total = 1, results = 1;
    for (const char letter : letters) total *= size[letter];
    for (const char letter : attrs.out) results *= size[letter];
    std::vector<float> sums(static_cast<size_t>(results), 0);
    if (op.accumulates) std::memcpy(sums.data(), in[2].data(), sums.size() * 4);
    for (int64_t i = 0; i < total; ++i) {
      int64_t rest = i;
      for (size_t l = letters.size(); l-- > 0;) {
        at[letters[l]] = rest % size[letters[l]];
        rest /= size[letters[l]];
      }
      sums[static_cast<size_t>(index(attrs.out))] += a[index(attrs.lhs)] * b[index(attrs.rhs)];
    }
    std::memcpy(y, sums.data(), sums.size() * 4);
  }

  const Program& program_;
  uint64_t seed_, turn_ = 0;
  std::vector<Device> devices_;
  std::vector<std::vector<Ring>> rings_;  // [channel][coordinates besides the pipeline's]
  std::map<std::pair<std::string, size_t>, Operation> operations_;
};

}  // namespace mw::pipeline

// The figures of a run that the verifier predicts and the executor measures.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "ir/op_kind.h"

namespace mw::pipeline {

// Takes in the ops of a rank's run, one after the other.
class OrderHash {
 public:
  // What an op adds: it depends on the command and the op's place in its fragment. REQUIRES:
  // command, op < 2^24.
  static constexpr uint64_t token(int64_t command, int64_t op, ir::OpKind kind) {
    return mix_bits((static_cast<uint64_t>(command) << 40) | (static_cast<uint64_t>(op) << 16) |
                    static_cast<uint64_t>(kind));
  }
  constexpr void add(int64_t command, int64_t op, ir::OpKind kind) {
    add(token(command, op, kind));
  }
  constexpr void add(uint64_t token) { value_ = mix_bits(value_ ^ token); }
  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace mw::pipeline

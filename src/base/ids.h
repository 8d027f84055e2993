// Dense ids and units as types: an id of one thing is no id of another, and unlike units do not
// add.
#pragma once

#include <absl/container/inlined_vector.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace mw {

template <typename Tag>
struct Id {
  int32_t value = -1;
  constexpr Id() = default;
  constexpr explicit Id(int64_t v) : value(static_cast<int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValueId = Id<struct ValueTag>;    // a value of one Graph
using OpId = Id<struct OpTag>;          // an op of one Graph
using GraphId = Id<struct GraphTag>;    // a graph of one Module
using StateId = Id<struct StateTag>;    // a state of one Module
using LayerId = Id<struct LayerTag>;    // a model layer, in model order; stages are cut between
using RegionId = Id<struct RegionTag>;  // a recompute region
using StageId = Id<struct StageTag>;    // a pipeline stage, in model order
using RankId = Id<struct RankTag>;      // a device of the mesh
using MicrobatchId = Id<struct MicrobatchTag>;
using FragmentId = Id<struct FragmentTag>;  // an entry of Program::fragments
using BufferId = Id<struct BufferTag>;      // a buffer of one rank's program
using StreamId = Id<struct StreamTag>;
using EventId = Id<struct EventTag>;

// Values in a row: an op's few operands are held in place.
using ValueIds = absl::InlinedVector<ValueId, 4>;
// And a message's one buffer.
using BufferIds = absl::InlinedVector<BufferId, 4>;

// A quantity of one unit over a number type.
template <typename Tag, typename Number>
struct Quantity {
  Number value = 0;
  constexpr Quantity() = default;
  constexpr explicit Quantity(Number v) : value(v) {}
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, Number k) { return Quantity(a.value * k); }
  Quantity& operator+=(Quantity b) {
    value += b.value;
    return *this;
  }
  Quantity& operator-=(Quantity b) {
    value -= b.value;
    return *this;
  }
};

using Bytes = Quantity<struct BytesTag, int64_t>;
using Flops = Quantity<struct FlopsTag, double>;
using Seconds = Quantity<struct SecondsTag, double>;

// Of a unit: what files say in us, GB or TFLOP/s.
inline constexpr double kMicro = 1e-6, kGiga = 1e9, kTera = 1e12;

}  // namespace mw

template <typename Tag>
struct std::hash<mw::Id<Tag>> {
  size_t operator()(mw::Id<Tag> id) const noexcept { return std::hash<int32_t>()(id.value); }
};

#include "simulate/overlap.h"

#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::simulate {
namespace {

constexpr double kMostSlowdown = 1000;

}  // namespace

bool set_overlap(Overlap& overlap, std::string_view word) {
  if (word == "ring" || word == "no-ring") {
    overlap.ring = word == "ring";
  } else if (word == "messages" || word == "no-messages") {
    overlap.messages = word == "messages";
  } else if (word == "collectives") {
    overlap.collectives = true;
  } else if (word == "no-tensor") {
    overlap.tensor = false;
  } else if (word == "async-tp") {
    overlap.collectives = overlap.tensor = overlap.async_tp = true;
  } else if (word == "serial") {
    overlap.serial = true;
  } else if (word == "grad_reduce") {
    overlap.grad_reduce = true;
  } else if (word == "param_gather") {
    overlap.param_gather = true;
  } else if (word == "none") {
    overlap.collectives = overlap.async_tp = overlap.grad_reduce = overlap.param_gather = false;
  } else {
    return false;
  }
  return true;
}

std::string_view beside_name(Beside beside) {
  switch (beside) {
    case Beside::kMessages: return "messages";
    case Beside::kTensor: return "tensor";
    case Beside::kGradReduce: return "grad_reduce";
    case Beside::kParamGather: return "param_gather";
    case Beside::kRing: return "ring";
    case Beside::kOther: return "other";
  }
  return "?";
}

std::string set_slowdown(Overlap& overlap, std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view number = equals == std::string_view::npos ? text : text.substr(equals + 1);
  const std::optional<double> value = parse_double(number);
  if (!value || !(*value >= 1 && *value <= kMostSlowdown)) {
    return fmt::format(
        "must be a number from 1 to {:g}, or one of a kind of communication as in "
        "\"tensor=1.2\", is \"{}\"",
        kMostSlowdown, text);
  }
  if (equals == std::string_view::npos) {
    overlap.slowdown.fill(*value);
    return {};
  }
  std::vector<std::string> names;
  for (size_t b = 0; b < kBesides; ++b) {
    names.emplace_back(beside_name(static_cast<Beside>(b)));
    if (names.back() != text.substr(0, equals)) continue;
    overlap.slowdown[b] = *value;
    return {};
  }
  return fmt::format("unknown kind of communication '{}'{}; known are {}", text.substr(0, equals),
                     did_you_mean(text.substr(0, equals), names), join(names, ", "));
}

Slowdowns slowdowns_of(const Overlap& overlap, const cluster::Device& device) {
  Slowdowns slowdowns = overlap.slowdown;
  for (size_t b = 0; b < kBesides; ++b) {
    if (slowdowns[b] > 0) continue;
    const bool message = static_cast<Beside>(b) == Beside::kMessages;
    slowdowns[b] = message ? 1 : device.attained.overlap_slowdown;
  }
  return slowdowns;
}

}  // namespace mw::simulate

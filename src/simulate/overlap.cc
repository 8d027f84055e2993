#include "simulate/overlap.h"

#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::simulate {
namespace {

constexpr double kMostSlowdown = 1000;

struct Word {
  std::string_view name;
  void (*set)(Overlap& overlap);
};
constexpr Word kSwitches[] = {
    {"messages", [](Overlap& o) { o.messages = true; }},
    {"no-messages", [](Overlap& o) { o.messages = false; }},
    {"collectives", [](Overlap& o) { o.collectives = true; }},
    {"no-tensor", [](Overlap& o) { o.tensor = false; }},
    {"weights", [](Overlap& o) { o.weights = true; }},
    {"no-weights", [](Overlap& o) { o.weights = false; }},
    {"async-tp", [](Overlap& o) { o.collectives = o.tensor = o.async_tp = true; }},
    {"serial", [](Overlap& o) { o.serial = true; }},
    {"grad_reduce",
     [](Overlap& o) {
       o.grad_reduce = true;
       o.grad_reduce_idle = false;
     }},
    {"grad_reduce_idle", [](Overlap& o) { o.grad_reduce = o.grad_reduce_idle = true; }},
    {"param_gather", [](Overlap& o) { o.param_gather = true; }},
    {"ring", [](Overlap& o) { o.ring = true; }},
    {"no-ring", [](Overlap& o) { o.ring = false; }},
    {"pairs", [](Overlap& o) { o.pairs = true; }},
    {"no-pairs", [](Overlap& o) { o.pairs = false; }},
    {"none",
     [](Overlap& o) {
       o.collectives = o.async_tp = o.param_gather = false;
       o.grad_reduce = o.grad_reduce_idle = false;
     }},
};

}  // namespace

const std::vector<std::string>& overlap_words() {
  static const std::vector<std::string> kWords = [] {
    std::vector<std::string> words;
    for (const Word& word : kSwitches) words.emplace_back(word.name);
    return words;
  }();
  return kWords;
}

bool set_overlap(Overlap& overlap, std::string_view word) {
  for (const Word& known : kSwitches) {
    if (known.name != word) continue;
    known.set(overlap);
    return true;
  }
  return false;
}

bool contradict(std::string_view earlier, std::string_view later) {
  if (earlier == "none") return false;
  Overlap in_order, turned;
  set_overlap(in_order, earlier);
  set_overlap(in_order, later);
  set_overlap(turned, later);
  set_overlap(turned, earlier);
  return !(in_order == turned);
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

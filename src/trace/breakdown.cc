#include "trace/breakdown.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace mw::trace {
namespace {

constexpr Category kPriority[] = {Category::kCompute, Category::kComm, Category::kCopy,
                                  Category::kIo,      Category::kWait, Category::kUpdate};

// What other spans of the rank lie in: no time of its own.
bool encloses(Category category) {
  return category == Category::kStep || category == Category::kCall;
}

size_t index(Category category) { return static_cast<size_t>(category); }

bool starts_in(const Span& span, Window window) {
  return span.start >= window.begin && span.start < window.end;
}

// A category's span begins (+1) or ends (-1).
struct Edge {
  Seconds time;
  Category category;
  int change;
};

std::vector<Edge> edges_of(std::span<const Span> spans, Window window) {
  std::vector<Edge> edges;
  for (const Span& span : spans) {
    const Seconds from = std::max(span.start, window.begin);
    const Seconds to = std::min(span.end(), window.end);
    if (from >= to) continue;
    edges.push_back({from, span.category, 1});
    edges.push_back({to, span.category, -1});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.time, a.category, a.change) < std::tie(b.time, b.category, b.change);
  });
  return edges;
}

RankBreakdown breakdown_of(RankId rank, std::span<const Span> spans, Window window) {
  RankBreakdown result;
  result.rank = rank;
  result.window = window.end - window.begin;
  std::array<int, kCategories> open = {};
  // The time up to the next edge, with what is open now.
  const auto spend = [&](Seconds time) {
    for (int c = 0; c < kCategories; ++c) {
      if (open[c] > 0) result.active[c] += time;
    }
    for (Category c : kPriority) {
      if (open[index(c)] > 0) {
        result.exposed[index(c)] += time;
        return;
      }
    }
    result.idle += time;
  };
  Seconds now = window.begin;
  for (const Edge& edge : edges_of(spans, window)) {
    spend(edge.time - now);
    now = edge.time;
    open[index(edge.category)] += edge.change;
  }
  spend(window.end - now);
  for (const Span& span : spans) {
    if (!starts_in(span, window)) continue;
    if (span.category == Category::kComm) result.comm_bytes += span.bytes;
    result.flops += span.flops;
  }
  return result;
}

}  // namespace

Window whole(const Trace& trace) {
  std::optional<Window> window;
  const auto see = [&](Seconds begin, Seconds end) {
    if (!window) window = {begin, end};
    window->begin = std::min(window->begin, begin);
    window->end = std::max(window->end, end);
  };
  for (const Span& span : trace.spans) see(span.start, span.end());
  for (const MemorySample& sample : trace.memory) see(sample.time, sample.time);
  return window.value_or(Window{});
}

std::vector<StepWindow> step_windows(const Trace& trace) {
  std::map<int32_t, Window> steps;
  for (const Span& span : trace.spans) {
    if (span.category != Category::kStep) continue;
    const auto [at, is_new] = steps.try_emplace(span.command, Window{span.start, span.end()});
    if (is_new) continue;
    at->second.begin = std::min(at->second.begin, span.start);
    at->second.end = std::max(at->second.end, span.end());
  }
  std::vector<StepWindow> list;
  for (const auto& [step, window] : steps) list.push_back({step, window});
  return list;
}

std::vector<RankBreakdown> breakdown(const Trace& trace, Window window) {
  std::vector<RankBreakdown> list;
  for (RankId rank : ranks(trace)) {
    // The spans of a rank stand together.
    const auto [first, last] =
        std::equal_range(trace.spans.begin(), trace.spans.end(), Span{.rank = rank},
                         [](const Span& a, const Span& b) { return a.rank < b.rank; });
    list.push_back(breakdown_of(rank, {first, last}, window));
  }
  return list;
}

std::vector<NameTotal> totals_by_name(const Trace& trace, Window window) {
  std::map<std::pair<std::string, Category>, NameTotal> totals;
  for (const Span& span : trace.spans) {
    if (encloses(span.category) || !starts_in(span, window)) continue;
    NameTotal& total = totals[{trace.name(span), span.category}];
    total.name = trace.name(span);
    total.category = span.category;
    ++total.count;
    total.time += span.duration;
    total.bytes += span.bytes;
    total.flops += span.flops;
  }
  std::vector<NameTotal> list;
  for (auto& [key, total] : totals) list.push_back(std::move(total));
  std::stable_sort(list.begin(), list.end(),
                   [](const NameTotal& a, const NameTotal& b) { return a.time > b.time; });
  return list;
}

}  // namespace mw::trace

#include "trace/trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace mw::trace {
namespace {

// The earliest time of any record; zero without one.
Seconds first_time(const Trace& trace) {
  std::optional<Seconds> first;
  const auto see = [&](Seconds time) { first = first ? std::min(*first, time) : time; };
  for (const Span& span : trace.spans) see(span.start);
  for (const MemorySample& sample : trace.memory) see(sample.time);
  return first.value_or(Seconds(0));
}

void name_unnamed_streams(Trace& trace) {
  std::set<std::pair<RankId, StreamId>> seen;
  for (const Span& span : trace.spans) {
    if (span.stream.valid()) seen.emplace(span.rank, span.stream);
  }
  for (auto [rank, stream] : seen) {
    trace.streams.push_back({rank, stream, fmt::format("stream {}", stream.value)});
  }
}

// Sorts by `key_of` and within one key by `before`; equal elements keep their order. Elements of
// one key mostly come in order already.
template <typename T, typename Key, typename Before>
void sort_by_key(std::vector<T>& items, Key key_of, Before before) {
  const bool sorted_already =
      std::is_sorted(items.begin(), items.end(), [&](const T& a, const T& b) {
        const auto x = key_of(a), y = key_of(b);
        return x < y || (x == y && before(a, b));
      });
  if (sorted_already) return;
  using KeyType = decltype(key_of(items.front()));
  std::map<KeyType, std::vector<uint32_t>> buckets;
  std::vector<uint32_t>* bucket = nullptr;
  for (size_t i = 0; i < items.size(); ++i) {
    const KeyType key = key_of(items[i]);
    if (bucket == nullptr || key != key_of(items[i - 1])) bucket = &buckets[key];
    bucket->push_back(static_cast<uint32_t>(i));
  }
  std::vector<T> sorted;
  sorted.reserve(items.size());
  for (auto& [key, indices] : buckets) {
    const auto less = [&](uint32_t a, uint32_t b) { return before(items[a], items[b]); };
    if (!std::is_sorted(indices.begin(), indices.end(), less))
      std::stable_sort(indices.begin(), indices.end(), less);
    for (const uint32_t i : indices) sorted.push_back(std::move(items[i]));
  }
  items = std::move(sorted);
}

}  // namespace

const std::string& Trace::name(const Span& span) const {
  static const std::string none;
  return span.name.valid() ? names.at(span.name.index()) : none;
}

std::vector<RankId> ranks(const Trace& trace) {
  std::set<RankId> seen;
  const auto see = [&](const auto& items) {  // mostly many of one rank, one behind the other
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 0 || items[i].rank != items[i - 1].rank) seen.insert(items[i].rank);
    }
  };
  see(trace.spans);
  see(trace.memory);
  return {seen.begin(), seen.end()};
}

void sort(Trace& trace) {
  sort_by_key(
      trace.spans, [](const Span& span) { return std::pair(span.rank, span.stream); },
      [](const Span& a, const Span& b) {
        return std::tie(a.start, b.duration) < std::tie(b.start, a.duration);
      });
  sort_by_key(
      trace.memory, [](const MemorySample& sample) { return sample.rank; },
      [](const MemorySample& a, const MemorySample& b) { return a.time < b.time; });
  std::stable_sort(trace.streams.begin(), trace.streams.end(),
                   [](const StreamName& a, const StreamName& b) {
                     return std::tie(a.rank, a.stream) < std::tie(b.rank, b.stream);
                   });
  std::stable_sort(trace.rank_names.begin(), trace.rank_names.end(),
                   [](const RankName& a, const RankName& b) { return a.rank < b.rank; });
}

Trace merge(std::span<const Recorder* const> recorders, const NameTable& names,
            std::string program_hash, std::string producer, std::optional<Seconds> origin) {
  Trace trace;
  trace.program_hash = std::move(program_hash);
  trace.producer = std::move(producer);
  trace.names = names.names();
  for (const Recorder* recorder : recorders) {
    const auto spans = recorder->spans();
    const auto memory = recorder->memory();
    trace.spans.insert(trace.spans.end(), spans.begin(), spans.end());
    trace.memory.insert(trace.memory.end(), memory.begin(), memory.end());
    trace.dropped += recorder->dropped();
  }
  const Seconds zero = origin ? *origin : first_time(trace);
  for (Span& span : trace.spans) span.start -= zero;
  for (MemorySample& sample : trace.memory) sample.time -= zero;
  name_unnamed_streams(trace);
  sort(trace);
  return trace;
}

void name_stream(Trace& trace, StreamId stream, std::string_view name) {
  for (StreamName& entry : trace.streams) {
    if (entry.stream == stream) entry.name = name;
  }
}

Trace merge(std::span<const Trace> traces) {
  MW_CHECK(!traces.empty(), "a merge of no traces");
  Trace all;
  all.program_hash = traces[0].program_hash;
  all.producer = traces[0].producer;
  all.step = traces[0].step;
  NameTable names;
  for (const Trace& trace : traces) {
    if (trace.program_hash != all.program_hash || trace.producer != all.producer) {
      throw_error(
          "traces of different runs: one is of program {} by {}, another of program {} by {}; "
          "merge the traces of one "
          "run",
          all.program_hash, all.producer, trace.program_hash, trace.producer);
    }
    std::vector<NameId> ids;
    for (const std::string& name : trace.names) ids.push_back(names.intern(name));
    for (Span span : trace.spans) {
      if (span.name.valid()) span.name = ids.at(span.name.index());
      all.spans.push_back(span);
    }
    all.memory.insert(all.memory.end(), trace.memory.begin(), trace.memory.end());
    all.rank_names.insert(all.rank_names.end(), trace.rank_names.begin(), trace.rank_names.end());
    all.streams.insert(all.streams.end(), trace.streams.begin(), trace.streams.end());
    all.dropped += trace.dropped;
  }
  all.names = names.names();
  sort(all);
  all.rank_names.erase(std::unique(all.rank_names.begin(), all.rank_names.end()),
                       all.rank_names.end());
  all.streams.erase(std::unique(all.streams.begin(), all.streams.end()), all.streams.end());
  return all;
}

}  // namespace mw::trace

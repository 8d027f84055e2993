#include "pipeline/streams.h"

#include <algorithm>

#include <fmt/format.h>

namespace mw::pipeline {

static constexpr int32_t kMaxStreams = 64;

StreamOrder::StreamOrder(const Fragment& fragment) {
  const size_t ops = fragment.launches.size();
  std::vector<int32_t> recorder;  // [event]
  for (size_t o = 0; o < ops; ++o) {
    const Launch& launch = fragment.launches[o];
    stream_.push_back(launch.stream.value);
    streams_ = std::max(streams_, launch.stream.index() + 1);
    if (launch.records.valid()) {
      recorder.resize(std::max(recorder.size(), launch.records.index() + 1), -1);
      recorder[launch.records.index()] = static_cast<int32_t>(o);
    }
  }
  ops_of_.resize(streams_);
  clocks_.assign(ops * streams_, -1);
  for (size_t o = 0; o < ops; ++o) {
    const auto take = [&](int32_t ended) {
      int32_t* mine = clocks_.data() + o * streams_;
      const int32_t* theirs = clock(ended);
      for (size_t s = 0; s < streams_; ++s) mine[s] = std::max(mine[s], theirs[s]);
      int32_t& own = mine[static_cast<size_t>(stream_[static_cast<size_t>(ended)])];
      own = std::max(own, ended);
    };
    std::vector<int32_t>& same = ops_of_[static_cast<size_t>(stream_[o])];
    if (!same.empty()) take(same.back());
    for (const EventId event : fragment.launches[o].waits) take(recorder[event.index()]);
    same.push_back(static_cast<int32_t>(o));
  }
}

int32_t StreamOrder::settled(int32_t a) const {
  int32_t last = a;
  if (in_order()) return last;
  for (const std::vector<int32_t>& ops : ops_of_) {
    // Clocks only grow along a stream, so the ops that do not know of `a` are a prefix.
    const auto known =
        std::partition_point(ops.begin(), ops.end(), [&](int32_t op) { return !before(a, op); });
    if (known != ops.begin()) last = std::max(last, *(known - 1));
  }
  return last;
}

std::vector<std::string> launch_findings(const Fragment& fragment) {
  std::vector<std::string> found;
  const size_t ops = fragment.graph.ops.size();
  if (fragment.launches.size() != ops) {
    found.push_back(fmt::format("has {} launches for {} ops", fragment.launches.size(), ops));
    return found;
  }
  std::vector<bool> recorded;
  for (size_t o = 0; o < ops; ++o) {
    const Launch& launch = fragment.launches[o];
    if (!launch.stream.valid() || launch.stream.value >= kMaxStreams) {
      found.push_back(fmt::format("op {} is on stream {}, the streams are 0 to {}", o,
                                  launch.stream.value, kMaxStreams - 1));
    }
    for (const EventId event : launch.waits) {
      if (event.valid() && event.index() < recorded.size() && recorded[event.index()]) continue;
      found.push_back(
          fmt::format("op {} waits for event {}, which no op before it records", o, event.value));
    }
    if (!launch.records.valid()) continue;
    const size_t event = launch.records.index();
    if (event >= recorded.size()) recorded.resize(event + 1, false);
    if (recorded[event])
      found.push_back(fmt::format("op {} records event {} a second time", o, event));
    recorded[event] = true;
  }
  return found;
}

}  // namespace mw::pipeline

#include "trace/recorder.h"

#include "base/error.h"

namespace mw::trace {
namespace {

// Writes behind the last record and only then lets readers see it; false when full. One thread
// writes, so the count it reads is its own.
template <typename Record>
bool append(std::vector<Record>& records, std::atomic<int64_t>& count, const Record& record) {
  const int64_t n = count.load(std::memory_order_relaxed);
  if (n == static_cast<int64_t>(records.size())) return false;
  records[static_cast<size_t>(n)] = record;
  count.store(n + 1, std::memory_order_release);
  return true;
}

}  // namespace

NameId NameTable::intern(std::string_view name) {
  std::lock_guard lock(mutex_);
  const auto found = ids_.find(name);
  if (found != ids_.end()) return found->second;
  const NameId id(static_cast<int64_t>(names_.size()));
  names_.emplace_back(name);
  ids_.emplace(name, id);
  return id;
}

std::vector<std::string> NameTable::names() const {
  std::lock_guard lock(mutex_);
  return names_;
}

Recorder::Recorder(RankId rank, int64_t span_capacity, int64_t memory_capacity) : rank_(rank) {
  MW_CHECK(rank.valid() && span_capacity >= 0 && memory_capacity >= 0,
           "recorder of rank {} for {} spans and {} samples", rank.value, span_capacity,
           memory_capacity);
  spans_.resize(static_cast<size_t>(span_capacity));
  memory_.resize(static_cast<size_t>(memory_capacity));
}

void Recorder::record(Span span) {
  span.rank = rank_;
  if (!append(spans_, span_count_, span)) dropped_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::record(MemorySample sample) {
  sample.rank = rank_;
  if (!append(memory_, memory_count_, sample)) dropped_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::clear() {
  span_count_.store(0);
  memory_count_.store(0);
  dropped_.store(0);
}

ScopedSpan::ScopedSpan(Recorder* recorder, const Clock& clock, Span span)
    : recorder_(recorder), clock_(clock), span_(span) {
  if (recorder_) span_.start = clock_.now();
}

ScopedSpan::~ScopedSpan() {
  if (!recorder_) return;
  span_.duration = clock_.now() - span_.start;
  recorder_->record(span_);
}

}  // namespace mw::trace

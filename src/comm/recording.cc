#include "comm/recording.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace mw::comm {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(RecordingEndpoint& endpoint, std::string name, int rank,
                        std::vector<RankId> members)
      : Communicator(std::move(name), rank, std::move(members)), endpoint_(endpoint) {}

 private:
  void do_run(const Collective& op) override {
    endpoint_.record(fmt::format("{}: {}", name(), describe(op)));
  }

  RecordingEndpoint& endpoint_;
};

class RecordingChannel final : public Channel {
 public:
  RecordingChannel(RecordingEndpoint& endpoint, RankId producer, RankId consumer, int32_t id,
                   Bytes slot_bytes, int slots)
      : Channel(producer, consumer, id, slot_bytes, slots),
        endpoint_(endpoint),
        memory_(static_cast<size_t>(slots * words())) {
    record(fmt::format("open {} x {} bytes", slots, slot_bytes.value));
  }

  void* acquire(int64_t sequence) override {
    record(fmt::format("acquire {}", sequence));
    return slot(sequence);
  }
  void publish(int64_t sequence) override {
    record(fmt::format("publish {}", sequence));
    count_publish();
  }
  const void* receive(int64_t sequence) override {
    record(fmt::format("receive {}", sequence));
    return slot(sequence);
  }
  void release(int64_t sequence) override { record(fmt::format("release {}", sequence)); }

 private:
  int64_t words() const {
    return slot_bytes().value / static_cast<int64_t>(sizeof(std::max_align_t)) + 1;
  }
  std::max_align_t* slot(int64_t sequence) { return memory_.data() + sequence % slots() * words(); }
  void record(const std::string& what) {
    endpoint_.record(
        fmt::format("channel {} {}>{}: {}", id(), producer().value, consumer().value, what));
  }

  RecordingEndpoint& endpoint_;
  std::vector<std::max_align_t> memory_;
};

std::unique_ptr<Communicator> RecordingEndpoint::group(std::vector<RankId> members,
                                                       std::string name, StreamHandle) {
  std::string line = fmt::format("group {} [", name);
  for (RankId member : members)
    line += fmt::format("{}{}", line.back() == '[' ? "" : ", ", member.value);
  record(line + "]");
  const auto self = std::find(members.begin(), members.end(), rank_);
  const int position = self == members.end() ? -1 : static_cast<int>(self - members.begin());
  return std::make_unique<RecordingCommunicator>(*this, std::move(name), position,
                                                 std::move(members));
}

std::unique_ptr<Channel> RecordingEndpoint::channel(RankId peer, int32_t id, Bytes slot_bytes,
                                                    int slots, bool is_producer, StreamHandle) {
  return std::make_unique<RecordingChannel>(*this, is_producer ? rank_ : peer,
                                            is_producer ? peer : rank_, id, slot_bytes, slots);
}

void RecordingEndpoint::abort(std::string reason) {
  if (!aborted_) reason_ = std::move(reason);
  aborted_ = true;
}

void RecordingEndpoint::record(std::string line) {
  if (aborted_) throw Aborted(reason_);
  log_.push_back(std::move(line));
}

}  // namespace mw::comm

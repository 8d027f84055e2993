#include <array>
#include <deque>

#include "pipeline/schedules/dual_pipe.h"

namespace mw::pipeline {
namespace {

class Rank {
 public:
  Rank(DualStream near, DualStream far) : streams_{near, far} {}

  // `stream`: 0 near, 1 far.
  void f(int32_t stream) { add(ActionKind::kF, stream, 0); }
  void b(int32_t stream) { add(ActionKind::kB, stream, 1); }
  // An I whose W comes later, in the order of the I.
  void i(int32_t stream) {
    add(ActionKind::kI, stream, 1);
    waiting_.push_back(actions_.back());
  }
  void w() {
    Action action = waiting_.front();
    waiting_.pop_front();
    action.kind = ActionKind::kW;
    actions_.push_back(action);
  }
  // F of one stream beside B of the other.
  void f_and_b(int32_t forward, int32_t backward) {
    const auto at = static_cast<int32_t>(actions_.size());
    f(forward);
    b(backward);
    actions_[static_cast<size_t>(at)].paired_with = at + 1;
    actions_[static_cast<size_t>(at) + 1].paired_with = at;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(ActionKind kind, int32_t stream, size_t row) {
    const DualStream& of = streams_[static_cast<size_t>(stream)];
    const int32_t microbatch = of.first + done_[row][static_cast<size_t>(stream)]++;
    actions_.push_back(action_of(kind, of.stage, microbatch, of.replica));
  }

  std::array<DualStream, 2> streams_;
  std::array<std::array<int32_t, 2>, 2> done_{};  // [F, B][stream]
  std::deque<Action> waiting_;
  std::vector<Action> actions_;
};

}  // namespace

std::vector<Action> dual_pipe_order(int32_t half, int32_t depth, int32_t count, DualStream near,
                                    DualStream far) {
  Rank rank(near, far);
  const int32_t outer = half - depth - 1, inner = depth + 1;
  for (int32_t i = 0; i < 2 * outer; ++i) rank.f(0);
  for (int32_t i = 0; i < inner; ++i) rank.f(0), rank.f(1);
  for (int32_t i = 0; i < outer; ++i) rank.i(1), rank.w(), rank.f(1);
  for (int32_t i = 0; i < count - 2 * half + inner; ++i) {
    // The innermost rank's first backward has nothing to overlap with yet: its far forward has just
    // ended.
    if (i == 0 && outer == 0) {
      rank.f(0), rank.b(1);
    } else {
      rank.f_and_b(0, 1);
    }
    rank.f_and_b(1, 0);
  }
  for (int32_t i = 0; i < outer; ++i) rank.b(1), rank.f_and_b(1, 0);
  for (int32_t i = 0; i < 2 * inner; ++i) {
    const int32_t stream = i % 2 == 0 ? 1 : 0;
    if (i < inner) {
      rank.b(stream);
    } else {
      rank.i(stream);
    }
  }
  for (int32_t i = 0; i < outer; ++i) rank.w(), rank.i(0);
  for (int32_t i = 0; i < inner; ++i) rank.w();
  return rank.take();
}

}  // namespace mw::pipeline

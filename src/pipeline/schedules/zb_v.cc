// ZB-V [Qi 2024, 2405.15362; the order is torch.distributed.pipelining's]: two chunks a rank,
// folded, so that the first rank has the first and the last stage. With f = b = w there is no
// bubble without a flush, at the memory of 1F1B.
//
// Fewer microbatches than 2 p - 1 do not fill the pipeline: then the order is that of 2 p - 1
// without the microbatches that are not there.
#include <algorithm>
#include <array>

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {
namespace {

// One rank's order, of the first `kept` microbatches of it; F0 is a forward of its first chunk, F1
// of its second, and so on.
class ZbVRank {
 public:
  ZbVRank(int32_t ranks, int32_t microbatches, int32_t kept, int32_t rank)
      : p_(ranks), m_(microbatches), kept_(kept), r_(rank), stage_{rank, 2 * ranks - 1 - rank} {}

  std::vector<Action> order() {
    for (int32_t i = 0; i < 2 * (p_ - r_) - 1; ++i) f(0);
    for (int32_t i = 0; i < r_; ++i) f(1), f(0);
    for (int32_t i = 0; i < p_ - r_; ++i) f(1), i_w(1);
    while (next_[0][1] < m_ || next_[0][0] < m_) {
      if (next_[0][0] < m_) f(0);
      i_w(0);
      if (next_[0][1] < m_) f(1), i_w(1);
    }
    for (int32_t i = 0; i < r_; ++i) add(ActionKind::kI, 0), add(ActionKind::kI, 1);
    for (int32_t i = 0; i < p_ - r_; ++i) i_w(0);
    while (next_[2][1] < m_) add(ActionKind::kW, 1);
    while (next_[2][0] < m_) add(ActionKind::kW, 0);
    return std::move(actions_);
  }

 private:
  void f(int32_t chunk) { add(ActionKind::kF, chunk); }
  void i_w(int32_t chunk) {
    add(ActionKind::kI, chunk);
    add(ActionKind::kW, chunk);
  }
  void add(ActionKind kind, int32_t chunk) {
    const size_t row = kind == ActionKind::kF ? 0 : kind == ActionKind::kI ? 1 : 2;
    const auto c = static_cast<size_t>(chunk);
    const int32_t microbatch = next_[row][c]++;
    if (microbatch < kept_) actions_.push_back(action_of(kind, stage_[c], microbatch));
  }

  int32_t p_, m_, kept_, r_;
  std::array<int32_t, 2> stage_;
  std::array<std::array<int32_t, 2>, 3> next_{};  // [F, I, W][chunk]: its next microbatch
  std::vector<Action> actions_;
};

Schedule make_zb_v(const ScheduleRequest& request) {
  const int32_t filling = std::max(request.microbatches, 2 * request.ranks - 1);
  return rank_by_rank(request, folded_placement(request.ranks, 2), [&](int32_t rank) {
    return ZbVRank(request.ranks, filling, request.microbatches, rank).order();
  });
}

}  // namespace

extern const ScheduleKind kZbV = {
    .name = "zb-v",
    .summary = "zero bubble on a folded placement, with the memory of 1f1b",
    .since = 202401,
    .chunks = kTwoChunks,
    .options = {},
    .check = nullptr,
    .make = make_zb_v,
    .split_backward = true,
    .variant = {.same_memory = "1f1b"}};

}  // namespace mw::pipeline

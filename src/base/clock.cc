#include "base/clock.h"

#include <chrono>

namespace mw {
namespace {

class SteadyClock : public Clock {
 public:
  Seconds now() const override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return Seconds(std::chrono::duration<double>(since).count());
  }
};

}  // namespace

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

}  // namespace mw

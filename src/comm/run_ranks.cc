#include "comm/run_ranks.h"

#include <fmt/core.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread.h"

namespace mw::comm {
namespace {

// What the ranks threw: the first cause, or else the first Aborted.
class FirstError {
 public:
  // Call within a handler. Returns the text of a cause, "" for an Aborted.
  std::string take(RankId rank) {
    const std::exception_ptr error = std::current_exception();
    std::string text;
    bool aborted = false;
    try {
      std::rethrow_exception(error);
    } catch (const Aborted&) {
      aborted = true;
    } catch (const std::exception& e) {
      text = fmt::format("rank {}: {}", rank.value, e.what());
    } catch (...) {
      text = fmt::format("rank {}: an exception that is no std::exception", rank.value);
    }
    std::lock_guard lock(mutex_);
    if (!error_ || (aborted_ && !aborted)) {
      error_ = error;
      rank_ = rank;
      aborted_ = aborted;
    }
    return text;
  }

  void rethrow() const {
    if (!error_) return;
    const std::string rank = fmt::format("rank {}: ", rank_.value);
    try {
      std::rethrow_exception(error_);
    } catch (const Aborted&) {
      throw;
    } catch (const Error& e) {
      std::vector<std::string> findings = e.findings();
      for (std::string& finding : findings) finding = rank + finding;
      throw Error(std::move(findings));
    } catch (const CheckFailure& e) {
      throw CheckFailure(rank + e.what());
    } catch (const std::exception& e) {
      throw RunError(rank + e.what());
    } catch (...) {
      throw RunError(rank + "an exception that is no std::exception");
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  RankId rank_;
  bool aborted_ = false;
};

}  // namespace

void run_ranks(ThreadWorld& world, const std::function<void(Endpoint&)>& fn) {
  FirstError first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(world.size()));
  const auto stop = [&world, &first](RankId rank) {  // call within a handler
    const std::string cause = first.take(rank);
    if (!cause.empty()) world.abort(cause);
  };
  for (int r = 0; r < world.size(); ++r) {
    const RankId rank(r);
    try {
      threads.push_back(start_thread([&world, &fn, &stop, rank] {
        try {
          fn(world.endpoint(rank));
        } catch (...) {
          stop(rank);
        }
      }));
    } catch (const RunError&) {  // those that have started would wait for it
      stop(rank);
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

}  // namespace mw::comm

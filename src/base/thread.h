// Threads that the system may refuse.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace mw {

// Throws RunError where the system starts no more threads: its limit, or no memory for a stack.
template <typename Thread = std::thread, typename Work>
Thread start_thread(Work&& work) {
  try {
    return Thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw RunError(fmt::format("no further thread can be started: {}", error.code().message()));
  }
}

}  // namespace mw

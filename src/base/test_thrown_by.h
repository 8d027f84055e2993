// What a call throws, in tests of messages.
#pragma once

#include <string>

#include "base/error.h"

namespace mw::test {

// The text of the Error that `call` throws; "no error" where it throws none.
inline std::string thrown_by(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace mw::test

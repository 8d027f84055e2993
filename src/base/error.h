// What a user can repair is an Error; what only a bug of ours can cause is an MW_CHECK.
//
// The library never prints, exits or aborts. An Error may carry several findings, so that all that
// is wrong with one configuration is reported together.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace mw {

// Something in the input is wrong. what() is the findings, one a line.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
  explicit Error(std::vector<std::string> findings);
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  std::vector<std::string> findings_;
};

// The run failed though the input was right (a rank threw, a stall, a full disk): exit code 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A condition of our own does not hold. what() names the place, the condition and the values.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Collects findings about one input; throw_if_any() throws them together.
class Diagnostics {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    findings_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void absorb(const Error& error);
  bool empty() const { return findings_.empty(); }
  const std::vector<std::string>& findings() const { return findings_; }
  // The first so many; where there are more, a last one says so.
  std::vector<std::string> first(size_t most) const;
  void throw_if_any() const;

 private:
  std::vector<std::string> findings_;
};

// Runs it, and takes the Error that it throws as findings. Whether it threw none.
template <typename F>
bool attempt(Diagnostics& diagnostics, F&& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    diagnostics.absorb(error);
    return false;
  }
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);
}  // namespace detail

// MW_CHECK(condition, "format", values…): throws CheckFailure. Stays in release builds.
#define MW_CHECK(condition, ...)                                                              \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::mw::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace mw

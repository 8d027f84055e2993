#include "base/error.h"

#include <cstring>

namespace mw {
namespace {

std::string joined(const std::vector<std::string>& findings) {
  std::string text;
  for (const std::string& finding : findings) {
    if (!text.empty()) text += '\n';
    text += finding;
  }
  return text;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(message), findings_{message} {}

Error::Error(std::vector<std::string> findings)
    : std::runtime_error(joined(findings)), findings_(std::move(findings)) {}

void Diagnostics::absorb(const Error& error) {
  findings_.insert(findings_.end(), error.findings().begin(), error.findings().end());
}

std::vector<std::string> Diagnostics::first(size_t most) const {
  if (findings_.size() <= most) return findings_;
  std::vector<std::string> found(findings_.begin(),
                                 findings_.begin() + static_cast<std::ptrdiff_t>(most));
  found.emplace_back("and more like these");
  return found;
}

void Diagnostics::throw_if_any() const {
  if (!findings_.empty()) throw Error(findings_);
}

namespace detail {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  const char* src = std::strstr(file, "src/");
  throw CheckFailure(fmt::format("{}:{}: check failed: {}{}{}", src ? src : file, line, condition,
                                 values.empty() ? "" : ": ", values));
}

}  // namespace detail
}  // namespace mw

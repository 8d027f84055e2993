// Name: a short text that comes again and again (an axis of a mesh, a dimension of a model), kept
// once in the process. A copy is a pointer, and so lists of names, of which a program has tens of
// thousands, are copied without taking memory.
#pragma once

#include <absl/container/inlined_vector.h>
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <concepts>
#include <string>
#include <string_view>

namespace mw {

class Name {
 public:
  Name();                                                          // ""
  Name(std::string_view text);                                     // NOLINT: a text is a name.
  Name(const std::string& text) : Name(std::string_view(text)) {}  // NOLINT
  Name(const char* text) : Name(std::string_view(text)) {}         // NOLINT

  const std::string& str() const { return *text_; }
  operator const std::string&() const { return *text_; }  // NOLINT: a name is a text.
  operator std::string_view() const { return *text_; }    // NOLINT
  bool empty() const { return text_->empty(); }

  friend bool operator==(Name a, Name b) { return a.text_ == b.text_; }
  friend std::strong_ordering operator<=>(Name a, Name b) {
    return a.text_ == b.text_ ? std::strong_ordering::equal : *a.text_ <=> *b.text_;
  }
  template <typename Text>
    requires(!std::same_as<Text, Name> && std::convertible_to<const Text&, std::string_view>)
  friend bool operator==(Name a, const Text& b) {
    return *a.text_ == std::string_view(b);
  }

 private:
  const std::string* text_;
};

// Two of them are held in place.
using Names = absl::InlinedVector<Name, 2>;
template <typename Predicate>
void erase_if(Names& names, Predicate predicate) {
  names.erase(std::remove_if(names.begin(), names.end(), predicate), names.end());
}
// How many there were.
inline size_t erase(Names& names, Name name) {
  const size_t before = names.size();
  names.erase(std::remove(names.begin(), names.end(), name), names.end());
  return before - names.size();
}
inline std::strong_ordering operator<=>(const Names& a, const Names& b) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
}
std::string join(const Names& names, std::string_view separator);

}  // namespace mw

template <>
struct fmt::formatter<mw::Name> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(mw::Name name, Context& context) const {
    return fmt::formatter<std::string_view>::format(name.str(), context);
  }
};

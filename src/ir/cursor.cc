#include "ir/cursor.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace mw::ir {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool in_word(char c) {
  return is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '+' || c == '/';
}

}  // namespace

void Cursor::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || (text_[at_] >= '\t' && text_[at_] <= '\r')))
    ++at_;
}

bool Cursor::at_end() {
  skip_space();
  return at_ == text_.size();
}

char Cursor::peek() { return at_end() ? '\0' : text_[at_]; }

bool Cursor::accept(std::string_view token) {
  skip_space();
  if (!starts_with(text_.substr(at_), token)) return false;
  const size_t end = at_ + token.size();
  if (in_word(token.back()) && end < text_.size() && in_word(text_[end])) return false;
  at_ = end;
  return true;
}

void Cursor::expect(std::string_view token) {
  if (!accept(token)) fail(fmt::format("'{}'", token));
}

std::string Cursor::word() {
  skip_space();
  size_t end = at_;
  while (end < text_.size() && in_word(text_[end])) ++end;
  if (end == at_) fail("a word");
  std::string word(text_.substr(at_, end - at_));
  at_ = end;
  return word;
}

std::string Cursor::name() {
  if (peek() != '"') {
    if (!is_letter(peek())) fail("a name");
    return word();
  }
  std::string name;
  size_t i = at_ + 1;
  for (; i < text_.size() && text_[i] != '"'; ++i) {
    if (text_[i] != '\\') {
      name += text_[i];
      continue;
    }
    const char escaped = ++i < text_.size() ? text_[i] : '\0';
    if (escaped == 'u' && i + 4 < text_.size()) {
      // quoted() writes only control characters so.
      name += static_cast<char>(std::stoi(std::string(text_.substr(i + 1, 4)), nullptr, 16));
      i += 4;
      continue;
    }
    constexpr std::string_view kFrom = "nrtbf", kTo = "\n\r\t\b\f";
    const size_t which = kFrom.find(escaped);
    name += which == std::string_view::npos ? escaped : kTo[which];
  }
  if (i == text_.size()) fail("a closing '\"'");
  at_ = i + 1;
  return name;
}

int64_t Cursor::integer() {
  const size_t start = mark();
  const auto number = parse_int64(in_word(peek()) ? word() : "");
  if (!number) fail_at(start, "an integer");
  return *number;
}

double Cursor::number() {
  const size_t start = mark();
  const auto number = parse_double(in_word(peek()) ? word() : "");
  if (!number) fail_at(start, "a number");
  return *number;
}

bool Cursor::number_next() { return is_digit(peek()) || peek() == '-'; }

int Cursor::line() const {
  return 1 +
         static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n'));
}

size_t Cursor::mark() {
  skip_space();
  return at_;
}

void Cursor::fail_at(size_t mark, std::string_view expected, std::string_view hint) {
  at_ = mark;
  skip_space();
  const std::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_).substr(0, 24);
  throw_error("{}, line {}: expected {}, found {}{}", what_, line(), expected,
              at_ == text_.size() ? "the end" : fmt::format("'{}'", trim(rest)), hint);
}

std::string written_name(std::string_view name) {
  const bool bare = !name.empty() && is_letter(name.front()) && name != "_" &&
                    std::all_of(name.begin(), name.end(), in_word);
  return bare ? std::string(name) : quoted(name);
}

}  // namespace mw::ir

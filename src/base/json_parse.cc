#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace mw {
namespace {

constexpr int kDeepest = 200;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Json parse() {
    at_ = text_.size() - without_bom(text_).size();
    Json json = value(0);
    skip_space();
    if (at_ < text_.size()) fail("the end of the file");
    return json;
  }

 private:
  [[noreturn]] void fail_at(size_t at, std::string_view message) const {
    const std::string_view before = text_.substr(0, at);
    const size_t line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    throw_error("{}:{}:{}: {}", file_, line, at - line_start + 1, message);
  }

  // Something else than what stands here must be here.
  [[noreturn]] void fail(std::string_view must_be) const {
    std::string is = "the end of the file";
    if (at_ < text_.size()) {
      size_t end = at_;
      while (end < text_.size() && end < at_ + 20 && is_word(text_[end])) ++end;
      if (end == at_) end = at_ + std::max<size_t>(1, utf8_length(text_.substr(at_)));
      is = quoted(text_.substr(at_, end - at_));
    }
    fail_at(at_, fmt::format("must be {}, is {}", must_be, is));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    const size_t end = at_ + word.size();
    if (end < text_.size() && is_word(text_[end])) return false;
    at_ = end;
    return true;
  }

  Json value(int depth) {
    if (depth > kDeepest) fail_at(at_, fmt::format("more than {} levels deep", kDeepest));
    skip_space();
    const char c = peek();
    if (c == '{') return object(depth);
    if (c == '[') return array(depth);
    if (c == '"') return string();
    if (c == '-' || is_digit(c)) return number();
    if (take_word("true")) return true;
    if (take_word("false")) return false;
    if (take_word("null")) return nullptr;
    fail("a JSON value");
  }

  Json object(int depth) {
    JsonObject object;
    std::unordered_set<std::string> keys;
    ++at_;
    skip_space();
    if (take('}')) return object;
    while (true) {
      skip_space();
      const size_t key_at = at_;
      if (peek() != '"')
        fail(object.empty() ? "a key in double quotes or '}'" : "a key in double quotes");
      std::string key = string();
      if (!keys.insert(key).second)
        fail_at(key_at, fmt::format("the key {} stands twice", quoted(key)));
      skip_space();
      if (!take(':')) fail(fmt::format("':' after the key {}", quoted(key)));
      object.append(std::move(key), value(depth + 1));
      skip_space();
      if (take('}')) return object;
      if (!take(',')) fail("',' or '}'");
    }
  }

  Json array(int depth) {
    JsonArray array;
    ++at_;
    skip_space();
    if (take(']')) return array;
    while (true) {
      array.push_back(value(depth + 1));
      skip_space();
      if (take(']')) return array;
      if (!take(',')) fail("',' or ']'");
    }
  }

  uint32_t hex4() {
    uint32_t code = 0;
    const char* begin = text_.data() + at_;
    const size_t have = std::min<size_t>(4, text_.size() - at_);
    const auto [end, error] = std::from_chars(begin, begin + have, code, 16);
    if (error != std::errc() || end != begin + 4) fail("four hex digits after \\u");
    at_ += 4;
    return code;
  }

  void escape(std::string& out) {
    const size_t start = at_ - 1;
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const size_t index = at_ < text_.size() ? kFrom.find(text_[at_]) : std::string::npos;
    if (index != std::string::npos) {
      ++at_;
      out += kTo[index];
      return;
    }
    if (!take('u')) fail("one of \"\\/bfnrtu after a backslash");
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xE000) {
      uint32_t low = 0;
      if (code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
        at_ += 2;
        low = hex4();
      }
      if (low < 0xDC00 || low > 0xDFFF) fail_at(start, "half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
  }

  std::string string() {
    const size_t start = at_++;
    std::string out;
    while (true) {
      if (at_ >= text_.size()) fail_at(start, "the string has no end");
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20)
        fail_at(at_, "a control character in a string; escape it");
      if (c == '\\') {
        ++at_;
        escape(out);
        continue;
      }
      const size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail_at(at_, "not UTF-8");
      out += text_.substr(at_, length);
      at_ += length;
    }
  }

  void digits() {
    if (!is_digit(peek())) fail("a digit");
    while (is_digit(peek())) ++at_;
  }

  Json number() {
    const size_t start = at_;
    take('-');
    if (!take('0')) digits();
    bool integer = true;
    if (take('.')) {
      integer = false;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const std::string_view text = text_.substr(start, at_ - start);
    if (is_word(peek())) fail_at(start, fmt::format("no JSON number: {}{}", text, peek()));
    if (integer) {
      if (const auto number = parse_int64(text)) return *number;
    }
    const auto number = parse_double(text);
    if (!number) fail_at(start, fmt::format("{} does not fit a float of 64 bits", text));
    return *number;
  }

  std::string_view text_;
  std::string_view file_;
  size_t at_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view file) { return Parser(text, file).parse(); }

}  // namespace mw

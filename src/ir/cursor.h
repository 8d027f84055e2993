// Reads the text forms of ir: words, quoted names, numbers and punctuation, whatever the white
// space. Private to room ir.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mw::ir {

class Cursor {
 public:
  // `what` begins every error: "graph text".
  Cursor(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}

  bool at_end();
  // The next character that is not white space, '\0' at the end.
  char peek();
  // Reads `token` if it is next. A token of letters must be a whole word.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  // Letters, digits and _ . - + /.
  std::string word();
  // A word that begins with a letter or '_', or a quoted text.
  std::string name();
  int64_t integer();
  double number();
  // Whether a number is next (a name never begins with a digit).
  bool number_next();
  // Where the next token begins, for fail_at.
  size_t mark();
  // Throws Error "graph text, line 3: expected …, found '…'" and the hint.
  [[noreturn]] void fail(std::string_view expected) { fail_at(at_, expected); }
  [[noreturn]] void fail_at(size_t mark, std::string_view expected, std::string_view hint = "");
  // The line that is read now, from 1.
  int line() const;

 private:
  void skip_space();
  std::string_view text_;
  std::string what_;
  size_t at_ = 0;
};

// As Cursor::name reads it: bare where that is possible, otherwise quoted.
std::string written_name(std::string_view name);

}  // namespace mw::ir

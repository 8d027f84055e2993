// Small functions on text: splitting, strict numbers, near misses, sizes for people.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// Where a long text goes, part by part.
using TextSink = std::function<void(std::string_view)>;

// "a,,b" at ',' is {"a", "", "b"}; "" is {""}. The views point into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);
// The lines of `text` without their '\n' or "\r\n"; a last line without an end counts, an empty one
// does not.
std::vector<std::string_view> split_lines(std::string_view text);
// The words of `text` between runs of white space; no word is empty.
std::vector<std::string_view> split_words(std::string_view text);

std::string join(std::span<const std::string> parts, std::string_view separator);
std::string join(std::span<const std::string_view> parts, std::string_view separator);

// Without the UTF-8 byte order mark that some editors put at the head of a file.
std::string_view without_bom(std::string_view text);
// Without the white space at both ends.
std::string_view trim(std::string_view text);
bool starts_with(std::string_view text, std::string_view prefix);
bool ends_with(std::string_view text, std::string_view suffix);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
// ASCII only.
std::string to_lower(std::string_view text);

// The whole text must be the number: no white space, no leading '+', no trailing rest; nullopt also
// where the number does not fit. parse_double takes "1e-3", "inf" and "nan".
std::optional<int64_t> parse_int64(std::string_view text);
std::optional<double> parse_double(std::string_view text);

// Levenshtein distance where a swap of two neighbours counts as one edit.
int edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, the earlier of two; where none is near (more than a third of the word's
// letters wrong, case aside) up to four of which the word begins a part.
std::vector<std::string> near_misses(std::string_view word,
                                     std::span<const std::string> candidates);
// ", did you mean 'x-y' or 'y-z'?" of them; "" where there are none.
std::string did_you_mean(const std::vector<std::string>& near);
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

// "512 B", "1.50 KiB", "18.6 GiB": three digits, binary units.
std::string format_bytes(int64_t bytes);
// "950 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 05 s".
std::string format_seconds(double seconds);
// "999", "12.3 k", "1.75 G", "4.2 P": three digits, decimal units; append the unit's own name.
std::string format_si(double number);
// "4.1 %" of 0.041; what rounds to no more than zero is "0.0 %", never "-0.0 %".
std::string format_percent(double share, int decimals = 1);
// The same with its sign: "+4.1 %", "-4.1 %", "+0.0 %".
std::string format_change(double share);

// The shortest text that parses back to the same bits; always with a '.', an 'e' or "inf"/"nan", so
// that it reads as a float: "1.0", "0.1", "1e-07".
std::string format_float(double number);
std::string format_float(float number);

// What a message shows of a text that somebody gave: its first 60 bytes and "…" where it is longer;
// no character is cut in two.
std::string clipped(std::string_view text);
// With "\x1b" in place of such a character: what a terminal would not show, or would obey, and
// bytes that are no UTF-8.
std::string printable(std::string_view text);

// In double quotes, with ", \ and control characters escaped as in JSON; U+FFFD in place of every
// byte that is no UTF-8.
std::string quoted(std::string_view text);

}  // namespace mw

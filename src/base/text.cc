#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/core.h>

#include "base/utf8.h"

namespace mw {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

template <typename Part>
std::string join_parts(std::span<const Part> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

template <typename Candidate>
std::vector<std::string> nearest(std::string_view word, std::span<const Candidate> candidates) {
  const std::string lower = to_lower(word);
  const int allowed = std::max<int>(1, static_cast<int>(word.size()) / 3);
  int best = allowed + 1;
  std::string_view best_candidate;
  for (const Candidate& candidate : candidates) {
    const int distance = edit_distance(lower, to_lower(candidate));
    // A word with every letter wrong is no near miss, however short it is.
    if (distance < best && distance < static_cast<int>(std::max(word.size(), candidate.size()))) {
      best = distance;
      best_candidate = candidate;
    }
  }
  if (best <= allowed) return {std::string(best_candidate)};
  // An abbreviation, or one of the words of a name such as "a100-80gb-megatron".
  constexpr size_t kFewestLetters = 3, kMostNames = 4;
  std::vector<std::string> longer;
  for (const Candidate& candidate : candidates) {
    const bool begins_one = ("-" + to_lower(candidate)).find("-" + lower) != std::string::npos;
    if (lower.size() < kFewestLetters || longer.size() == kMostNames || !begins_one) continue;
    longer.emplace_back(candidate);
  }
  return longer;
}

template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

template <typename Float>
std::string shortest(Float number) {
  std::array<char, 40> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  std::string text(buffer.data(), end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// Three significant digits of a number below 1024.
std::string three_digits(double number) {
  if (number < 9.995) return fmt::format("{:.2f}", number);
  if (number < 99.95) return fmt::format("{:.1f}", number);
  return fmt::format("{:.0f}", number);
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t at = text.find('\n');
    std::string_view line = text.substr(0, at);
    if (at != std::string_view::npos && ends_with(line, "\r")) line.remove_suffix(1);
    lines.push_back(line);
    if (at == std::string_view::npos) break;
    text.remove_prefix(at + 1);
  }
  return lines;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    words.push_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return join_parts(parts, separator);
}

std::string join(std::span<const std::string_view> parts, std::string_view separator) {
  return join_parts(parts, separator);
}

std::string_view without_bom(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (starts_with(text, kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix);
}
bool ends_with(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string result;
  while (true) {
    const size_t at = text.find(from);
    result += text.substr(0, at);
    if (at == std::string_view::npos) return result;
    result += to;
    text.remove_prefix(at + from.size());
  }
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::optional<int64_t> parse_int64(std::string_view text) { return parse_whole<int64_t>(text); }
std::optional<double> parse_double(std::string_view text) { return parse_whole<double>(text); }

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment with three rows: i-2, i-1 and i.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string> near_misses(std::string_view word,
                                     std::span<const std::string> candidates) {
  return nearest(word, candidates);
}

std::string did_you_mean(const std::vector<std::string>& near) {
  std::string text;
  for (size_t i = 0; i < near.size(); ++i)
    text += fmt::format("{}'{}'", i == 0 ? "" : i + 1 == near.size() ? " or " : ", ", near[i]);
  return text.empty() ? "" : fmt::format(", did you mean {}?", text);
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  return did_you_mean(nearest(word, candidates));
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  return did_you_mean(nearest(word, candidates));
}

std::string format_bytes(int64_t bytes) {
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double number = std::abs(static_cast<double>(bytes)) / 1024;
  size_t unit = 0;
  // 1023.5 would print as 1024.
  for (; number >= 1023.5 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  return fmt::format("{}{} {}", bytes < 0 ? "-" : "", three_digits(number), kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return format_float(seconds);
  if (seconds < 0) return "-" + format_seconds(-seconds);
  if (seconds == 0) return "0 s";
  if (seconds < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  const double whole = std::round(seconds);
  const double minutes = std::floor(whole / 60);
  if (minutes < 60) return fmt::format("{:.0f} min {:02.0f} s", minutes, whole - 60 * minutes);
  const double hours = std::floor(minutes / 60);
  if (hours < 48) return fmt::format("{:.0f} h {:02.0f} min", hours, minutes - 60 * hours);
  const double days = seconds / 86400;
  return days < 1e6 ? fmt::format("{:.1f} days", days) : fmt::format("{:.3g} days", days);
}

std::string format_si(double number) {
  if (!std::isfinite(number)) return format_float(number);
  if (number < 0) return "-" + format_si(-number);
  if (number < 999.5) {
    return number == std::floor(number) ? fmt::format("{:.0f}", number) : three_digits(number);
  }
  constexpr std::array<std::string_view, 6> kUnits = {"k", "M", "G", "T", "P", "E"};
  number /= 1000;
  size_t unit = 0;
  for (; number >= 999.5 && unit + 1 < kUnits.size(); ++unit) number /= 1000;
  return fmt::format("{} {}", three_digits(number), kUnits[unit]);
}

static std::string percent(double share, int decimals, bool sign) {
  const std::string digits = fmt::format("{:.{}f}", std::abs(100 * share), decimals);
  const bool negative = share < 0 && digits.find_first_not_of("0.") != std::string::npos;
  return (negative ? "-" : sign ? "+" : "") + digits + " %";
}
std::string format_percent(double share, int decimals) { return percent(share, decimals, false); }
std::string format_change(double share) { return percent(share, 1, true); }

std::string format_float(double number) { return shortest(number); }
std::string format_float(float number) { return shortest(number); }

std::string clipped(std::string_view text) {
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest) return std::string(text);
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string printable(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const auto code = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(text.substr(i));
    if (code < 0x20 || code == 0x7F || length == 0) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return result;
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x80) {
      const size_t length = utf8_length(text.substr(i));
      result += length == 0 ? "\uFFFD" : text.substr(i, length);
      i += std::max<size_t>(length, 1) - 1;
      continue;
    }
    switch (c) {
      case '"': result += "\\\""; break;
      case '\\': result += "\\\\"; break;
      case '\n': result += "\\n"; break;
      case '\r': result += "\\r"; break;
      case '\t': result += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          result += c;
        }
    }
  }
  return result + "\"";
}

}  // namespace mw

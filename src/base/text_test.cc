#include "base/text.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace mw;
using Views = std::vector<std::string_view>;

TEST_CASE("split keeps empty parts, split_words drops them") {
  CHECK(split("a,,b", ',') == Views{"a", "", "b"});
  CHECK(split("", ',') == Views{""});
  CHECK(split(",", ',') == Views{"", ""});
  CHECK(split_words("  F0  B1\tW2\n") == Views{"F0", "B1", "W2"});
  CHECK(split_words(" ").empty());
  CHECK(split_lines("a\r\nb\n\nc") == Views{"a", "b", "", "c"});
  CHECK(split_lines("a\n") == Views{"a"});
  CHECK(split_lines("").empty());
}

TEST_CASE("join, trim and replace") {
  CHECK(join(std::vector<std::string>{"a", "b"}, ", ") == "a, b");
  CHECK(join(split("a b c", ' '), "-") == "a-b-c");
  CHECK(join(std::vector<std::string>{}, ", ") == "");
  CHECK(trim(" \t x y\n") == "x y");
  CHECK(trim("  ") == "");
  CHECK(replace_all("aXbX", "X", "--") == "a--b--");
  CHECK(starts_with("model.safetensors", "model"));
  CHECK_FALSE(ends_with("a", "ba"));
}

TEST_CASE("numbers are parsed whole or not at all") {
  CHECK(parse_int64("-12") == -12);
  CHECK(parse_int64("9223372036854775807") == std::numeric_limits<int64_t>::max());
  for (const char* bad : {"", "12 ", " 12", "1.5", "0x1", "+1", "9223372036854775808", "1e3"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_int64(bad).has_value());
  }
  CHECK(parse_double("1e-3") == 1e-3);
  CHECK(parse_double("-0.5") == -0.5);
  CHECK(std::isinf(*parse_double("inf")));
  for (const char* bad : {"", "1.5x", " 1", "1e999", "0x10", "one"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_double(bad).has_value());
  }
}

TEST_CASE("a near miss is named, a far one is not") {
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("heads", "haeds") == 1);
  CHECK(edit_distance("", "abc") == 3);
  const std::vector<std::string> keys = {"n_head", "n_layer", "n_embd", "tp"};
  CHECK(did_you_mean("n_heads", keys) == ", did you mean 'n_head'?");
  CHECK(did_you_mean("N_LAYER", keys) == ", did you mean 'n_layer'?");
  CHECK(did_you_mean("pt", keys) == ", did you mean 'tp'?");
  CHECK(did_you_mean("n_h", keys) == ", did you mean 'n_head'?");
  CHECK(did_you_mean("x", keys) == "");
  const std::vector<std::string> names = {"a100-80gb-megatron", "b200-llm", "h100-80gb-megatron",
                                          "none"};
  CHECK(did_you_mean("megatron", names) ==
        ", did you mean 'a100-80gb-megatron' or 'h100-80gb-megatron'?");
  CHECK(did_you_mean("B200", names) == ", did you mean 'b200-llm'?");
  CHECK(did_you_mean("tron", names) == "");
  CHECK(did_you_mean("dropout", keys) == "");
  CHECK(did_you_mean("", keys) == "");
}

TEST_CASE("sizes and times read well at every magnitude") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(-2048) == "-2.00 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1.00 MiB");
  CHECK(format_bytes(20'000'000'000) == "18.6 GiB");
  CHECK(format_bytes(std::numeric_limits<int64_t>::max()) == "8.00 EiB");
  CHECK(format_seconds(0) == "0 s");
  CHECK(format_seconds(9.5e-7) == "950 ns");
  CHECK(format_seconds(1.234e-5) == "12.3 us");
  CHECK(format_seconds(0.0456) == "45.6 ms");
  CHECK(format_seconds(0.9999) == "1.00 s");
  CHECK(format_seconds(125) == "2 min 05 s");
  CHECK(format_seconds(3 * 3600 + 60) == "3 h 01 min");
  CHECK(format_seconds(84 * 86400.0) == "84.0 days");
  CHECK(format_seconds(2e9 * 86400.0) == "2e+09 days");
  CHECK(format_si(999) == "999");
  CHECK(format_si(0.25) == "0.25");
  CHECK(format_si(12345) == "12.3 k");
  CHECK(format_si(1.746e11) == "175 G");
}

TEST_CASE("no percentage is a negative zero") {
  struct Case {
    double share;
    const char *percent, *change;
  };
  for (const Case& c : {Case{0.0412, "4.1 %", "+4.1 %"}, Case{-0.0412, "-4.1 %", "-4.1 %"},
                        Case{0, "0.0 %", "+0.0 %"}, Case{-0.0, "0.0 %", "+0.0 %"},
                        Case{0.0004, "0.0 %", "+0.0 %"}, Case{-0.0004, "0.0 %", "+0.0 %"},
                        Case{-0.0006, "-0.1 %", "-0.1 %"}, Case{12, "1200.0 %", "+1200.0 %"}}) {
    CAPTURE(c.share);
    CHECK(format_percent(c.share) == c.percent);
    CHECK(format_change(c.share) == c.change);
  }
  CHECK(format_percent(0.98765, 2) == "98.77 %");
  CHECK(format_percent(-0.004, 0) == "0 %");
  CHECK(format_percent(-0.00004, 2) == "0.00 %");
  CHECK(format_change(std::numeric_limits<double>::infinity()) == "+inf %");
  CHECK(format_change(-std::numeric_limits<double>::infinity()) == "-inf %");
}

TEST_CASE("floats keep every bit and read as floats") {
  CHECK(format_float(1.0) == "1.0");
  CHECK(format_float(0.1) == "0.1");
  CHECK(format_float(0.1f) == "0.1");
  CHECK(format_float(1e-7) == "1e-07");
  CHECK(format_float(-0.0) == "-0.0");
  CHECK(format_float(std::numeric_limits<double>::infinity()) == "inf");
  for (const double d : {1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.0, 1e22}) {
    CHECK(*parse_double(format_float(d)) == d);
  }
}

TEST_CASE("a message shows the beginning of a long text, in whole characters") {
  CHECK(clipped(std::string(60, 'a')) == std::string(60, 'a'));
  CHECK(clipped(std::string(61, 'a')) == std::string(60, 'a') + "…");
  CHECK(clipped(std::string(59, 'a') + "äb") == std::string(59, 'a') + "…");
  CHECK(clipped(std::string(1000, '[')) == std::string(60, '[') + "…");
}

TEST_CASE("a message shows control characters as numbers") {
  CHECK(printable(std::string_view("0F0\0\x1b[31m\x7f \xc3\xa4", 13)) ==
        "0F0\\x00\\x1b[31m\\x7f \xc3\xa4");
}

TEST_CASE("bytes that are no UTF-8 are numbers in a message and U+FFFD in JSON") {
  CHECK(printable("~ä€𝄞") == "~ä€𝄞");
  CHECK(quoted("~ä€𝄞") == "\"~ä€𝄞\"");
  CHECK(printable("a\xff\xc3") == "a\\xff\\xc3");
  CHECK(printable("\xe2\x82é") == "\\xe2\\x82é");  // a character cut in two
  CHECK(quoted("a\xff\"\xc3") == "\"a\uFFFD\\\"\uFFFD\"");
  CHECK(quoted("\xed\xa0\x80") == "\"\uFFFD\uFFFD\uFFFD\"");  // half of a surrogate pair
}

TEST_CASE("a byte order mark is no text") {
  CHECK(without_bom("\xEF\xBB\xBFx") == "x");
  CHECK(without_bom("x\xEF\xBB\xBF") == "x\xEF\xBB\xBF");
  CHECK(without_bom("") == "");
}

TEST_CASE("quoted text is one line") {
  CHECK(quoted("a\"b\\c\n\x01") == "\"a\\\"b\\\\c\\n\\u0001\"");
}

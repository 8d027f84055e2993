#include "cluster/measured.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "base/toml.h"

namespace mw::cluster {
namespace {

// What predict::outside_profile knows of a request.
constexpr std::array<std::string_view, 10> kRanges = {
    "hidden", "sequence", "microbatch", "devices", "tp", "pp", "dp", "cp", "experts", "zero"};
// As predict::precision_name tells them.
constexpr std::array<std::string_view, 5> kPrecisions = {"bf16", "f16", "f32", "fp8", "mxfp8"};

}  // namespace

void read_measured(JsonReader reader, Stack& stack) {
  for (const std::string& name : reader.keys()) {
    if (name == "precision") {
      stack.precisions = reader.strings(name);
      for (const std::string& one : stack.precisions) {
        if (std::find(kPrecisions.begin(), kPrecisions.end(), one) == kPrecisions.end())
          reader.fail(name, "'{}' is not one of {}", one, join(kPrecisions, ", "));
      }
      continue;
    }
    if (std::find(kRanges.begin(), kRanges.end(), name) == kRanges.end()) continue;
    const std::vector<double> ends = reader.numbers(name);
    if (ends.size() == 2 && 0 <= ends[0] && ends[0] <= ends[1] && std::isfinite(ends[1])) {
      stack.measured.push_back({name, ends[0], ends[1]});
    } else {
      reader.fail(name, "must be [least, most], from 0 on");
    }
  }
  for (const std::string_view name : kRanges) reader.ignore(name);
  reader.ignore("precision");
  reader.finish();
}

std::string measured_toml(const Stack& stack) {
  if (stack.measured.empty() && stack.precisions.empty()) return "";
  std::string text = "\n[measured]\n";
  for (const Stack::Range& range : stack.measured)
    text += fmt::format("{} = [{:.12g}, {:.12g}]\n", range.name, range.least, range.most);
  std::vector<std::string> names;
  for (const std::string& name : stack.precisions) names.push_back(quoted(name));
  if (!names.empty()) text += fmt::format("precision = [{}]\n", join(names, ", "));
  return text;
}

}  // namespace mw::cluster

#include "cluster/measured.h"

#include "base/text.h"
#include "base/toml.h"

namespace mw::cluster {

void read_measured(JsonReader reader, Stack& stack) {
  for (const std::string& name : reader.keys()) {
    if (name == "precision") {
      stack.precisions = reader.strings(name);
      continue;
    }
    const std::vector<double> ends = reader.numbers(name);
    if (ends.size() == 2 && ends[0] <= ends[1]) {
      stack.measured.push_back({name, ends[0], ends[1]});
    } else {
      reader.fail(name, "must be [least, most]");
    }
  }
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

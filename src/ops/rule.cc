// Text form of sharding rules.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "ops/op_def.h"

namespace mw::ops {
namespace {

class RuleParser {
 public:
  explicit RuleParser(const std::string& text) : text_(text) { index_of_.fill(-1); }

  ShardingRule parse(std::span<const ir::TensorType> operands,
                     std::span<const ir::TensorType> results,
                     std::initializer_list<std::pair<char, int64_t>> sizes) {
    const size_t arrow = text_.find("->");
    MW_CHECK(arrow != std::string::npos, "rule '{}' has no ->", text_);
    const std::string_view text = text_;
    rule_.operands = tensors(text.substr(0, arrow), operands.size());
    rule_.results = tensors(text.substr(arrow + 2), results.size());
    for (const auto& [name, size] : sizes) {
      if (const int index = index_of_[static_cast<unsigned char>(name)]; index >= 0)
        at(index).size = size;
    }
    read_sizes(rule_.operands, operands);
    read_sizes(rule_.results, results);
    solve_joined(rule_.operands, operands);
    solve_joined(rule_.results, results);
    mark_contracted();
    return std::move(rule_);
  }

 private:
  std::vector<ShardingRule::Dims> tensors(std::string_view text, size_t count) {
    std::vector<ShardingRule::Dims> tensors;
    if (count == 0) {
      MW_CHECK(trim(text).empty(), "rule '{}' names tensors that do not exist", text_);
      return tensors;
    }
    for (const std::string_view part : split(text, ',')) tensors.push_back(dims(part));
    MW_CHECK(tensors.size() == count, "rule '{}' has {} tensors, the op {}", text_, tensors.size(),
             count);
    return tensors;
  }

  ShardingRule::Dims dims(std::string_view text) {
    ShardingRule::Dims dims;
    bool joined = false, fixed = false, ignored = false;
    for (const char c : text) {
      if (c == '(') {
        joined = true;
        dims.emplace_back();
      } else if (c == ')') {
        joined = false;
      } else if (c == '[') {
        fixed = true;
      } else if (c == ']') {
        fixed = false;
      } else if (c == '~') {
        ignored = true;
      } else if (c != ' ') {
        if (!joined) dims.emplace_back();
        dims.back().push_back(factor(c, fixed || c == '.', ignored));
        ignored = false;
      }
    }
    return dims;
  }

  int factor(char name, bool fixed, bool ignored) {
    int& index = index_of_[static_cast<unsigned char>(name)];
    if (name == '.' || index < 0) {
      index = static_cast<int>(rule_.factors.size());
      rule_.factors.push_back(Factor{.name = name});
    }
    Factor& factor = rule_.factors[static_cast<size_t>(index)];
    if (fixed) factor.shardable = false;
    if (ignored) factor.ignored = true;
    return index;
  }

  Factor& at(int index) { return rule_.factors[static_cast<size_t>(index)]; }

  void read_sizes(const std::vector<ShardingRule::Dims>& tensors,
                  std::span<const ir::TensorType> types) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      MW_CHECK(tensors[t].size() == types[t].dims.size(), "rule '{}' does not fit {}", text_,
               ir::to_string(types[t]));
      for (size_t d = 0; d < tensors[t].size(); ++d) {
        if (tensors[t][d].size() != 1) continue;
        Factor& factor = at(tensors[t][d][0]);
        const int64_t size = types[t].dims[d].size;
        MW_CHECK(factor.size == 0 || factor.size == size, "rule '{}': factor {} is {} and {}",
                 text_, factor.name, factor.size, size);
        factor.size = size;
      }
    }
  }

  // A dimension of several factors, one of them of unknown size.
  void solve_joined(const std::vector<ShardingRule::Dims>& tensors,
                    std::span<const ir::TensorType> types) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t d = 0; d < tensors[t].size(); ++d) {
        int64_t rest = types[t].dims[d].size;
        Factor* unknown = nullptr;
        for (const int index : tensors[t][d]) {
          if (at(index).size > 0) {
            rest /= at(index).size;
          } else {
            MW_CHECK(unknown == nullptr, "rule '{}': two factors of unknown size in one dimension",
                     text_);
            unknown = &at(index);
          }
        }
        if (unknown != nullptr && tensors[t][d].size() > 1) unknown->size = rest;
      }
    }
  }

  void mark_contracted() {
    for (Factor& factor : rule_.factors) factor.contracted = !factor.ignored;
    for (const ShardingRule::Dims& dims : rule_.results) {
      for (const std::vector<int>& dim : dims) {
        for (const int index : dim) at(index).contracted = false;
      }
    }
  }

  std::string text_;
  ShardingRule rule_;
  std::array<int, 256> index_of_;
};

std::string dims_text(const ShardingRule& rule, const ShardingRule::Dims& dims) {
  std::vector<std::string> words;
  for (const std::vector<int>& dim : dims) {
    std::vector<std::string> names;
    for (const int index : dim) {
      const Factor& factor = rule.factors[static_cast<size_t>(index)];
      if (factor.ignored) {
        names.push_back(fmt::format("~{}", factor.name));
      } else if (factor.name == '.' || factor.shardable) {
        names.emplace_back(1, factor.name);
      } else {
        names.push_back(fmt::format("[{}]", factor.name));
      }
    }
    words.push_back(names.size() == 1 ? names[0] : "(" + join(names, " ") + ")");
  }
  return join(words, " ");
}

std::string tensors_text(const ShardingRule& rule, const std::vector<ShardingRule::Dims>& tensors) {
  std::vector<std::string> parts;
  for (const ShardingRule::Dims& dims : tensors) parts.push_back(dims_text(rule, dims));
  return join(parts, ", ");
}

}  // namespace

std::string ShardingRule::to_string() const {
  const std::string left = tensors_text(*this, operands), right = tensors_text(*this, results);
  std::string text = left;
  text += left.empty() ? "->" : " ->";
  if (!right.empty()) text += " " + right;
  return text;
}

ShardingRule make_rule(const std::string& text, std::span<const ir::TensorType> operands,
                       std::span<const ir::TensorType> results,
                       std::initializer_list<std::pair<char, int64_t>> sizes) {
  return RuleParser(text).parse(operands, results, sizes);
}

void set_reduction(ShardingRule& rule, ir::Reduction reduction) {
  for (Factor& factor : rule.factors) {
    if (factor.contracted) factor.reduction = reduction;
  }
}

void set_masked(ShardingRule& rule, char factor) {
  const auto named = std::find_if(rule.factors.begin(), rule.factors.end(),
                                  [&](const Factor& f) { return f.name == factor; });
  MW_CHECK(named != rule.factors.end(), "rule '{}' has no factor {}", rule.to_string(), factor);
  named->masked = true;
}

ShardingRule elementwise_rule(std::span<const ir::TensorType> operands,
                              std::span<const ir::TensorType> results) {
  MW_CHECK(!results.empty(), "an elementwise op has a result");
  const ir::TensorType& shape = results[0];
  ShardingRule rule;
  for (int d = 0; d < shape.rank(); ++d) {
    rule.factors.push_back(Factor{.name = static_cast<char>('a' + d), .size = shape.dim(d)});
  }
  const auto dims_of = [&](const ir::TensorType& type) {
    MW_CHECK(type.rank() == 0 || type.dims == shape.dims, "{} does not broadcast to {}",
             ir::to_string(type), ir::to_string(shape));
    ShardingRule::Dims dims;
    for (int d = 0; d < type.rank(); ++d) dims.push_back({d});
    return dims;
  };
  for (const ir::TensorType& type : operands) rule.operands.push_back(dims_of(type));
  for (const ir::TensorType& type : results) rule.results.push_back(dims_of(type));
  return rule;
}

}  // namespace mw::ops

#include "sharding/sharding.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/round.h"

namespace mw::sharding {
namespace {

std::string axes_text(const Axes& axes) {
  std::string text = "{";
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += ", ";
    text += '"' + axes[i].str() + '"';
  }
  return text + "}";
}

std::string_view reduction_name(ir::Reduction reduction) {
  switch (reduction) {
    case ir::Reduction::kSum: return "sum";
    case ir::Reduction::kMax: return "max";
    case ir::Reduction::kMin: return "min";
  }
  MW_CHECK(false, "reduction {}", static_cast<int>(reduction));
}

// A recursive-descent reader over the text form.
class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Sharding parse() {
    Sharding sharding;
    expect('[');
    if (!accept(']')) {
      do {
        sharding.dims.push_back(axes());
      } while (accept(','));
      expect(']');
    }
    if (accept_word("partial")) {
      if (accept('<')) {
        sharding.reduction = reduction();
        expect('>');
      }
      sharding.partial = axes();
      std::sort(sharding.partial.begin(), sharding.partial.end());
      // What is not partial has no reduction.
      if (!sharding.is_partial()) sharding.reduction = ir::Reduction::kSum;
    }
    skip_space();
    if (at_ != text_.size()) fail("the end");
    return sharding;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw_error(
        "sharding '{}', column {}: expected {}; a sharding looks like [{{\"dp\"}}, {{}}] "
        "partial{{\"tp\"}}",
        text_, at_ + 1, expected);
  }
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "'");
  }
  bool accept_word(const std::string& word) {
    skip_space();
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }
  ir::Reduction reduction() {
    if (accept_word("sum")) return ir::Reduction::kSum;
    if (accept_word("max")) return ir::Reduction::kMax;
    if (accept_word("min")) return ir::Reduction::kMin;
    fail("sum, max or min");
  }
  Axes axes() {
    Axes result;
    expect('{');
    if (accept('}')) return result;
    do {
      expect('"');
      const size_t end = text_.find('"', at_);
      if (end == std::string::npos) fail("a closing '\"'");
      result.push_back(text_.substr(at_, end - at_));
      at_ = end + 1;
    } while (accept(','));
    expect('}');
    return result;
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

bool Sharding::is_replicated() const {
  return partial.empty() &&
         std::all_of(dims.begin(), dims.end(), [](const Axes& a) { return a.empty(); });
}

Sharding Sharding::without_partial() const {
  Sharding whole;
  whole.dims = dims;
  return whole;
}

Sharding replicated(int rank) {
  Sharding sharding;
  sharding.dims.resize(static_cast<size_t>(rank));
  return sharding;
}

std::string to_string(const Sharding& sharding) {
  std::string text = "[";
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += axes_text(sharding.dims[i]);
  }
  text += "]";
  if (sharding.is_partial()) {
    text += " partial";
    if (sharding.reduction != ir::Reduction::kSum)
      text += fmt::format("<{}>", reduction_name(sharding.reduction));
    text += axes_text(sharding.partial);
  }
  return text;
}

Sharding parse_sharding(const std::string& text) { return Parser(text).parse(); }

Sharding normalized(const Sharding& sharding, const cluster::Mesh& mesh) {
  const auto drop = [&](const Axes& axes) {
    Axes kept;
    for (const Name axis : axes) {
      if (mesh.axis_size(axis) > 1) kept.push_back(axis);
    }
    return kept;
  };
  Sharding result;
  for (const Axes& axes : sharding.dims) result.dims.push_back(drop(axes));
  result.partial = drop(sharding.partial);
  std::sort(result.partial.begin(), result.partial.end());
  if (result.is_partial()) result.reduction = sharding.reduction;
  return result;
}

std::vector<std::string> findings(const Sharding& sharding, const ir::TensorType& type,
                                  const cluster::Mesh& mesh) {
  std::vector<std::string> found;
  if (static_cast<int>(sharding.dims.size()) != type.rank()) {
    found.push_back(fmt::format("sharding {} has {} dimensions, the value {} has {}",
                                to_string(sharding), sharding.dims.size(), ir::to_string(type),
                                type.rank()));
  }
  std::set<std::string> seen;
  const auto check = [&](const Axes& axes) {
    for (const Name axis : axes) {
      if (!mesh.has(axis)) {
        found.push_back(fmt::format("sharding {} names axis '{}', the mesh {} has no such axis",
                                    to_string(sharding), axis, cluster::to_string(mesh)));
      }
      if (!seen.insert(axis).second) {
        found.push_back(fmt::format("sharding {} uses axis '{}' twice", to_string(sharding), axis));
      }
    }
  };
  for (const Axes& axes : sharding.dims) check(axes);
  check(sharding.partial);
  return found;
}

int64_t shards(const Axes& axes, const cluster::Mesh& mesh) {
  int64_t n = 1;
  for (const Name axis : axes) n *= mesh.axis_size(axis);
  return n;
}

ir::TensorType local_type(const ir::TensorType& global, const Sharding& sharding,
                          const cluster::Mesh& mesh) {
  MW_CHECK(global.dims.size() == sharding.dims.size(), "{} with {}", ir::to_string(global),
           to_string(sharding));
  ir::TensorType local = global;
  for (size_t i = 0; i < local.dims.size(); ++i) {
    local.dims[i].size = ceil_div(global.dims[i].size, shards(sharding.dims[i], mesh));
  }
  return local;
}

bool is_padded(const ir::TensorType& global, const Sharding& sharding, int dim,
               const cluster::Mesh& mesh) {
  return global.dim(dim) % shards(sharding.dims[static_cast<size_t>(dim)], mesh) != 0;
}

}  // namespace mw::sharding

#include "ir/attributes.h"

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/core.h>

#include "base/text.h"
#include "ir/cursor.h"

namespace mw::ir {
namespace {

constexpr std::array<std::string_view, 3> kReductions = {"sum", "max", "min"};
constexpr std::array<std::string_view, 6> kDirections = {"eq", "ne", "lt", "le", "gt", "ge"};
constexpr std::array<std::string_view, 2> kDistributions = {"normal", "uniform"};

std::span<const std::string_view> names_of(Reduction) { return kReductions; }
std::span<const std::string_view> names_of(CompareAttrs::Direction) { return kDirections; }
std::span<const std::string_view> names_of(RandomAttrs::Distribution) { return kDistributions; }

// The fields of every struct, once for printing and parsing: f(name, member), or f.optional(name,
// member) for one that is not printed when it has its default value.
template <typename F>
void fields(const NoAttrs*, F&) {}
template <typename F, typename A = ConstantAttrs>
void fields(const ConstantAttrs*, F& f) {
  f("value", &A::value);
}
template <typename F, typename A = ScaleAttrs>
void fields(const ScaleAttrs*, F& f) {
  f("factor", &A::factor);
}
template <typename F, typename A = CompareAttrs>
void fields(const CompareAttrs*, F& f) {
  f("direction", &A::direction);
}
template <typename F, typename A = DimsAttrs>
void fields(const DimsAttrs*, F& f) {
  f("dims", &A::dims);
}
template <typename F, typename A = SliceAttrs>
void fields(const SliceAttrs*, F& f) {
  f("start", &A::start), f("limit", &A::limit), f.optional("stride", &A::stride);
}
template <typename F, typename A = PadAttrs>
void fields(const PadAttrs*, F& f) {
  f("low", &A::low), f("high", &A::high);
}
template <typename F, typename A = ConcatAttrs>
void fields(const ConcatAttrs*, F& f) {
  f("dim", &A::dim);
}
template <typename F, typename A = ReduceAttrs>
void fields(const ReduceAttrs*, F& f) {
  f("op", &A::op), f("dims", &A::dims);
}
template <typename F, typename A = DotAttrs>
void fields(const DotAttrs*, F& f) {
  f("lhs", &A::lhs), f("rhs", &A::rhs), f("out", &A::out);
}
template <typename F, typename A = ConvAttrs>
void fields(const ConvAttrs*, F& f) {
  f("stride", &A::stride), f("padding", &A::padding), f.optional("input_size", &A::input_size);
}
template <typename F, typename A = GeluAttrs>
void fields(const GeluAttrs*, F& f) {
  f("tanh_approximation", &A::tanh_approximation);
}
template <typename F, typename A = NormAttrs>
void fields(const NormAttrs*, F& f) {
  f("epsilon", &A::epsilon);
}
template <typename F, typename A = RopeScaling>
void fields(const RopeScaling*, F& f) {
  f("factor", &A::factor), f.optional("low_turns", &A::low_turns);
  f.optional("high_turns", &A::high_turns), f.optional("positions", &A::positions);
}
template <typename F, typename A = RopeAttrs>
void fields(const RopeAttrs*, F& f) {
  f("theta", &A::theta), f("head_dim", &A::head_dim), f.optional("scaling", &A::scaling);
}
template <typename F, typename A = ShardOffset>
void fields(const ShardOffset*, F& f) {
  f("axes", &A::axes), f("global_size", &A::global_size);
}
template <typename F, typename A = AttentionAttrs>
void fields(const AttentionAttrs*, F& f) {
  f("scale", &A::scale), f("causal", &A::causal), f("packed", &A::packed),
      f.optional("dropout", &A::dropout);
  f.optional("site", &A::site), f.optional("heads", &A::heads);
  f.optional("queries", &A::queries), f.optional("window", &A::window);
}
template <typename F, typename A = EmbeddingAttrs>
void fields(const EmbeddingAttrs*, F& f) {
  f("vocab", &A::vocab), f.optional("rows", &A::rows);
}
template <typename F, typename A = CrossEntropyAttrs>
void fields(const CrossEntropyAttrs*, F& f) {
  f("vocab", &A::vocab), f.optional("columns", &A::columns);
}
template <typename F, typename A = DropoutAttrs>
void fields(const DropoutAttrs*, F& f) {
  f("rate", &A::rate), f("site", &A::site), f("features", &A::features),
      f.optional("feature", &A::feature);
}
template <typename F, typename A = MoeAttrs>
void fields(const MoeAttrs*, F& f) {
  f("experts", &A::experts), f("top_k", &A::top_k), f.optional("sigmoid", &A::sigmoid);
  f.optional("scale", &A::scale);
}
template <typename F, typename A = RandomAttrs>
void fields(const RandomAttrs*, F& f) {
  f("distribution", &A::distribution), f("mean", &A::mean), f("scale", &A::scale),
      f("site", &A::site);
  f("global_sizes", &A::global_sizes), f.optional("offsets", &A::offsets);
}
template <typename F, typename A = CollectiveAttrs>
void fields(const CollectiveAttrs*, F& f) {
  f("group", &A::group), f("op", &A::op), f.optional("dim", &A::dim),
      f.optional("concat_dim", &A::concat_dim);
  f.optional("global_size", &A::global_size);
  f.optional("from", &A::from), f.optional("to", &A::to);
}
template <typename F, typename A = PadMaskAttrs>
void fields(const PadMaskAttrs*, F& f) {
  f("dim", &A::dim), f("value", &A::value), f("offset", &A::offset);
}
template <typename F, typename A = ViewAttrs>
void fields(const ViewAttrs*, F& f) {
  f("offset", &A::offset);
}
template <typename F, typename A = AssembleAttrs>
void fields(const AssembleAttrs*, F& f) {
  f("offsets", &A::offsets);
}
template <typename F, typename A = Segment>
void fields(const Segment*, F& f) {
  f("begin", &A::begin), f("end", &A::end), f("parameter", &A::parameter),
      f.optional("decay", &A::decay);
  f.optional("counts", &A::counts), f.optional("counted_at_origin_of", &A::counted_at_origin_of);
}
template <typename F, typename A = FlatAttrs>
void fields(const FlatAttrs*, F& f) {
  f("groups", &A::groups), f("group_elements", &A::group_elements),
      f.optional("shard_axes", &A::shard_axes);
  f("parameters", &A::parameters), f.optional("beta1", &A::beta1), f.optional("beta2", &A::beta2);
  f.optional("epsilon", &A::epsilon), f.optional("weight_decay", &A::weight_decay);
  f.optional("max_norm", &A::max_norm);
}

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<Attributes>> kFamilies = {
    "none",      "constant",  "scale",         "compare", "dims", "slice",  "pad",
    "concat",    "reduce",    "dot",           "conv",    "gelu", "norm",   "rope",
    "attention", "embedding", "cross_entropy", "dropout", "moe",  "random", "collective",
    "pad_mask",  "view",      "assemble",      "flat"};

class Printer {
 public:
  template <typename Struct>
  void print_struct(const Struct& attrs) {
    text += '{';
    FieldPrinter<Struct> printer{*this, attrs};
    fields(&attrs, printer);
    text += '}';
  }

  std::string text;

 private:
  template <typename Struct>
  struct FieldPrinter {
    Printer& printer;
    const Struct& attrs;
    bool first = true;
    template <typename T>
    void operator()(std::string_view name, T Struct::* member) {
      printer.text += fmt::format("{}{}=", first ? "" : ", ", name);
      first = false;
      printer.print(attrs.*member);
    }
    template <typename T>
    void optional(std::string_view name, T Struct::* member) {
      if (!(attrs.*member == Struct().*member)) (*this)(name, member);
    }
  };

  void print(double v) { text += format_float(v); }
  void print(bool v) { text += v ? "true" : "false"; }
  void print(int64_t v) { text += fmt::format("{}", v); }
  void print(int v) { text += fmt::format("{}", v); }
  void print(const std::string& v) { text += written_name(v); }
  void print(Name v) { print(v.str()); }
  void print(const DeviceGroup& v) {
    if (const auto* axes = std::get_if<AxisGroup>(&v)) {
      text += "axes";
      print(axes->axes);
    } else {
      const Holders& holders = std::get<Holders>(v);
      text += fmt::format("holders({}", written_name(holders.state));
      if (!holders.axes.empty()) {
        text += ", ";
        print(holders.axes);
      }
      text += ')';
    }
  }
  void print(const Axes& v) { print_list(v); }
  template <typename T>
  void print(const std::vector<T>& v) {
    print_list(v);
  }
  template <typename List>
  void print_list(const List& v) {
    text += '[';
    for (size_t i = 0; i < v.size(); ++i) {
      if (i > 0) text += ", ";
      print(v[i]);
    }
    text += ']';
  }
  template <typename T>
  void print(const T& v) {
    if constexpr (std::is_enum_v<T>) {
      text += names_of(v)[static_cast<size_t>(v)];
    } else {
      print_struct(v);
    }
  }
};

class Reader {
 public:
  explicit Reader(Cursor& cursor) : cursor_(cursor) {}

  template <typename Struct>
  void read_struct(Struct& v) {
    cursor_.expect("{");
    if (cursor_.accept("}")) return;
    do {
      const size_t start = cursor_.mark();
      const std::string key = cursor_.word();
      cursor_.expect("=");
      FieldReader<Struct> field{*this, v, key};
      fields(&v, field);
      if (!field.found) cursor_.fail_at(start, "an attribute of this op");
    } while (cursor_.accept(","));
    cursor_.expect("}");
  }

 private:
  template <typename Struct>
  struct FieldReader {
    Reader& reader;
    Struct& attrs;
    const std::string& key;
    bool found = false;
    template <typename T>
    void operator()(std::string_view name, T Struct::* member) {
      if (name != key) return;
      found = true;
      reader.read(attrs.*member);
    }
    template <typename T>
    void optional(std::string_view name, T Struct::* member) {
      (*this)(name, member);
    }
  };

  void read(double& v) { v = cursor_.number(); }
  void read(bool& v) {
    v = cursor_.accept("true");
    if (!v) cursor_.expect("false");
  }
  void read(int64_t& v) { v = cursor_.integer(); }
  void read(int& v) { v = static_cast<int>(cursor_.integer()); }
  void read(std::string& v) { v = cursor_.name(); }
  void read(Name& v) { v = cursor_.name(); }
  void read(DeviceGroup& v) {
    if (cursor_.accept("axes")) {
      AxisGroup group;
      read(group.axes);
      v = group;
      return;
    }
    cursor_.expect("holders");
    cursor_.expect("(");
    Holders holders{cursor_.name()};
    if (cursor_.accept(",")) read(holders.axes);
    cursor_.expect(")");
    v = std::move(holders);
  }
  void read(Axes& v) { read_list(v); }
  template <typename T>
  void read(std::vector<T>& v) {
    read_list(v);
  }
  template <typename List>
  void read_list(List& v) {
    v.clear();
    cursor_.expect("[");
    if (cursor_.accept("]")) return;
    do {
      read(v.emplace_back());
    } while (cursor_.accept(","));
    cursor_.expect("]");
  }
  template <typename T>
  void read(T& v) {
    if constexpr (std::is_enum_v<T>) {
      const auto names = names_of(v);
      for (size_t i = 0; i < names.size(); ++i) {
        if (!cursor_.accept(names[i])) continue;
        v = static_cast<T>(i);
        return;
      }
      cursor_.fail(fmt::format("one of {}", join(names, ", ")));
    } else {
      read_struct(v);
    }
  }

  Cursor& cursor_;
};

template <size_t... I>
Attributes make_family(size_t index, std::index_sequence<I...>) {
  Attributes attributes;
  ((I == index ? (attributes.emplace<I>(), 0) : 0), ...);
  return attributes;
}

}  // namespace

std::string_view family(const Attributes& attributes) { return kFamilies[attributes.index()]; }

std::optional<Attributes> parse_family(std::string_view name) {
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    if (kFamilies[i] == name) return make_family(i, std::make_index_sequence<kFamilies.size()>());
  }
  return std::nullopt;
}

std::string to_string(const Attributes& attributes) {
  if (std::holds_alternative<NoAttrs>(attributes)) return "";
  Printer printer;
  std::visit([&](const auto& attrs) { printer.print_struct(attrs); }, attributes);
  return printer.text;
}

Attributes read_attributes(Cursor& cursor, Attributes prototype) {
  if (std::holds_alternative<NoAttrs>(prototype)) return prototype;
  Reader reader(cursor);
  std::visit([&](auto& attrs) { reader.read_struct(attrs); }, prototype);
  return prototype;
}

Attributes parse_attributes(std::string_view text, Attributes prototype) {
  Cursor cursor(text, "attributes");
  Attributes attributes = read_attributes(cursor, std::move(prototype));
  if (!cursor.at_end()) cursor.fail("the end");
  return attributes;
}

Attributes usual_attributes(OpKind kind) {
  using K = OpKind;
  switch (kind) {
    case K::kConstant: return ConstantAttrs{};
    case K::kScale: return ScaleAttrs{};
    case K::kCompare: return CompareAttrs{};
    case K::kBroadcast:
    case K::kTranspose: return DimsAttrs{};
    case K::kSlice: return SliceAttrs{};
    case K::kPad: return PadAttrs{};
    case K::kConcat: return ConcatAttrs{};
    case K::kReduce: return ReduceAttrs{};
    case K::kDot: return DotAttrs{};
    case K::kConv:
    case K::kConvInputGrad:
    case K::kConvWeightGrad: return ConvAttrs{};
    case K::kRandom: return RandomAttrs{};
    case K::kGelu:
    case K::kGeluGrad:
    case K::kBiasGelu: return GeluAttrs{};
    case K::kLayerNorm:
    case K::kRmsNorm: return NormAttrs{};
    case K::kRopeTable: return RopeAttrs{};
    case K::kAttention:
    case K::kAttentionGrad: return AttentionAttrs{};
    case K::kEmbedding:
    case K::kEmbeddingGrad: return EmbeddingAttrs{};
    case K::kCrossEntropyMax:
    case K::kCrossEntropySum:
    case K::kCrossEntropyLoss:
    case K::kCrossEntropyGrad: return CrossEntropyAttrs{};
    case K::kDropout: return DropoutAttrs{};
    case K::kMoeTopK:
    case K::kMoeTopKGrad:
    case K::kMoeDispatch:
    case K::kMoeCombine:
    case K::kMoeGateGrad: return MoeAttrs{};
    case K::kView: return ViewAttrs{};
    case K::kAssemble: return AssembleAttrs{};
    case K::kNormBlocks:
    case K::kNormParameters:
    case K::kClip:
    case K::kValidate:
    case K::kAdamW: return FlatAttrs{};
    case K::kAllReduce:
    case K::kAllGather:
    case K::kReduceScatter:
    case K::kAllToAll:
    case K::kPermute:
    case K::kShardSlice: return CollectiveAttrs{};
    case K::kPadMask: return PadMaskAttrs{};
    default: return NoAttrs{};
  }
}

}  // namespace mw::ir

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

// The fields of every struct, once for printing and parsing: f(name, field), or f.optional(name, field) for one
// that is not printed when it has its default value.
template <typename F> void fields(NoAttrs&, F&) {}
template <typename F> void fields(ConstantAttrs& a, F& f) { f("value", a.value); }
template <typename F> void fields(ScaleAttrs& a, F& f) { f("factor", a.factor); }
template <typename F> void fields(CompareAttrs& a, F& f) { f("direction", a.direction); }
template <typename F> void fields(DimsAttrs& a, F& f) { f("dims", a.dims); }
template <typename F> void fields(SliceAttrs& a, F& f) {
  f("start", a.start), f("limit", a.limit), f.optional("stride", a.stride);
}
template <typename F> void fields(PadAttrs& a, F& f) { f("low", a.low), f("high", a.high); }
template <typename F> void fields(ConcatAttrs& a, F& f) { f("dim", a.dim); }
template <typename F> void fields(ReduceAttrs& a, F& f) { f("op", a.op), f("dims", a.dims); }
template <typename F> void fields(DotAttrs& a, F& f) { f("lhs", a.lhs), f("rhs", a.rhs), f("out", a.out); }
template <typename F> void fields(ConvAttrs& a, F& f) {
  f("stride", a.stride), f("padding", a.padding), f.optional("input_size", a.input_size);
}
template <typename F> void fields(GeluAttrs& a, F& f) { f("tanh_approximation", a.tanh_approximation); }
template <typename F> void fields(NormAttrs& a, F& f) { f("epsilon", a.epsilon); }
template <typename F> void fields(RopeAttrs& a, F& f) { f("theta", a.theta), f("head_dim", a.head_dim); }
template <typename F> void fields(ShardOffset& a, F& f) { f("axes", a.axes), f("global_size", a.global_size); }
template <typename F> void fields(AttentionAttrs& a, F& f) {
  f("scale", a.scale), f("causal", a.causal), f("packed", a.packed), f.optional("dropout", a.dropout);
  f.optional("site", a.site), f.optional("heads", a.heads);
}
template <typename F> void fields(EmbeddingAttrs& a, F& f) { f("vocab", a.vocab), f.optional("rows", a.rows); }
template <typename F> void fields(CrossEntropyAttrs& a, F& f) {
  f("vocab", a.vocab), f.optional("columns", a.columns);
}
template <typename F> void fields(DropoutAttrs& a, F& f) {
  f("rate", a.rate), f("site", a.site), f("features", a.features), f.optional("feature", a.feature);
}
template <typename F> void fields(RandomAttrs& a, F& f) {
  f("distribution", a.distribution), f("mean", a.mean), f("scale", a.scale), f("site", a.site);
  f("global_sizes", a.global_sizes), f.optional("offsets", a.offsets);
}
template <typename F> void fields(CollectiveAttrs& a, F& f) {
  f("group", a.group), f("op", a.op), f.optional("dim", a.dim), f.optional("concat_dim", a.concat_dim);
  f.optional("global_size", a.global_size);
}
template <typename F> void fields(PadMaskAttrs& a, F& f) {
  f("dim", a.dim), f("value", a.value), f("offset", a.offset);
}
template <typename F> void fields(ViewAttrs& a, F& f) { f("offset", a.offset); }
template <typename F> void fields(AssembleAttrs& a, F& f) { f("offsets", a.offsets); }
template <typename F> void fields(Segment& a, F& f) {
  f("begin", a.begin), f("end", a.end), f("parameter", a.parameter), f.optional("decay", a.decay);
  f.optional("counts", a.counts), f.optional("counted_at_origin_of", a.counted_at_origin_of);
}
template <typename F> void fields(FlatAttrs& a, F& f) {
  f("groups", a.groups), f("group_elements", a.group_elements), f.optional("shard_axes", a.shard_axes);
  f("parameters", a.parameters), f.optional("beta1", a.beta1), f.optional("beta2", a.beta2);
  f.optional("epsilon", a.epsilon), f.optional("weight_decay", a.weight_decay);
  f.optional("max_norm", a.max_norm);
}

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<Attributes>> kFamilies = {
    "none", "constant", "scale", "compare", "dims", "slice", "pad", "concat", "reduce", "dot", "conv", "gelu",
    "norm", "rope", "attention", "embedding", "cross_entropy", "dropout", "random", "collective", "pad_mask",
    "view", "assemble", "flat"};

class Printer {
 public:
  template <typename T>
  void operator()(std::string_view name, const T& field) {
    if (!first_) text += ", ";
    first_ = false;
    text += fmt::format("{}=", name);
    print(field);
  }
  template <typename T>
  void optional(std::string_view name, const T& field, const T& fallback) {
    if (!(field == fallback)) (*this)(name, field);
  }
  template <typename Struct>
  void print_struct(Struct attrs) {
    text += '{';
    first_ = true;
    Struct fallback;
    Pairing<Struct> pairing{*this, reinterpret_cast<char*>(&attrs), reinterpret_cast<char*>(&fallback)};
    fields(attrs, pairing);
    text += '}';
    first_ = false;
  }

  std::string text;

 private:
  // Finds the default value of a field beside the field.
  template <typename Struct>
  struct Pairing {
    Printer& printer;
    const char* base;
    const char* fallback;
    template <typename T>
    void operator()(std::string_view name, T& field) { printer(name, field); }
    template <typename T>
    void optional(std::string_view name, T& field) {
      const auto offset = reinterpret_cast<const char*>(&field) - base;
      printer.optional(name, std::as_const(field), *reinterpret_cast<const T*>(fallback + offset));
    }
  };

  void print(double v) { text += format_float(v); }
  void print(bool v) { text += v ? "true" : "false"; }
  void print(int64_t v) { text += fmt::format("{}", v); }
  void print(int v) { text += fmt::format("{}", v); }
  void print(const std::string& v) { text += written_name(v); }
  void print(const DeviceGroup& v) {
    if (const auto* axes = std::get_if<AxisGroup>(&v)) {
      text += "axes";
      print(axes->axes);
    } else {
      text += fmt::format("holders({})", written_name(std::get<Holders>(v).state));
    }
  }
  template <typename T>
  void print(const std::vector<T>& v) {
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

  bool first_ = true;
};

class Reader {
 public:
  explicit Reader(Cursor& cursor) : cursor_(cursor) {}

  template <typename Struct>
  void read_struct(Struct& v) {
    cursor_.expect("{");
    if (cursor_.accept("}")) return;
    do {
      const std::string key = cursor_.word();
      cursor_.expect("=");
      Field field{*this, key};
      fields(v, field);
      if (!field.found) cursor_.fail(fmt::format("an attribute that exists instead of '{}'", key));
    } while (cursor_.accept(","));
    cursor_.expect("}");
  }

 private:
  struct Field {
    Reader& reader;
    const std::string& key;
    bool found = false;
    template <typename T>
    void operator()(std::string_view name, T& field) {
      if (name != key) return;
      found = true;
      reader.read(field);
    }
    template <typename T>
    void optional(std::string_view name, T& field) { (*this)(name, field); }
  };

  void read(double& v) { v = cursor_.number(); }
  void read(bool& v) {
    v = cursor_.accept("true");
    if (!v) cursor_.expect("false");
  }
  void read(int64_t& v) { v = cursor_.integer(); }
  void read(int& v) { v = static_cast<int>(cursor_.integer()); }
  void read(std::string& v) { v = cursor_.name(); }
  void read(DeviceGroup& v) {
    if (cursor_.accept("axes")) {
      AxisGroup group;
      read(group.axes);
      v = group;
      return;
    }
    cursor_.expect("holders");
    cursor_.expect("(");
    v = Holders{cursor_.name()};
    cursor_.expect(")");
  }
  template <typename T>
  void read(std::vector<T>& v) {
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
    case K::kBroadcast: case K::kTranspose: return DimsAttrs{};
    case K::kSlice: return SliceAttrs{};
    case K::kPad: return PadAttrs{};
    case K::kConcat: return ConcatAttrs{};
    case K::kReduce: return ReduceAttrs{};
    case K::kDot: return DotAttrs{};
    case K::kConv: case K::kConvInputGrad: case K::kConvWeightGrad: return ConvAttrs{};
    case K::kRandom: return RandomAttrs{};
    case K::kGelu: case K::kGeluGrad: case K::kBiasGelu: return GeluAttrs{};
    case K::kLayerNorm: case K::kRmsNorm: return NormAttrs{};
    case K::kRopeTable: return RopeAttrs{};
    case K::kAttention: case K::kAttentionGrad: return AttentionAttrs{};
    case K::kEmbedding: case K::kEmbeddingGrad: return EmbeddingAttrs{};
    case K::kCrossEntropyMax: case K::kCrossEntropySum: case K::kCrossEntropyLoss:
    case K::kCrossEntropyGrad: return CrossEntropyAttrs{};
    case K::kDropout: return DropoutAttrs{};
    case K::kView: return ViewAttrs{};
    case K::kAssemble: return AssembleAttrs{};
    case K::kNormBlocks: case K::kNormParameters: case K::kClip: case K::kAdamW: return FlatAttrs{};
    case K::kAllReduce: case K::kAllGather: case K::kReduceScatter: case K::kAllToAll:
    case K::kShardSlice: return CollectiveAttrs{};
    case K::kPadMask: return PadMaskAttrs{};
    default: return NoAttrs{};
  }
}

}  // namespace mw::ir

// The tails of padded shards: what a fragment must mask before it sums.
#include "pipeline/fragment_sharding.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include "base/text.h"
#include "ops/builder.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;

// Seven elements over two devices: shards of four, the last with one element of padding.
struct Halves {
  cluster::Mesh mesh{{{"cp", 2}}};
  Fragment fragment;
  ops::Builder b{fragment.graph};

  ValueId input(const std::string& name, const ir::TensorType& global,
                const std::string& sharding) {
    const sharding::Sharding lies = sharding::parse_sharding(sharding);
    return add(fragment.graph.add_input(sharding::local_type(global, lies, mesh), name), global,
               sharding);
  }
  ValueId add(ValueId v, const ir::TensorType& global, const std::string& sharding) {
    fragment.shardings.push_back(sharding::parse_sharding(sharding));
    fragment.global_types.push_back(global);
    return v;
  }
  ValueId masked(ValueId v, int dim) {
    ir::PadMaskAttrs attrs;
    attrs.dim = dim;
    attrs.offset = {fragment.shardings[v.index()].dims[static_cast<size_t>(dim)],
                    fragment.global_types[v.index()].dim(dim)};
    return add(b.emit1(OpKind::kPadMask, attrs, {v}), fragment.global_types[v.index()],
               to_string(fragment.shardings[v.index()]));
  }
  // A mask whose value is no zero stands for garbage: of inputs zeros are taken for granted.
  ValueId with_garbage(ValueId v, int dim) {
    v = masked(v, dim);
    std::get<ir::PadMaskAttrs>(fragment.graph.ops.back().attrs).value = 1;
    return add(b.scale(v, 1), fragment.global_types[v.index()],
               to_string(fragment.shardings[v.index()]));
  }
  std::string findings() const { return join(fragment_sharding_findings(fragment, mesh), "\n"); }
};

const ir::TensorType kSeven = ir::make_type(DType::kF32, {7});

TEST_CASE("what may be infinite in a padded tail is masked before anything reads it") {
  for (const bool masks : {true, false}) {
    Halves h;
    const ValueId x = h.input("x", kSeven, R"([{"cp"}])"), y = h.input("y", kSeven, R"([{"cp"}])");
    ValueId root = h.add(h.b.unary(OpKind::kRsqrt, x), kSeven, R"([{"cp"}])");
    if (masks) root = h.masked(root, 0);
    h.fragment.graph.outputs = {
        h.add(h.b.dot(root, y, "a,a->"), ir::make_type(DType::kF32, {}), R"([] partial{"cp"})")};
    CHECK(h.findings() == (masks ? ""
                                 : "op 1 (dot -> %3) reads %2, whose padded tail may hold "
                                   "infinities: it must be masked first"));
  }
}

TEST_CASE("what may be infinite in a padded tail does not leave") {
  Halves h;
  const ValueId x = h.input("x", kSeven, R"([{"cp"}])");
  const ValueId ratio = h.add(h.b.div(x, x), kSeven, R"([{"cp"}])");
  h.fragment.graph.outputs = {ratio};
  CHECK(h.findings() == "%1: leaves with a padded tail that may hold infinities");
  h.fragment.graph.outputs = {h.masked(ratio, 0)};
  CHECK(h.findings() == "");
}

// Shards of whole elements have no tail.
TEST_CASE("where a dimension is divisible nothing is masked") {
  Halves h;
  const ir::TensorType eight = ir::make_type(DType::kF32, {8});
  const ValueId x = h.input("x", eight, R"([{"cp"}])");
  const ValueId ratio = h.add(h.b.div(x, x), eight, R"([{"cp"}])");
  h.fragment.graph.outputs = {
      h.add(h.b.dot(ratio, x, "a,a->"), ir::make_type(DType::kF32, {}), R"([] partial{"cp"})")};
  CHECK(h.findings() == "");
}

// Queries are in the gradient of queries and are summed over in those of keys and values.
TEST_CASE("queries behind the end of the sequence are masked in attention's gradient") {
  const ir::TensorType whole = ir::make_type(DType::kF32, {1, 7, 2, 3});
  const std::string split = R"([{}, {"cp"}, {}, {}])", all = R"([{}, {}, {}, {}])",
                    sum = R"([{}, {}, {}, {}] partial{"cp"})";
  for (const bool masks : {true, false}) {
    Halves h;
    ValueId dout = h.input("dout", whole, split);
    if (!masks) dout = h.with_garbage(dout, 1);
    const ValueId q = h.input("q", whole, split), k = h.input("k", whole, all),
                  v = h.input("v", whole, all), out = h.input("out", whole, split),
                  lse =
                      h.input("lse", ir::make_type(DType::kF32, {1, 2, 7}), R"([{}, {}, {"cp"}])"),
                  positions = h.input("positions", ir::make_type(DType::kI32, {1, 7}), "[{}, {}]");
    ir::AttentionAttrs attrs;
    attrs.queries = {{"cp"}, 7};
    const ValueIds grads =
        h.b.emit(OpKind::kAttentionGrad, attrs, {dout, q, k, v, out, lse, positions});
    h.fragment.graph.outputs = {h.add(grads[0], whole, split), h.add(grads[1], whole, sum),
                                h.add(grads[2], whole, sum)};
    CHECK(h.findings() ==
          (masks
               ? ""
               : "op 2 (attention_grad -> %9) reduces over factor s of its rule \"b s h [d], b s h "
                 "[d], b [t] h [d], b [t] h [d], b s h [d], b h s, b [t] -> b s h [d], b [t] h "
                 "[d], b [t] h [d]\", whose last shard is padded, and no operand has that tail "
                 "masked"));
  }
}

std::string unmasked(int op, const char* result, const char* factor, const char* rule) {
  return fmt::format(
      "op {} (reduce -> {}) reduces over factor {} of its rule \"{}\", whose last shard is padded, "
      "and no operand has that tail masked",
      op, result, factor, rule);
}

// There are no words there, so their gradients are zeros; tokens behind the end have any gradient.
TEST_CASE("the gradient of logits has zeros behind the last word, not behind the last token") {
  const ir::TensorType logits = ir::make_type(DType::kF32, {7, 7});
  const auto findings = [&](bool words, bool garbage) {
    Halves h;
    const std::string tokens_lie = words ? "[{}]" : R"([{"cp"}])",
                      logits_lie = words ? R"([{}, {"cp"}])" : R"([{"cp"}, {}])";
    ValueId x = h.input("x", logits, logits_lie), dloss = h.input("dloss", kSeven, tokens_lie);
    const ValueId lse = h.input("lse", kSeven, tokens_lie),
                  targets = h.input("targets", ir::make_type(DType::kI32, {7}), tokens_lie);
    ValueId& split = words ? x : dloss;
    if (garbage) split = h.with_garbage(split, words ? 1 : 0);
    ir::CrossEntropyAttrs attrs;
    attrs.vocab = 7;
    if (words) attrs.columns = {{"cp"}, 7};
    const ValueId dx = h.add(h.b.emit1(OpKind::kCrossEntropyGrad, attrs, {x, lse, targets, dloss}),
                             logits, logits_lie);
    h.fragment.graph.outputs = {h.add(h.b.reduce(dx, ir::Reduction::kSum, {words ? 1 : 0}), kSeven,
                                      R"([{}] partial{"cp"})")};
    return h.findings();
  };
  CHECK(findings(true, true) == "");
  CHECK(findings(false, false) == "");
  CHECK(findings(false, true) ==
        "op 3 (reduce -> %7) reads %6, whose padded tail may hold infinities: it must be masked "
        "first\n" +
            unmasked(3, "%7", "a", "a b -> b"));
}

TEST_CASE("the gradient of a table has zeros behind the last word, not behind the last column") {
  const ir::TensorType table = ir::make_type(DType::kF32, {7, 7});
  const auto findings = [&](bool words, bool garbage) {
    Halves h;
    const std::string dy_lies = words ? "[{}, {}]" : R"([{}, {"cp"}])",
                      table_lies = words ? R"([{"cp"}, {}])" : R"([{}, {"cp"}])";
    const ValueId tokens = h.input("tokens", ir::make_type(DType::kI32, {7}), "[{}]");
    ValueId dy = h.input("dy", table, dy_lies);
    if (garbage) dy = h.with_garbage(dy, 1);
    ir::EmbeddingAttrs attrs;
    attrs.vocab = 7;
    if (words) attrs.rows = {{"cp"}, 7};
    const sharding::Sharding lies = sharding::parse_sharding(table_lies);
    const ValueId dtable = h.add(h.b.emit1(OpKind::kEmbeddingGrad, attrs, {tokens, dy},
                                           {sharding::local_type(table, lies, h.mesh)}),
                                 table, table_lies);
    h.fragment.graph.outputs = {h.add(h.b.reduce(dtable, ir::Reduction::kSum, {words ? 0 : 1}),
                                      kSeven, R"([{}] partial{"cp"})")};
    return h.findings();
  };
  CHECK(findings(true, false) == "");
  CHECK(findings(false, false) == "");
  CHECK(findings(false, true) == unmasked(3, "%5", "b", "a b -> a"));
}

}  // namespace
}  // namespace mw::pipeline

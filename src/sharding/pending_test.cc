#include "sharding/pending.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include "base/text.h"

namespace mw::sharding {
namespace {

ir::Graph graph_of(const std::string& body) {
  return ir::parse_graph(
      "graph g {\n"
      "    in %acc : f32[4,4]\n"
      "    in %x : f32[4,4]\n"
      "    in %positions : i32[4,4]\n" +
      body + "}\n");
}

std::string names(const ir::Graph& graph, const std::vector<bool>& which) {
  std::vector<std::string> found;
  for (size_t v = 0; v < which.size(); ++v) {
    if (which[v]) found.push_back(graph.values[v].name);
  }
  return join(found, " ");
}

TEST_CASE("a value may pend where all that reads it accumulates, directly or through linear ops") {
  const auto accumulated = [](const std::string& body) {
    const ir::Graph graph = graph_of("    %g = exp(%x) : f32[4,4] I\n" + body);
    return names(graph, accumulated_only(graph));
  };
  const std::string sum = "    %sum = accumulate(%acc, %g) : f32[4,4] W\n";
  CHECK(accumulated(sum + "    out %sum\n") == "g");
  CHECK(accumulated(sum + "    out %sum, %g\n") == "");
  CHECK(accumulated(sum + "    %e = exp(%g) : f32[4,4] I\n    out %sum, %e\n") == "");
  CHECK(accumulated("    out %x\n") == "");  // nobody reads it
  for (const std::string linear : {"add(%g, %g)", "reshape(%g)", "transpose{dims=[1, 0]}(%g)",
                                   "scale{factor=2}(%g)", "neg(%g)"}) {
    CAPTURE(linear);
    const std::string moved = fmt::format("    %m = {} : f32[4,4] I\n", linear);
    CHECK(accumulated(moved + "    %sum = accumulate(%acc, %m) : f32[4,4] W\n    out %sum\n") ==
          "g m");
    CHECK(accumulated(moved + "    out %m\n") == "");
  }
  CHECK(accumulated("    %m = exp(%g) : f32[4,4] I\n"
                    "    %sum = accumulate(%acc, %m) : f32[4,4] W\n"
                    "    out %sum\n") == "m");
}

TEST_CASE("a gradient may pend where a product of it pends in any case, and all else accumulates") {
  // `k` is the gradient, `m` what may be made of it.
  struct Case {
    const char *name, *body, *given, *carried;
  };
  const auto carried_of = [](const Case& c) {
    const ir::Graph graph = graph_of(c.body);
    std::vector<std::optional<Sharding>> given(graph.values.size());
    for (size_t v = 0; v < given.size(); ++v) {
      if (graph.values[v].name == c.given) given[v] = parse_sharding(R"([{}, {"tp"}])");
    }
    return names(graph, carried(graph, given, accumulated_only(graph)));
  };
  for (const Case& c : std::vector<Case>{
           {"its second dimension is split and summed over",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p\n",
            "k", "k"},
           {"it is the other operand",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%x, %k) : f32[4,4] I\n    out %p\n",
            "k", "k"},
           {"it is no gradient",
            "    %k = exp(%x) : f32[4,4] F\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p\n",
            "k", ""},
           {"nothing splits it",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p\n",
            "", ""},
           {"its first dimension alone is summed over",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ba, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p\n",
            "k", ""},
           {"the product of other values adds to it",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%x, %x, %k) : f32[4,4] I accumulates\n"
            "    out %p\n",
            "k", ""},
           {"it is read by another op, too",
            "    %k = exp(%x) : f32[4,4] I\n    %e = exp(%k) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %e\n",
            "k", ""},
           {"it is an output, too",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %k\n",
            "k", ""},
           {"it is accumulated, too",
            "    %k = exp(%x) : f32[4,4] I\n    %sum = accumulate(%acc, %k) : f32[4,4] W\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %sum\n",
            "k", "k"},
           {"it is accumulated alone",
            "    %k = exp(%x) : f32[4,4] I\n    %sum = accumulate(%acc, %k) : f32[4,4] W\n"
            "    out %sum\n",
            "k", ""},
           {"a product of it is accumulated, too",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %w = dot{lhs=ab, rhs=ac, out=bc}(%k, %x) : f32[4,4] W\n"
            "    %sum = accumulate(%acc, %w) : f32[4,4] W\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %sum\n",
            "k", "k"},
           {"a product of it that does not pend is no gradient of a weight",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %w = dot{lhs=ab, rhs=ac, out=bc}(%k, %x) : f32[4,4] W\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %w\n",
            "k", ""},
           {"a sum of it is accumulated, too",
            "    %k = exp(%x) : f32[4,4] I\n"
            "    %b = reduce{op=sum, dims=[0]}(%k) : f32[4] W\n"
            "    %sum = accumulate(%acc, %b) : f32[4] W\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%k, %x) : f32[4,4] I\n    out %p, %sum\n",
            "k", "k"},
           {"what lies between is linear in it alone",
            "    %k = reshape(%positions) : i32[4,4] I\n    %r = exp(%x) : f32[4,4] I\n"
            "    %m = rope_grad(%r, %k, %x) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%m, %x) : f32[4,4] I\n    out %p\n",
            "m", "r m"},
           {"what lies between is not linear",
            "    %k = exp(%x) : f32[4,4] I\n    %m = exp(%k) : f32[4,4] I\n"
            "    %p = dot{lhs=ab, rhs=cb, out=ac}(%m, %x) : f32[4,4] I\n    out %p\n",
            "m", "m"}}) {
    CAPTURE(c.name);
    CHECK(carried_of(c) == c.carried);
  }
  for (const std::string moves :
       {"reshape(%k)", "transpose{dims=[1, 0]}(%k)", "scale{factor=2}(%k)", "neg(%k)"}) {
    CAPTURE(moves);
    const std::string body = fmt::format(
        "    %k = exp(%x) : f32[4,4] I\n    %m = {} : f32[4,4] I\n"
        "    %p = dot{{lhs=ab, rhs=cb, out=ac}}(%m, %x) : f32[4,4] I\n    out %p\n",
        moves);
    CHECK(carried_of({"", body.c_str(), "m", ""}) == "k m");
  }
}

TEST_CASE("what is wanted pends as what is made, but for the axes that split it") {
  struct Case {
    const char *wanted, *made, *pending;
  };
  for (const Case& c : std::vector<Case>{
           {"[{}, {}]", R"([{}, {}] partial{"cp", "tp"})", R"([{}, {}] partial{"cp", "tp"})"},
           {R"([{"dp"}, {}])", R"([{}, {}] partial{"tp"})", R"([{"dp"}, {}] partial{"tp"})"},
           {R"([{}, {"dp", "tp"}])", R"([{}, {}] partial{"cp", "tp"})",
            R"([{}, {"dp", "tp"}] partial{"cp"})"},
           {R"([{"tp"}, {}])", R"([{}, {}] partial{"tp"})", R"([{"tp"}, {}])"},
           // A maximum that is pending is none of a sum.
           {"[{}, {}]", R"([{}, {}] partial<max>{"tp"})", "[{}, {}]"},
           {R"([{"dp"}, {}] partial{"cp"})", R"([{"dp"}, {"tp"}])", R"([{"dp"}, {}])"},
           // What is whole has no reduction: it equals what was never pending.
           {R"([{"tp"}, {}])", R"([{}, {}] partial<max>{"tp"})", R"([{"tp"}, {}])"}}) {
    CAPTURE(c.wanted);
    CAPTURE(c.made);
    CHECK(pending_as(parse_sharding(c.wanted), parse_sharding(c.made)) ==
          parse_sharding(c.pending));
  }
}

}  // namespace
}  // namespace mw::sharding

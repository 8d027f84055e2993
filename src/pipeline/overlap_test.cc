// Small graphs, and the order and the waits that overlap gives them.
#include "pipeline/overlap.h"

#include <map>
#include <string>

#include <doctest/doctest.h>

#include "base/text.h"

namespace mw::pipeline {
namespace {

// "a r|1 b<r": ops by their result in order; of what is not on stream 0 the stream; behind "<" for
// which ops it waits.
std::string overlapped(const std::string& ops, int64_t gather_ahead = 0) {
  Fragment fragment;
  fragment.graph = ir::parse_graph(
      "graph g {\n  in %x : f32[4]\n  in %v : f32[2] state 0\n  in %w : f32[2] state 1\n" + ops +
      "}");
  for (const ir::Input& input : fragment.graph.inputs) {
    fragment.inputs.push_back(
        {input.state.valid() ? PortKind::kState : PortKind::kBoundary, input.value, ""});
  }
  order_for_overlap(fragment, cluster::Mesh({{"dp", 2}, {"tp", 2}}), gather_ahead);
  ir::verify(fragment.graph);
  std::vector<std::string> told;
  std::map<EventId, std::string> recorder;
  for (size_t o = 0; o < fragment.launches.size(); ++o) {
    const Launch& launch = fragment.launches[o];
    const std::string& name = fragment.graph.value(fragment.graph.ops[o].results[0]).name;
    std::vector<std::string> waits;
    for (const EventId event : launch.waits) waits.push_back(recorder.at(event));
    if (launch.records.valid()) recorder[launch.records] = name;
    told.push_back(name);
    if (launch.stream.value > 0) told.back() += fmt::format("|{}", launch.stream.value);
    if (!waits.empty()) told.back() += "<" + join(waits, ",");
  }
  return join(told, " ");
}

struct Case {
  std::string name, ops, wanted;
};
void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(overlapped(c.ops) == c.wanted);
  }
}

std::string exp_of(const std::string& made, const std::string& from, const std::string& place) {
  return fmt::format("  %{} = exp(%{}) : f32[4] {}\n", made, from, place);
}
std::string sum_of(const std::string& made, const std::string& from, const std::string& place,
                   const std::string& axis = "dp") {
  return fmt::format("  %{} = all_reduce{{group=axes[{}], op=sum}}(%{}) : f32[4] {}\n", made, axis,
                     from, place);
}
std::string gather(const std::string& made, const std::string& from, const std::string& place) {
  return fmt::format(
      "  %{} = all_gather{{group=axes[dp], dim=0, global_size=4}}(%{}) : f32[4] {}\n", made, from,
      place);
}

TEST_CASE("an op waits for what it needs on another stream, by the fewest events") {
  check({
      {"nothing communicates", exp_of("a", "x", "@0 F"), ""},
      {"a collective starts no earlier than the op before it",
       exp_of("a", "x", "@0 F") + sum_of("r", "x", "@0 F"), "a r|1<a"},
      {"who reads it waits for it", sum_of("r", "x", "@0 F") + exp_of("b", "r", "@0 F"), "r|1 b<r"},
      {"once", sum_of("r", "x", "@0 F") + exp_of("b", "r", "@0 F") + exp_of("c", "r", "@0 F"),
       "r|1 b<r c"},
      {"what the last of them waited for has ended",
       sum_of("r", "x", "@0 F") + sum_of("s", "r", "@0 F", "tp") +
           "  %b = add(%r, %s) : f32[4] @0 F\n",
       "r|1 s|2<r b<s"},
      {"who writes over what a collective reads",
       gather("g", "v", "@0 F") + "  %n = accumulate(%v, %w) : f32[2] @0 F\n", "g|1 n<g"},
      {"what a collective reads and nobody writes over",
       gather("g", "v", "@0 F") + "  %n = accumulate(%w, %v) : f32[2] @0 F\n", "g|1 n"},
  });
}

TEST_CASE("weight gradients run beside the next collective, not beyond their own place") {
  const std::string i0 = exp_of("i", "x", "@0 I"), r0 = sum_of("r", "i", "@0 I");
  check({
      {"of the same layer", exp_of("d", "x", "@0 W") + i0 + r0, "i r|1<i d"},
      {"of the layer before", exp_of("d", "x", "@1 W") + i0 + r0, "d i r|1<i"},
      {"a product of what is gathered for it, in its layer",
       gather("g", "v", "@1 W") + exp_of("p", "g", "@1 W") + sum_of("r", "x", "@1 W"),
       "g|1 r|1 p<g"},
      {"when another layer reduces",
       gather("g", "v", "@1 W") + exp_of("p", "g", "@1 W") + sum_of("r", "x", "@0 W"),
       "g|1 p<g r|1<p"},
      {"a sum of what was reduced, when another layer reduces",
       sum_of("r", "x", "@1 W") + exp_of("s", "r", "@1 W") + sum_of("q", "x", "@0 W"),
       "r|1 s<r q|1<s"},
      {"when another layer gathers",
       sum_of("r", "x", "@1 W") + exp_of("s", "r", "@1 W") + gather("g", "v", "@0 W"),
       "r|1 g|1 s<r"},
      {"a sum of what was reduced and of such a product",
       gather("g", "v", "@1 W") + exp_of("p", "g", "@1 W") + sum_of("r", "x", "@1 W") +
           "  %s = add(%r, %p) : f32[4] @1 W\n" + exp_of("q", "s", "@1 I"),
       "g|1 r|1 p<g s<r q"},
  });
}

TEST_CASE("a layer's weights are gathered ahead up to so many elements") {
  const std::string ops = gather("g0", "v", "@0 F") + exp_of("c0", "g0", "@0 F") +
                          gather("g1", "w", "@1 F") + exp_of("c1", "g1", "@1 F");
  CHECK(overlapped(ops, 3) == "g0|1 c0<g0 g1|1<c0 c1<g1");
  CHECK(overlapped(ops, 4) == "g0|1 g1|1 c0<g0 c1<g1");
}

}  // namespace
}  // namespace mw::pipeline

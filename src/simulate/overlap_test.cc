#include "simulate/overlap.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "simulate/simulate.h"

using namespace mw::simulate;

TEST_CASE("a slowdown is of all communication, or of one kind") {
  Overlap overlap;
  CHECK(set_slowdown(overlap, "1.2").empty());
  CHECK(overlap.slowdown == Slowdowns{1.2, 1.2, 1.2, 1.2, 1.2, 1.2});
  CHECK(set_slowdown(overlap, "messages=1").empty());
  CHECK(set_slowdown(overlap, "ring=3").empty());
  CHECK(overlap.slowdown == Slowdowns{1, 1.2, 1.2, 1.2, 3, 1.2});
  CHECK(set_slowdown(overlap, "0.5") ==
        "must be a number from 1 to 1000, or one of a kind of communication as in \"tensor=1.2\", "
        "is \"0.5\"");
  CHECK(set_slowdown(overlap, "tensor=nan") ==
        "must be a number from 1 to 1000, or one of a kind of communication as in \"tensor=1.2\", "
        "is \"tensor=nan\"");
  CHECK(
      set_slowdown(overlap, "tensr=2") ==
      "unknown kind of communication 'tensr', did you mean 'tensor'?; known are messages, tensor, "
      "grad_reduce, param_gather, ring, other");
}

TEST_CASE("what no option says is the device's beside collectives, and nothing beside messages") {
  mw::cluster::Device device;
  device.attained.overlap_slowdown = 1.25;
  Overlap overlap;
  CHECK(slowdowns_of(overlap, device) == Slowdowns{1, 1.25, 1.25, 1.25, 1.25, 1.25});
  REQUIRE(set_slowdown(overlap, "param_gather=2").empty());
  CHECK(slowdowns_of(overlap, device) == Slowdowns{1, 1.25, 1.25, 2, 1.25, 1.25});
}

TEST_CASE("of two ways to reduce gradients early the last word holds") {
  Overlap overlap;
  REQUIRE(set_overlap(overlap, "grad_reduce_idle"));
  CHECK(overlap.grad_reduce);
  CHECK(overlap.grad_reduce_idle);
  REQUIRE(set_overlap(overlap, "grad_reduce"));
  CHECK(overlap.grad_reduce);
  CHECK_FALSE(overlap.grad_reduce_idle);
  REQUIRE(set_overlap(overlap, "grad_reduce_idle"));
  REQUIRE(set_overlap(overlap, "none"));
  CHECK_FALSE(overlap.grad_reduce);
  CHECK_FALSE(overlap.grad_reduce_idle);
}

TEST_CASE("an unknown word in a profile is told with the software that says it") {
  mw::cluster::Stack stack;
  stack.name = "own";
  stack.overlap = {"messages", "grad_redcue"};
  CHECK_THROWS_WITH_AS(
      options_of(stack),
      "profile of own: overlap: unknown word 'grad_redcue', did you mean 'grad_reduce'?",
      mw::Error);
}

TEST_CASE("words that undo each other contradict, in either order") {
  const std::pair<const char*, const char*> pairs[] = {
      {"messages", "no-messages"}, {"ring", "no-ring"},       {"weights", "no-weights"},
      {"pairs", "no-pairs"},       {"no-tensor", "async-tp"}, {"grad_reduce", "grad_reduce_idle"}};
  for (const auto& [a, b] : pairs) {
    CAPTURE(a);
    CHECK(contradict(a, b));
    CHECK(contradict(b, a));
  }
  CHECK(contradict("grad_reduce", "none"));
  CHECK(!contradict("none", "grad_reduce"));
  CHECK(!contradict("collectives", "no-tensor"));
  CHECK(!contradict("collectives", "async-tp"));
  CHECK(!contradict("messages", "messages"));
  CHECK(!contradict("no-messages", "none"));
}

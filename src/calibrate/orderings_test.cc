#include "calibrate/orderings.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "base/test_close_to.h"

using namespace mw::calibrate;
using mw::JsonArray;

namespace {

Comparison row(const std::string& source, double published, double predicted, double work = 1) {
  Comparison c;
  c.run.source = source;
  c.run.model = "GPT";
  c.run.gpu = "A100";
  c.run.metric = "iteration_time";
  c.run.value = c.published = published;
  c.predicted = predicted;
  c.work = work;
  return c;
}

Comparison placed(const std::string& source, double place, double predicted) {
  Comparison c = row(source, 0, predicted);
  c.run.metric = "place";
  c.run.value = place;
  return c;
}

}  // namespace

TEST_CASE("rows of one source and model are ordered by FLOPs a second and device") {
  const std::vector<Comparison> rows = {row("table", 2, 3), row("table", 3, 3.5, 2)};
  const std::vector<Ordering> made = orderings(rows);
  REQUIRE(made.size() == 1);
  CHECK(made[0].faster == &rows[1]);  // twice the work in one and a half times the time
  CHECK(made[0].published == mw::test::close_to(2.0 / 1.5));
  CHECK(made[0].predicted == mw::test::close_to(2.0 * 3 / 3.5));
  CHECK(made[0].kept());
}

TEST_CASE("rows whose source counts tokens are ordered by tokens") {
  // Twice the tokens, each with three times the work, in four times the time.
  std::vector<Comparison> rows = {row("table", 2, 3), row("table", 8, 9, 6)};
  CHECK(orderings(rows)[0].faster == &rows[1]);
  rows[0].run.metric = rows[1].run.metric = "tokens_per_s_per_gpu";
  rows[0].run.value = 100;
  rows[1].run.value = 50;
  const std::vector<Ordering> made = orderings(rows);
  REQUIRE(made.size() == 1);
  CHECK(made[0].faster == &rows[0]);
  CHECK(made[0].published == mw::test::close_to(2));
  CHECK(made[0].predicted == mw::test::close_to(100 * 2.0 / 3 / (50 * 8.0 / 9)));
}

TEST_CASE("an order that the simulator turns round is not kept, and is told") {
  const std::vector<Comparison> rows = {row("table", 2, 3), row("table", 4, 2.5),
                                        row("another", 1, 1)};
  const std::vector<Ordering> made = orderings(rows);
  REQUIRE(made.size() == 1);
  CHECK_FALSE(made[0].kept());
  CHECK(to_text(made).find("published +100.0 % predicted  -16.7 %") != std::string::npos);
}

TEST_CASE("rows of other models or devices are in no order, a source's ratios have their mean") {
  std::vector<Comparison> rows = {row("table", 2, 3), row("table", 4, 6), row("table", 3, 3),
                                  row("table", 24, 6)};
  rows[2].run.model = rows[3].run.model = "Llama";
  const auto pairs = [&] { return orderings(rows); };
  REQUIRE(pairs().size() == 2);
  // Twice and eight times the rate as published, twice and twice as predicted.
  const std::string text = to_text(pairs());
  const size_t line = text.find("table ");
  REQUIRE(line != std::string::npos);
  const std::string of_table = text.substr(line, text.find('\n', line) - line);
  CHECK(of_table.find(" +300.0 %") != std::string::npos);
  CHECK(of_table.find(" +100.0 %") != std::string::npos);
  rows[1].run.gpu = "H100";
  CHECK(pairs().size() == 1);
  rows[3].run.gpu = "H100";
  CHECK(pairs().empty());
}

TEST_CASE("rows that publish nothing are in no order") {
  for (const double published : {0.0, 2.0}) {
    CHECK(orderings({row("table", 0, 3), row("table", published, 6)}).empty());
    CHECK(orderings({placed("table", published, 3), placed("table", 0, 6)}).empty());
  }
}

TEST_CASE("where a source tells places alone, equal ones are no order") {
  const std::vector<Comparison> rows = {placed("figure", 2, 3), placed("figure", 1, 2),
                                        placed("figure", 2, 4)};
  const std::vector<Ordering> made = orderings(rows);
  REQUIRE(made.size() == 2);
  for (const Ordering& o : made) {
    CHECK(o.faster == &rows[1]);
    CHECK(o.published == 0);
    CHECK(o.kept());
  }
}

TEST_CASE("pairs of one step are counted apart, and what is not one is said") {
  std::vector<Comparison> rows = {row("table", 2, 3), row("table", 4, 2.5), row("table", 8, 9)};
  for (Comparison& c : rows) c.run.seq = 1024, c.run.global_batch = 8, c.run.gpus = 4;
  SUBCASE("another sequence") { rows[1].run.seq = 2048; }
  SUBCASE("another batch") { rows[1].run.global_batch = 16; }
  SUBCASE("other devices") { rows[1].run.gpus = 8; }
  const std::vector<Ordering> made = orderings(rows);
  REQUIRE(made.size() == 3);
  for (const Ordering& o : made)
    CHECK(o.of_one_step() == (o.faster != &rows[1] && o.slower != &rows[1]));
  const std::string text = to_text(made);
  const size_t line = text.find("of one step: same sequences, batch and devices");
  REQUIRE(line != std::string::npos);
  const size_t end = text.find('\n', line);
  CHECK(text.substr(end - 12, 12) == "     1     1");
  CHECK(text.find("predicted  -16.7 %  (of two steps)\n") != std::string::npos);
}

TEST_CASE("orders that are not kept are told by source, with what a row overlaps") {
  std::vector<Comparison> rows = {row("table", 2, 3),    row("table", 4, 2.5),
                                  row("table", 1, 2),    placed("fig", 1, 3),
                                  placed("fig", 2, 1.5), placed("fig", 3, 0.75)};
  for (Comparison& c : rows)
    c.run.gpus = 8, c.run.global_batch = 16, c.run.seq = 64, c.run.recompute = "full";
  rows[0].run.overlap = "collectives";
  rows[1].run.global_batch = 32;
  const std::vector<Ordering> made = orderings(rows);
  const std::string text = to_text(made);
  CHECK(text.substr(text.find("\nnot kept")) == R"(
not kept:
  table, GPT
    tp=1 pp=1 dp=1 full collectives batch 16 on 8        over tp=1 pp=1 dp=1 full batch 32 on 8                    published +100.0 % predicted  -16.7 %  (of two steps)
  fig, GPT
    tp=1 pp=1 dp=1 full batch 16 on 8                    over tp=1 pp=1 dp=1 full batch 16 on 8                    published   faster predicted  -50.0 %
    tp=1 pp=1 dp=1 full batch 16 on 8                    over tp=1 pp=1 dp=1 full batch 16 on 8                    published   faster predicted  -75.0 %
    tp=1 pp=1 dp=1 full batch 16 on 8                    over tp=1 pp=1 dp=1 full batch 16 on 8                    published   faster predicted  -50.0 %
)");
  CHECK(text.find(" 3     2        +152.0 %         +16.0 %\n") != std::string::npos);
  const JsonArray list = to_json(made).as_array("orders");
  CHECK(
      list.front().dump() ==
      R"({"source":"table","model":"GPT","faster":"tp=1 pp=1 dp=1 full collectives batch 16 on 8","slower":"tp=1 pp=1 dp=1 full batch 32 on 8","published":2.0,"predicted":0.8333333333333333,"kept":false,"of_one_step":false})");
  CHECK(list.back().at("published", "order").is_null());
}

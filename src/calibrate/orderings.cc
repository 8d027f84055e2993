#include "calibrate/orderings.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace mw::calibrate {
namespace {

bool comparable(const Comparison& a, const Comparison& b) {
  if (a.run.value <= 0 || b.run.value <= 0) return false;  // nothing is published
  return a.run.source == b.run.source && a.run.model == b.run.model && a.run.gpu == b.run.gpu &&
         (a.published > 0) == (b.published > 0);
}

// Of a over b where steps take so many seconds, of what the source counts: tokens, if it counts
// those of both, or the model's FLOPs, of a device in a second. They differ between rows whose
// sequences do.
double rates(const Comparison& a, double seconds_a, const Comparison& b, double seconds_b) {
  constexpr const char* kTokens = "tokens_per_s_per_gpu";
  if (a.run.metric == kTokens && b.run.metric == kTokens)
    return a.run.value * a.published / seconds_a / (b.run.value * b.published / seconds_b);
  return a.work / seconds_a / (b.work / seconds_b);
}

// Of a over b as published: a ratio of rates, or of places, of which the first is the fastest.
double lead(const Comparison& a, const Comparison& b) {
  if (a.published > 0) return rates(a, a.published, b, b.published);
  return b.run.value / a.run.value;
}

// Nearer than that, a lead is what is left of the digits of two units.
constexpr double kNoLead = 1e-5;

std::string what(const Comparison& c) {
  return fmt::format("{}{}{} batch {} on {}", layout(c.run), c.run.overlap.empty() ? "" : " ",
                     c.run.overlap, c.run.global_batch, c.run.gpus);
}

// One step that was run twice, which is no order of two.
bool is_repeated(const Comparison& a, const Comparison& b) {
  return a.predicted == b.predicted && a.work == b.work && what(a) == what(b);
}

std::string percent(double ratio) { return format_change(ratio - 1); }

std::string published_text(const Ordering& o) {
  return o.published > 0 ? percent(o.published) : "faster";
}

struct Group {
  std::string name;
  int pairs = 0, kept = 0;
  double published = 0, predicted = 0;  // sums of logarithms
  bool ratios = false;
};

std::vector<Group> groups(const std::vector<Ordering>& orderings) {
  std::vector<Group> all;
  for (const Ordering& o : orderings) {
    const std::string& name = o.faster->run.source;
    auto it = std::find_if(all.begin(), all.end(), [&](const Group& g) { return g.name == name; });
    if (it == all.end()) it = all.insert(all.end(), Group{name});
    ++it->pairs;
    it->kept += o.kept() ? 1 : 0;
    it->predicted += std::log(o.predicted);
    if (o.published > 0) it->ratios = true, it->published += std::log(o.published);
  }
  return all;
}

}  // namespace

bool Ordering::of_one_step() const {
  const Run &a = faster->run, &b = slower->run;
  return a.seq == b.seq && a.global_batch == b.global_batch && a.gpus == b.gpus;
}

std::vector<Ordering> orderings(const std::vector<Comparison>& comparisons) {
  std::vector<Ordering> all;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    for (size_t j = i + 1; j < comparisons.size(); ++j) {
      const Comparison *a = &comparisons[i], *b = &comparisons[j];
      if (!a->reason.empty() || !b->reason.empty() || !comparable(*a, *b)) continue;
      const double published = lead(*a, *b);
      if (std::abs(published - 1) < kNoLead || is_repeated(*a, *b)) continue;
      if (published < 1) std::swap(a, b);
      Ordering made;
      made.faster = a;
      made.slower = b;
      made.published = a->published > 0 ? lead(*a, *b) : 0;
      made.predicted = rates(*a, a->predicted, *b, b->predicted);
      all.push_back(made);
    }
  }
  return all;
}

std::string to_text(const std::vector<Ordering>& orderings) {
  std::string text = fmt::format("{:<72} {:>5} {:>5} {:>15} {:>15}\n", "source", "pairs", "kept",
                                 "mean published", "mean predicted");
  int kept = 0, of_one_step = 0, kept_of_one_step = 0;
  for (const Ordering& o : orderings) {
    kept += o.kept() ? 1 : 0;
    of_one_step += o.of_one_step() ? 1 : 0;
    kept_of_one_step += o.of_one_step() && o.kept() ? 1 : 0;
  }
  for (const Group& g : groups(orderings)) {
    text += fmt::format("{:<72.72} {:>5} {:>5} {:>15} {:>15}\n", g.name, g.pairs, g.kept,
                        g.ratios ? percent(std::exp(g.published / g.pairs)) : "",
                        percent(std::exp(g.predicted / g.pairs)));
  }
  text += fmt::format("{:<72} {:>5} {:>5}\n", "all", orderings.size(), kept);
  text += fmt::format("{:<72} {:>5} {:>5}\n", "of one step: same sequences, batch and devices",
                      of_one_step, kept_of_one_step);
  std::string source;
  for (const Ordering& o : orderings) {
    if (o.kept()) continue;
    if (source.empty()) text += "\nnot kept:\n";
    if (o.faster->run.source != source)
      text += fmt::format("  {}, {}\n", o.faster->run.source, o.faster->run.model);
    source = o.faster->run.source;
    text += fmt::format("    {:<52} over {:<52} published {:>8} predicted {:>8}{}\n",
                        what(*o.faster), what(*o.slower), published_text(o), percent(o.predicted),
                        o.of_one_step() ? "" : "  (of two steps)");
  }
  return text;
}

Json to_json(const std::vector<Ordering>& orderings) {
  JsonArray list;
  for (const Ordering& o : orderings) {
    JsonObject row;
    row["source"] = o.faster->run.source;
    row["model"] = o.faster->run.model;
    row["faster"] = what(*o.faster);
    row["slower"] = what(*o.slower);
    row["published"] = o.published > 0 ? Json(o.published) : Json();
    row["predicted"] = o.predicted;
    row["kept"] = o.kept();
    row["of_one_step"] = o.of_one_step();
    list.push_back(Json(std::move(row)));
  }
  return Json(std::move(list));
}

}  // namespace mw::calibrate

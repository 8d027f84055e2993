// The forms of a plan, JSON and short, printed.
#include "compile/plan.h"

#include <fmt/ranges.h>

#include "base/text.h"

namespace mw::compile {

int64_t chunks_unsaid(const std::string& schedule, int64_t pp) {
  const pipeline::ChunkRange& chunks = pipeline::kind_of(schedule).chunks;
  return pp > 1 ? chunks.usual : chunks.least;
}

std::vector<std::string> texts_of(const AxisOrder& order) { return {order.begin(), order.end()}; }

Json to_json(const Plan& plan) {
  Json json{JsonObject{}};
  json["dp"] = plan.dp;
  json["tp"] = plan.tp;
  json["pp"] = plan.pp;
  if (plan.cp > 1) json["cp"] = plan.cp;
  if (plan.ep > 1) json["ep"] = plan.ep;
  json["order"] = Json::list(texts_of(plan.order));
  json["sp"] = plan.sp;
  if (plan.regather) json["regather"] = true;
  json["schedule"] = plan.schedule;
  if (plan.written) {
    const std::string text = to_csv(*plan.written.schedule);
    Json rows{JsonArray{}};
    for (const std::string_view row : split(text, '\n')) {
      if (!row.empty()) rows.push_back(Json(std::string(row)));
    }
    json["actions"] = std::move(rows);
  }
  json["chunks"] = plan.chunks;
  json["microbatches"] = plan.microbatches;
  json["zero"] = plan.zero;
  json["recompute"] = transform::name_of(plan.recompute);
  if (plan.grad_reduce)
    json["grad_reduce"] = kGradReduceNames[static_cast<size_t>(*plan.grad_reduce)];
  if (plan.bucket_mb != Plan().bucket_mb) json["bucket_mb"] = plan.bucket_mb;
  if (plan.prefetch_mb != Plan().prefetch_mb) json["prefetch_mb"] = plan.prefetch_mb;
  if (!plan.layers.empty()) json["layers"] = Json::list(plan.layers);
  if (plan.group > 0) json["group"] = plan.group;
  if (plan.pairs > 0) json["pairs"] = plan.pairs;
  if (plan.slices > 0) json["slices"] = plan.slices;
  if (plan.post_validation) json["post_validation"] = true;
  if (plan.memory_limit > 0) json["memory_limit"] = plan.memory_limit;
  if (!plan.costs.empty()) json["costs"] = Json::list(plan.costs);
  return json;
}

Json to_json(const Plan& plan, const PlannedStep& step) {
  Json json = to_json(plan), of{JsonObject{}};
  if (!step.model.empty()) of["model"] = step.model;
  if (!step.cluster.empty()) of["cluster"] = step.cluster;
  if (!step.profile.empty()) of["profile"] = step.profile;
  if (step.global_batch > 0) of["global_batch"] = step.global_batch;
  if (step.seq_len > 0) of["seq_len"] = step.seq_len;
  if (!step.precision.empty()) of["precision"] = step.precision;
  if (step.tf32) of["tf32"] = true;
  if (step.scatter_gather) of["scatter_gather"] = *step.scatter_gather;
  json["for"] = std::move(of);
  return json;
}

std::string short_form(const Plan& plan) {
  const Plan standard;
  std::string text = fmt::format("dp={},tp={},pp={}", plan.dp, plan.tp, plan.pp);
  if (plan.cp > 1) text += fmt::format(",cp={}", plan.cp);
  if (plan.ep > 1) text += fmt::format(",ep={}", plan.ep);
  if (plan.order != standard.order) text += ",order=" + join(texts_of(plan.order), "-");
  if (plan.pp * plan.chunks > 1 || plan.schedule != standard.schedule)
    text += ",schedule=" + plan.schedule;
  if (plan.chunks > 1 || chunks_unsaid(plan.schedule, plan.pp) > 1)
    text += fmt::format(",chunks={}", plan.chunks);
  text += fmt::format(",microbatches={}", plan.microbatches);
  if (plan.sp) text += ",sp";
  if (plan.regather) text += ",regather";
  if (plan.zero > 0) text += fmt::format(",zero={}", plan.zero);
  if (plan.recompute != Recompute::kNone)
    text += fmt::format(",recompute={}", transform::name_of(plan.recompute));
  if (plan.grad_reduce)
    text +=
        fmt::format(",grad_reduce={}", kGradReduceNames[static_cast<size_t>(*plan.grad_reduce)]);
  if (plan.bucket_mb != standard.bucket_mb) text += fmt::format(",bucket_mb={}", plan.bucket_mb);
  if (plan.prefetch_mb != standard.prefetch_mb)
    text += fmt::format(",prefetch_mb={}", plan.prefetch_mb);
  if (!plan.layers.empty()) {
    std::vector<std::string> counts;
    for (const int64_t n : plan.layers) counts.push_back(std::to_string(n));
    text += ",layers=" + join(counts, ":");
  }
  if (plan.group > 0) text += fmt::format(",group={}", plan.group);
  if (plan.pairs > 0) text += fmt::format(",pairs={}", plan.pairs);
  if (plan.slices > 0) text += fmt::format(",slices={}", plan.slices);
  if (plan.memory_limit > 0) text += fmt::format(",memory_limit={}", plan.memory_limit);
  if (!plan.costs.empty()) text += fmt::format(",costs={}", fmt::join(plan.costs, ":"));
  if (plan.post_validation) text += ",post_validation";
  return text;
}

}  // namespace mw::compile

#include "predict/what_if.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "cost/op_time.h"
#include "pipeline/schedule.h"

namespace mw::predict {
namespace {

// Rates that were measured stand in for peaks and bandwidth.
void scale_kernels(cluster::Device& device, bool products, double factor) {
  for (auto& [op, rate] : device.kernel_rates) {
    if (cost::is_matrix_kernel(op) == products) rate *= factor;
  }
}

using cluster::Device, cluster::Link;
// A figure that is multiplied: of every link, or of one that the key names behind a dot; or of the
// device.
struct Factor {
  std::string_view key;
  void (*of_link)(Link&, double factor);
  void (*of_device)(Device&, double factor) = nullptr;
};
constexpr std::array<Factor, 6> kFactors = {{
    {"link_bandwidth",
     [](Link& link, double factor) {
       for (cluster::BytesPerSecond* rate :
            {&link.bandwidth, &link.bus_bandwidth, &link.switch_bus_bandwidth,
             &link.switch_port_bandwidth})
         *rate = *rate * factor;
     }},
    {"link_latency",
     [](Link& link, double factor) {
       link.latency = link.latency * factor;
       link.hop_factor *= factor;
     }},
    {"matrix_peak", nullptr,
     [](Device& device, double factor) {
       for (auto& [format, peak] : device.peaks) peak = peak * factor;
       scale_kernels(device, true, factor);
     }},
    {"memory_bandwidth", nullptr,
     [](Device& device, double factor) {
       device.memory_bandwidth = device.memory_bandwidth * factor;
       scale_kernels(device, false, factor);
     }},
    {"memory_size", nullptr,
     [](Device& device, double factor) {
       const double bytes = static_cast<double>(device.memory.value) * factor;
       device.memory = Bytes(static_cast<int64_t>(bytes));
     }},
    {"host_time", nullptr,
     [](Device& device, double factor) {
       cluster::Attained& attained = device.attained;
       for (Seconds* time : {&attained.launch, &attained.host_op, &attained.host_collective,
                             &attained.step_overhead})
         *time = *time * factor;
     }},
}};
const std::vector<std::string> kSizes = {"global_batch", "seq_len"};
constexpr const char* kPrecision = "precision";
constexpr const char* kDevices = "gpus";

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// All keys for this cluster.
std::vector<std::string> known_keys(const cluster::Cluster& cluster) {
  std::vector<std::string> all;
  for (const Factor& factor : kFactors) all.emplace_back(factor.key);
  for (const cluster::Link& link : cluster.links) {
    for (const Factor& factor : kFactors) {
      if (factor.of_link != nullptr) all.push_back(fmt::format("{}.{}", factor.key, link.name));
    }
  }
  for (const compile::PlanKey& key : compile::plan_keys()) all.emplace_back(key.name);
  all.insert(all.end(), kSizes.begin(), kSizes.end());
  all.emplace_back(kPrecision);
  all.emplace_back(kDevices);
  return all;
}

double factor_of(const std::string& key, const std::string& value) {
  constexpr double kMost = 1e6;
  const auto number = parse_double(value);
  if (!number || !std::isfinite(*number) || *number <= 0)
    throw_error("--vary {}: must be a factor above 0 such as 0.5, is '{}'", key, value);
  if (*number > kMost || *number < 1 / kMost)
    throw_error("--vary {}: must be a factor from {} to {}, is '{}'", key, 1 / kMost, kMost, value);
  return *number;
}

void scale(cluster::Cluster& cluster, const std::string& key, double factor) {
  const size_t dot = key.find('.');
  for (const Factor& figure : kFactors) {
    if (figure.key != key.substr(0, dot)) continue;
    if (figure.of_device != nullptr) return figure.of_device(cluster.device, factor);
    for (cluster::Link& link : cluster.links) {
      if (dot == std::string::npos || link.name == key.substr(dot + 1))
        figure.of_link(link, factor);
    }
  }
}

bool is_unset(const Settings& settings, const std::string& key) {
  return std::none_of(settings.begin(), settings.end(),
                      [&](const auto& setting) { return setting.first == key; });
}

// The plan with those of the settings that are keys of it.
compile::Plan with_keys(const compile::Plan& plan, const Settings& settings) {
  compile::PlanEdits edits;
  for (const auto& [key, value] : settings) {
    if (compile::find_plan_key(key) != nullptr) edits[key] = value;
  }
  return edits.empty() ? plan : compile::edited(plan, edits, "--vary");
}

int64_t count_of(const std::string& key, const std::string& value) {
  const auto number = parse_int64(value);
  if (!number || *number < 1)
    throw_error("--vary {}: must be a whole number from 1 on, is '{}'", key, value);
  return *number;
}

// A value of a key of the plan that no plan could have. REQUIRES: it is one.
void check_plan_value(const std::string& key, const std::string& value) {
  if (compile::find_plan_key(key)->value == compile::PlanKey::Value::kCount) {
    count_of(key, value);
  } else if (key == "schedule") {
    if (ends_with(to_lower(value), ".csv")) {
      throw_error(
          "--vary schedule: {} is a file, which the plan itself may name; 'simulate --compare "
          "schedule={}' puts it beside another plan",
          value, value);
    }
    if (pipeline::find_kind(value) == nullptr)
      compile::edited(compile::Plan(), {{key, value}}, "--vary");
  } else {
    compile::Plan beside;  // what makes a value of the key possible
    beside.tp = beside.pp = beside.microbatches = 2;
    beside.sp = key == "regather";
    if (key == "costs" || key == "memory_limit")
      beside.schedule = pipeline::kinds_with(&pipeline::KindOptions::costs).front();
    if (key == "layers") beside.pp = static_cast<int64_t>(split(value, ':').size());
    compile::edited(beside, {{key, value}}, "--vary");
  }
}

// tf32 is of f32 products.
void vary_precision(Request& request, const std::string& value) {
  if (!set_precision(request, value)) {
    throw_error("--vary {}: must be one of {}, is '{}'{}", kPrecision,
                join(precision_names(), ", "), value, did_you_mean(value, precision_names()));
  }
  if (request.precision != DType::kF32) request.options.tf32 = false;
}

std::string step_key(const Request& request) {
  return fmt::format("{} {} {} {}", compile::to_json(request.plan).dump(), request.global_batch,
                     request.seq_len, precision_name(request));
}

// A table of more rows nobody reads.
constexpr size_t kMostRows = 10'000;

// kMostRows + 1: more than these.
size_t combinations(const std::vector<Variation>& variations) {
  size_t count = 1;
  for (const Variation& variation : variations)
    count = std::min(kMostRows + 1, count * variation.values.size());
  return count;
}

// One value of one key, by itself.
void check_value(const Request& request, const std::string& key, const std::string& value) {
  if (compile::find_plan_key(key) != nullptr) {
    check_plan_value(key, value);
  } else if (key == kDevices) {
    count_of(key, value);
  } else {
    changed(request, {{key, value}});
  }
}

}  // namespace

std::vector<std::string> findings(const Request& request,
                                  const std::vector<Variation>& variations) {
  Diagnostics diagnostics;
  std::vector<std::string> seen;
  const std::vector<std::string> keys = known_keys(request.cluster);
  for (const Variation& variation : variations) {
    if (is_in(seen, variation.key)) diagnostics.add("--vary {}: is there twice", variation.key);
    seen.push_back(variation.key);
    if (!is_in(keys, variation.key)) {
      diagnostics.add("--vary: unknown key '{}'{}; known are {}", variation.key,
                      did_you_mean(variation.key, keys), join(keys, ", "));
      continue;
    }
    for (const std::string& value : variation.values) {
      if (value.empty()) {
        diagnostics.add("--vary {}: a value is missing in '{}={}'", variation.key, variation.key,
                        join(variation.values, ","));
        continue;
      }
      try {
        check_value(request, variation.key, value);
      } catch (const Error& error) {
        diagnostics.absorb(error);
      }
    }
  }
  if (combinations(variations) > kMostRows) {
    diagnostics.add("--vary: the values make more than {} combinations; give fewer", kMostRows);
  }
  return diagnostics.findings();
}

Variation parse_variation(const std::string& text) {
  const size_t equals = text.find('=');
  Variation made{std::string(trim(text.substr(0, equals))), {}};
  if (equals == std::string::npos || made.key.empty())
    throw_error("--vary: must be KEY=VALUE,VALUE… such as link_bandwidth=0.5,1,2, is '{}'", text);
  for (const std::string_view value : split(std::string_view(text).substr(equals + 1), ',')) {
    made.values.emplace_back(trim(value));
  }
  return made;
}

Request changed(Request request, const Settings& settings, int64_t devices) {
  const auto sets = [&](const char* name) { return !is_unset(settings, name); };
  for (const auto& [key, value] : settings) {
    if (compile::find_plan_key(key) != nullptr) continue;
    if (key == kPrecision) {
      vary_precision(request, value);
    } else if (key == kDevices) {
      devices = count_of(key, value);
    } else if (is_in(kSizes, key)) {
      (key == "global_batch" ? request.global_batch : request.seq_len) = count_of(key, value);
    } else {
      scale(request.cluster, key, factor_of(key, value));
    }
  }
  const int64_t pieces = request.plan.dp * request.plan.microbatches;
  request.plan = with_keys(request.plan, settings);
  compile::Plan& plan = request.plan;
  if (devices == 0 || plan.ranks() == devices) return request;
  const std::string option = sets(kDevices) ? "gpus" : "--gpus";
  const int64_t replica = plan.ranks() / plan.dp;
  if (sets("dp"))
    throw_error("{}: is {}, but the plan has {} ranks", option, devices, plan.rank_text());
  if (devices % replica != 0)
    throw_error("{}: is {}, no multiple of the {} devices of a replica", option, devices, replica);
  plan.dp = devices / replica;
  if (!sets(kDevices) || sets("microbatches")) return request;
  if (request.global_batch % plan.dp != 0) {
    throw_error(
        "gpus: {} give dp={}, which does not divide the batch of {}; vary global_batch, too",
        devices, plan.dp, request.global_batch);
  }
  if (pieces % plan.dp != 0) {
    throw_error(
        "gpus: {} give dp={}, which does not divide the batch's {} microbatches; vary "
        "microbatches, too",
        devices, plan.dp, pieces);
  }
  plan.microbatches = pieces / plan.dp;
  return request;
}

std::string followers(const compile::Plan& before, const compile::Plan& after,
                      const Settings& settings) {
  std::vector<std::string> texts;
  if (after.chunks != before.chunks && is_unset(settings, "chunks"))
    texts.push_back(fmt::format("with chunks={}", after.chunks));
  if (after.schedule != before.schedule && is_unset(settings, "schedule"))
    texts.push_back("with schedule=" + after.schedule);
  compile::Plan dropping = before;
  std::vector<std::string> dropped;
  for (const std::string& key :
       compile::drop_options(dropping, pipeline::kind_of(after.schedule))) {
    if (is_unset(settings, key)) dropped.push_back(key);
  }
  if (!dropped.empty()) texts.push_back("without " + join(dropped, ", "));
  return join(texts, ", ");
}

std::vector<WhatIf> what_if(const Request& request, const std::vector<Variation>& variations,
                            int64_t devices) {
  Diagnostics diagnostics;
  for (const std::string& finding : findings(request, variations)) diagnostics.add("{}", finding);
  diagnostics.throw_if_any();
  const size_t count = combinations(variations);
  std::vector<WhatIf> rows(count);
  struct Known {
    std::unique_ptr<Step> step;
    std::optional<size_t> row;  // the first one that it has a prediction of
  };
  std::map<std::string, Known> steps;
  for (size_t i = 0; i < count; ++i) {
    WhatIf& row = rows[i];
    size_t left = i, block = count;
    for (const Variation& variation : variations) {
      block /= variation.values.size();
      row.values.push_back(variation.values[left / block]);
      left %= block;
    }
    row.request = request;
    Settings settings;
    for (size_t v = 0; v < variations.size(); ++v)
      settings.emplace_back(variations[v].key, row.values[v]);
    try {
      row.request = changed(request, settings, devices);
      row.has_request = true;
      row.followers = followers(request.plan, row.request.plan, settings);
      Known& known = steps[step_key(row.request)];
      if (known.step == nullptr) known.step = std::make_unique<Step>(compile_step(row.request));
      row.prediction = known.row ? predict(row.request, *known.step, *rows[*known.row].prediction)
                                 : predict(row.request, *known.step);
      if (!known.row) known.row = i;
    } catch (const Error& error) {
      row.reason = replace_all(join(error.findings(), "; "), "--vary: ", "");
    }
  }
  for (const WhatIf& row : rows) {
    if (row.prediction) return rows;
  }
  for (const WhatIf& row : rows) {
    std::vector<std::string> values;
    for (size_t v = 0; v < variations.size(); ++v)
      values.push_back(variations[v].key + "=" + row.values[v]);
    diagnostics.add("--vary {}: {}", join(values, " "), row.reason);
  }
  throw Error(diagnostics.findings());
}

}  // namespace mw::predict

#include "cluster/profile.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "base/toml.h"
#include "cluster/measured.h"

namespace mw::cluster {
namespace {

constexpr std::array<std::string_view, 3> kAllocators = {"plan", "segments", "expandable"};
constexpr std::array<std::string_view, 3> kAccumulations = {"products", "buffers", "autograd"};
constexpr std::array<std::string_view, 9> kLacking = {
    "tensor-parallelism", "pipelines",       "divided-pipelines", "interleaved", "selective",
    "split-backward",     "split-recompute", "replicas",          "slices"};

constexpr std::array<ConstantInfo, 31> kConstants = {{
    {"matrix_fraction", 0.05, 1, "of the dense peak, by the largest matrix products"},
    {"product_half_k", 1, 4096, "elements: a product whose k is this long reaches half"},
    {"fp8_fraction", 0.2, 2, "of the share of the peak that half-precision products reach, by fp8"},
    {"attention_fraction", 0.05, 1, "fused attention's share of the largest products' rate"},
    {"attention_grad_fraction", 0.05, 2, "of what fused attention reaches, by its gradient"},
    {"attention_half_keys", 1, 8192, "that a query sees where fused attention reaches half of it"},
    {"attention_grad_half_keys", 1, 8192, "the same of its gradient"},
    {"memory_fraction", 0.05, 1, "of the memory bandwidth, by kernels that read and write"},
    {"cache_rate", 1, 10, "of kernels whose operands and results fit the cache, over memory's"},
    {"score_traffic", 0.05, 5, "bytes of unfused attention's kernels over those counted"},
    {"activation_traffic", 0.5, 30, "bytes of GELU's kernels over those of one that is fused"},
    {"logits_fraction", 0.1, 1, "of what their shape says, by products with the vocabulary"},
    {"loss_traffic", 0.2, 50, "bytes of the loss's kernels over the fewest possible"},
    {"update_traffic", 0.05, 20, "bytes of the optimizer's kernels over the fewest possible"},
    {"gradient_copy_traffic", 0.2, 20,
     "bytes of the kernels that put gradients together for a collective over the fewest possible"},
    {"reduce_bucket_MiB", 0.1, 1e4, "of gradients that one all-reduce of the step sums at most"},
    {"overlap_slowdown", 1, 4, "time of computation beside communication, over that alone"},
    {"launch_us", 0.1, 1000, "from the end of a kernel to the start of the next"},
    {"host_op_us", 0.1, 1000, "the host's work to issue one op"},
    {"host_collective_us", 0.1, 5000, "the host's work to issue a collective, beside host_op_us"},
    {"collective_latency_us", 0.1, 5000, "of a collective, beside what its algorithm says"},
    {"collective_member_us", 0.1, 1000,
     "of data parallelism's all-gathers and reduce-scatters, for each member's part"},
    {"collective_copies", 0, 20,
     "times that data parallelism's all-gathers and reduce-scatters read or write the whole tensor "
     "to put it together or to part it"},
    {"collective_cards", 1, 1024, "network cards of a node that one collective uses at most"},
    {"message_latency_us", 0.1, 5000, "of a message, beside the link's"},
    {"message_GBps", 0.1, 1e4, "that one message reaches at most, whatever its link"},
    {"message_network_fraction", 0.05, 1, "of a network card, by one message"},
    {"step_overhead_us", 1, 1e6, "the host's work once a step"},
    {"node_bus_fraction", 0.05, 1, "of a link inside a node, by collectives"},
    {"network_bus_fraction", 0.05, 1, "of a network card, by collectives"},
    {"network_latency_us", 0.1, 1e4, "of a message over the network, in place of its link's"},
}};

const Link* first_link(const Cluster& cluster, bool network) {
  for (const Link& link : cluster.links) {
    if ((link.kind == LinkKind::kNetwork) == network) return &link;
  }
  return nullptr;
}

// The value of an attained constant, and a second's share of its unit.
double* attained(Attained& a, std::string_view name) {
  if (name == "matrix_fraction") return &a.matrix_fraction;
  if (name == "fp8_fraction") return &a.fp8_fraction;
  if (name == "collective_copies") return &a.collective_copies;
  if (name == "collective_cards") return &a.collective_cards;
  if (name == "product_half_k") return &a.product_half_k;
  if (name == "attention_fraction") return &a.attention_fraction;
  if (name == "attention_grad_fraction") return &a.attention_grad_fraction;
  if (name == "attention_half_keys") return &a.attention_half_keys;
  if (name == "attention_grad_half_keys") return &a.attention_grad_half_keys;
  if (name == "memory_fraction") return &a.memory_fraction;
  if (name == "cache_rate") return &a.cache_rate;
  if (name == "message_network_fraction") return &a.message_network_fraction;
  if (name == "score_traffic") return &a.score_traffic;
  if (name == "activation_traffic") return &a.activation_traffic;
  if (name == "logits_fraction") return &a.logits_fraction;
  if (name == "loss_traffic") return &a.loss_traffic;
  if (name == "update_traffic") return &a.update_traffic;
  if (name == "gradient_copy_traffic") return &a.gradient_copy_traffic;
  if (name == "reduce_bucket_MiB") return &a.reduce_bucket;
  if (name == "overlap_slowdown") return &a.overlap_slowdown;
  return nullptr;
}
Seconds* attained_time(Attained& a, std::string_view name) {
  if (name == "launch_us") return &a.launch;
  if (name == "host_op_us") return &a.host_op;
  if (name == "host_collective_us") return &a.host_collective;
  if (name == "collective_latency_us") return &a.collective_latency;
  if (name == "collective_member_us") return &a.collective_member;
  if (name == "message_latency_us") return &a.message_latency;
  if (name == "step_overhead_us") return &a.step_overhead;
  return nullptr;
}

void read_constants(JsonReader reader, std::vector<Constant>& constants) {
  for (const std::string& name : reader.keys()) {
    const auto info = std::find_if(kConstants.begin(), kConstants.end(),
                                   [&](const ConstantInfo& known) { return known.name == name; });
    if (info == kConstants.end()) continue;
    JsonReader entry = reader.object(name);
    Constant constant;
    constant.name = name;
    constant.value = entry.number("value", {.min = info->least, .max = info->most});
    constant.low = entry.number_or("low", 0, {.min = 0});
    constant.high = entry.number_or("high", 0, {.min = 0});
    // Each is written with fewer digits than the value.
    constexpr double kDigits = 1e-3;
    if (constant.high < constant.low) {
      entry.fail("high", "must be at least low");
    } else if (constant.fitted() && (constant.value < constant.low * (1 - kDigits) ||
                                     constant.value > constant.high * (1 + kDigits))) {
      entry.fail("value", "must be from low to high, {:g} to {:g}, is {:g}", constant.low,
                 constant.high, constant.value);
    }
    constant.source = entry.string("source");
    entry.finish();
    constants.push_back(std::move(constant));
  }
  for (const ConstantInfo& info : kConstants) reader.ignore(info.name);
  reader.finish();
}

// By number of the names.
template <typename Choice, size_t kNames>
Choice choice(JsonReader& reader, std::string_view key, Choice fallback,
              const std::array<std::string_view, kNames>& names) {
  const std::string name = reader.choice_or(key, names[static_cast<size_t>(fallback)], names);
  return static_cast<Choice>(std::find(names.begin(), names.end(), name) - names.begin());
}

std::string accumulation_text(Accumulation accumulation) {
  return fmt::format("accumulation = {}\n",
                     quoted(kAccumulations[static_cast<size_t>(accumulation)]));
}

void read_lacking(JsonReader& reader, std::vector<Lacking>& lacking) {
  for (const std::string& name : reader.strings("lacks")) {
    const auto known = std::find(kLacking.begin(), kLacking.end(), name);
    if (known == kLacking.end()) {
      reader.fail("lacks", "'{}' is not one of {}{}", name, join(kLacking, ", "),
                  did_you_mean(name, std::span<const std::string_view>(kLacking)));
    } else {
      lacking.push_back(static_cast<Lacking>(known - kLacking.begin()));
    }
  }
}

// An empty text would be in every run's notes.
std::vector<std::string> read_texts(JsonReader& reader) {
  std::vector<std::string> texts = reader.strings("runs_that_say");
  if (std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return text.empty(); }))
    reader.fail("runs_that_say", "has an empty text, which every run says");
  return texts;
}

void read_versions(std::vector<JsonReader> readers, Profile& profile) {
  for (JsonReader& reader : readers) {
    Profile::Version& version = profile.versions.emplace_back();
    version.runs_that_say = read_texts(reader);
    version.overlap = reader.strings("overlap");
    version.source = reader.string("source");
    version.fused_attention = reader.boolean_or("fused_attention", profile.fused_attention);
    version.attention_copies =
        reader.boolean_or("attention_copies", profile.stack.attention_copies);
    version.f16_gradients = reader.boolean_or("f16_gradients", profile.stack.f16_gradients);
    version.accumulation =
        choice(reader, "accumulation", profile.stack.accumulation, kAccumulations);
    version.gradient_bytes =
        reader.integer_or("gradient_bytes", profile.gradient_bytes, {.min = 1, .max = 8});
    // A version's own format is that of both kinds of halves.
    version.bf16_gradient_bytes = reader.integer_or(
        "bf16_gradient_bytes", reader.has("gradient_bytes") ? 0 : profile.bf16_gradient_bytes,
        {.min = 1, .max = 8});
    if (reader.has("constants")) read_constants(reader.object("constants"), version.constants);
    reader.ignore("constants");
    reader.finish();
  }
}

void read_left_out(std::vector<JsonReader> readers, std::vector<LeftOut>& all) {
  for (JsonReader& reader : readers) {
    LeftOut& out = all.emplace_back();
    out.name = reader.string("name");
    out.runs = reader.integer("runs", {.min = 1});
    out.mean = reader.number("mean", {.min = 0});
    out.worst = reader.number("worst", {.min = -1});
    reader.finish();
  }
}

// ["a", "b"]
std::string list_text(std::vector<std::string> words) {
  for (std::string& word : words) word = quoted(word);
  return "[" + join(words, ", ") + "]";
}

std::string lacking_text(const std::vector<Lacking>& lacking) {
  if (lacking.empty()) return "";
  std::vector<std::string> names;
  for (const Lacking what : lacking) names.emplace_back(kLacking[static_cast<size_t>(what)]);
  return fmt::format("lacks = {}\n", list_text(names));
}

// { value = 0.5, source = "..." }
std::string entry_text(const Constant& c) {
  std::string text = fmt::format("{} = {{ value = {:.5g}, ", c.name, c.value);
  if (c.fitted()) text += fmt::format("low = {:.4g}, high = {:.4g}, ", c.low, c.high);
  return text + fmt::format("source = {} }}", quoted(c.source));
}

}  // namespace

std::span<const ConstantInfo> constant_infos() { return kConstants; }

double constant(const Cluster& cluster, std::string_view name) {
  Attained a = cluster.device.attained;
  if (const double* value = attained(a, name)) return *value;
  if (const Seconds* time = attained_time(a, name)) return time->value / kMicro;
  if (name == "message_GBps") return a.message_bandwidth.value / kGiga;
  const Link* link = first_link(cluster, starts_with(name, "network_"));
  if (name == "network_latency_us") return link == nullptr ? 1 : link->latency.value / kMicro;
  return link == nullptr ? 1 : link->bus_bandwidth.value / link->bandwidth.value;
}

void set_constant(Cluster& cluster, std::string_view name, double value) {
  Attained& a = cluster.device.attained;
  if (double* ratio = attained(a, name)) {
    *ratio = value;
  } else if (Seconds* time = attained_time(a, name)) {
    *time = Seconds(value * kMicro);
  } else if (name == "message_GBps") {
    cluster.device.attained.message_bandwidth = BytesPerSecond(value * kGiga);
  } else if (name == "network_latency_us") {
    for (Link& link : cluster.links) {
      if (link.kind == LinkKind::kNetwork) link.latency = Seconds(value * kMicro);
    }
  } else {
    MW_CHECK(name == "node_bus_fraction" || name == "network_bus_fraction", "constant {}", name);
    for (Link& link : cluster.links) {
      if ((link.kind == LinkKind::kNetwork) == (name == "network_bus_fraction"))
        link.bus_bandwidth = BytesPerSecond(link.bandwidth.value * value);
    }
  }
}

Profile parse_profile(std::string_view text, const std::string& file) {
  const Toml toml = parse_toml(text, file);
  Diagnostics diagnostics;
  JsonReader reader(toml.root, file, &diagnostics, &toml.lines);
  Profile profile;
  profile.file = file;
  profile.name = reader.string("name");
  profile.device = reader.string("device");
  profile.software = profile.stack.name = reader.string("software");
  profile.source = reader.string("source");
  if (reader.has("runs_that_say")) profile.runs_that_say = read_texts(reader);
  reader.ignore("runs_that_say");
  if (reader.has("overlap")) profile.stack.overlap = reader.strings("overlap");
  reader.ignore("overlap");
  profile.stack.scatter_gather = reader.boolean_or("scatter_gather", false);
  profile.stack.gloo = reader.boolean_or("gloo", false);
  profile.stack.global_sums = reader.boolean_or("global_sums", true);
  profile.fused_attention = reader.boolean_or("fused_attention", true);
  profile.blocked_softmax = reader.boolean_or("blocked_softmax", false);
  profile.fused_elementwise = reader.boolean_or("fused_elementwise", true);
  profile.fused_linears = reader.boolean_or("fused_linears", false);
  if (reader.has("lacks")) read_lacking(reader, profile.stack.lacking);
  reader.ignore("lacks");
  profile.stack.selective_op = reader.boolean_or("selective_op", false);
  profile.keeps_gathered = reader.boolean_or("keeps_gathered", false);
  profile.stack.f32_loss = reader.boolean_or("f32_loss", false);
  profile.stack.f32_softmax = reader.boolean_or("f32_softmax", false);
  profile.stack.gathered_ends = reader.boolean_or("gathered_ends", false);
  profile.stack.whole_recompute = reader.boolean_or("whole_recompute", false);
  profile.stack.autograd = reader.boolean_or("autograd", false);
  profile.stack.dropout_masks = reader.boolean_or("dropout_masks", false);
  profile.stack.narrow_saved = reader.boolean_or("narrow_saved", false);
  profile.stack.attention_copies = reader.boolean_or("attention_copies", false);
  profile.stack.f16_gradients = reader.boolean_or("f16_gradients", false);
  profile.stack.gathers_late = reader.boolean_or("gathers_late", false);
  profile.stack.copies_shards = reader.boolean_or("copies_shards", false);
  profile.stack.prefetch_mb = reader.integer_or("prefetch_mb", 0, {.min = 0});
  profile.stack.allocator = choice(reader, "allocator", Allocator::kPlan, kAllocators);
  profile.stack.torch_2_6 = reader.boolean_or("torch_2_6", false);
  profile.stack.accumulation =
      choice(reader, "accumulation", Accumulation::kProducts, kAccumulations);
  profile.stack.gathered_again = reader.number_or("gathered_again", 0, {.min = 0, .max = 1});
  profile.gradient_bytes = reader.integer_or("gradient_bytes", 4, {.min = 1, .max = 8});
  profile.bf16_gradient_bytes = reader.integer_or("bf16_gradient_bytes", 0, {.min = 1, .max = 8});
  profile.stack.error = reader.number_or("error", 0, {.min = 0});
  if (reader.has("versions")) read_versions(reader.objects("versions"), profile);
  reader.ignore("versions");
  if (reader.has("constants")) read_constants(reader.object("constants"), profile.constants);
  reader.ignore("constants");
  if (reader.has("measured")) read_measured(reader.object("measured"), profile.stack);
  reader.ignore("measured");
  if (reader.has("left_out")) read_left_out(reader.objects("left_out"), profile.left_out);
  reader.ignore("left_out");
  reader.finish();
  diagnostics.throw_if_any();
  return profile;
}

std::string to_toml(const Profile& profile) {
  std::string text =
      fmt::format("name = {}\ndevice = {}\nsoftware = {}\nsource = {}\n", quoted(profile.name),
                  quoted(profile.device), quoted(profile.software), quoted(profile.source));
  if (!profile.runs_that_say.empty())
    text += fmt::format("runs_that_say = {}\n", list_text(profile.runs_that_say));
  text += fmt::format(
      "overlap = {}\nscatter_gather = {}\nfused_attention = {}\n"
      "{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}gradient_bytes = {}\n",
      list_text(profile.stack.overlap), profile.stack.scatter_gather, profile.fused_attention,
      profile.blocked_softmax ? "blocked_softmax = true\n" : "",
      profile.stack.gloo ? "gloo = true\n" : "",
      profile.stack.global_sums ? "" : "global_sums = false\n",
      profile.fused_elementwise ? "" : "fused_elementwise = false\n",
      profile.fused_linears ? "fused_linears = true\n" : "", lacking_text(profile.stack.lacking),
      profile.stack.selective_op ? "selective_op = true\n" : "",
      profile.keeps_gathered ? "keeps_gathered = true\n" : "",
      profile.stack.f32_loss ? "f32_loss = true\n" : "",
      profile.stack.f32_softmax ? "f32_softmax = true\n" : "",
      profile.stack.gathered_ends ? "gathered_ends = true\n" : "",
      profile.stack.whole_recompute ? "whole_recompute = true\n" : "",
      profile.stack.autograd ? "autograd = true\n" : "",
      profile.stack.dropout_masks ? "dropout_masks = true\n" : "",
      profile.stack.narrow_saved ? "narrow_saved = true\n" : "",
      profile.stack.attention_copies ? "attention_copies = true\n" : "",
      profile.stack.f16_gradients ? "f16_gradients = true\n" : "",
      profile.stack.gathers_late ? "gathers_late = true\n" : "",
      profile.stack.copies_shards ? "copies_shards = true\n" : "", profile.gradient_bytes);
  if (profile.bf16_gradient_bytes > 0)
    text += fmt::format("bf16_gradient_bytes = {}\n", profile.bf16_gradient_bytes);
  if (profile.stack.allocator != Allocator::kPlan) {
    text += fmt::format("allocator = {}\n",
                        quoted(kAllocators[static_cast<size_t>(profile.stack.allocator)]));
  }
  if (profile.stack.torch_2_6) text += "torch_2_6 = true\n";
  if (profile.stack.accumulation != Accumulation::kProducts)
    text += accumulation_text(profile.stack.accumulation);
  if (profile.stack.prefetch_mb > 0)
    text += fmt::format("prefetch_mb = {}\n", profile.stack.prefetch_mb);
  if (profile.stack.gathered_again > 0)
    text += fmt::format("gathered_again = {:.4g}\n", profile.stack.gathered_again);
  if (profile.stack.error > 0) text += fmt::format("error = {:.4g}\n", profile.stack.error);
  for (const Profile::Version& version : profile.versions) {
    text += fmt::format("\n[[versions]]\nruns_that_say = {}\noverlap = {}\n",
                        list_text(version.runs_that_say), list_text(version.overlap));
    if (version.fused_attention != profile.fused_attention)
      text += fmt::format("fused_attention = {}\n", version.fused_attention);
    if (version.attention_copies != profile.stack.attention_copies)
      text += fmt::format("attention_copies = {}\n", version.attention_copies);
    if (version.f16_gradients != profile.stack.f16_gradients)
      text += fmt::format("f16_gradients = {}\n", version.f16_gradients);
    if (version.accumulation != profile.stack.accumulation)
      text += accumulation_text(version.accumulation);
    if (version.gradient_bytes != profile.gradient_bytes)
      text += fmt::format("gradient_bytes = {}\n", version.gradient_bytes);
    if (version.bf16_gradient_bytes != profile.bf16_gradient_bytes) {
      text += fmt::format("bf16_gradient_bytes = {}\n", version.bf16_gradient_bytes > 0
                                                            ? version.bf16_gradient_bytes
                                                            : version.gradient_bytes);
    }
    text += fmt::format("source = {}\n", quoted(version.source));
    for (const Constant& c : version.constants)
      text += fmt::format("constants.{}\n", entry_text(c));
  }
  text += "\n[constants]\n";
  for (const Constant& c : profile.constants) text += entry_text(c) + "\n";
  text += measured_toml(profile.stack);
  for (const LeftOut& out : profile.left_out) {
    text += fmt::format("\n[[left_out]]\nname = {}\nruns = {}\nmean = {:.4g}\nworst = {:.4g}\n",
                        quoted(out.name), out.runs, out.mean, out.worst);
  }
  return text;
}

std::vector<Profile> read_profiles(FileSystem& fs, const std::string& folder) {
  std::vector<Profile> profiles;
  if (!fs.is_directory(folder)) return profiles;
  for (const std::string& file : fs.list(folder)) {
    if (!ends_with(file, ".toml")) continue;
    const std::string path = join_path(folder, file);
    profiles.push_back(parse_profile(fs.read_file(path), path));
  }
  return profiles;
}

void apply(const Profile& profile, Cluster& cluster) {
  if (profile.device != cluster.device.name) {
    throw_error("{}: is of {}, but {} has {}", profile.file, profile.device, cluster.file,
                cluster.device.name);
  }
  cluster.device.attained.fused_attention = profile.fused_attention;
  cluster.device.attained.blocked_softmax = profile.blocked_softmax;
  cluster.device.attained.fused_elementwise = profile.fused_elementwise;
  cluster.device.attained.fused_linears = profile.fused_linears;
  cluster.device.attained.gradient_bytes = static_cast<double>(profile.gradient_bytes);
  cluster.device.attained.bf16_gradient_bytes = static_cast<double>(profile.bf16_gradient_bytes);
  for (const Constant& c : profile.constants) set_constant(cluster, c.name, c.value);
  Stack stack = profile.stack;
  if (stack.measured.empty() && stack.precisions.empty()) {  // the cluster file's hold
    stack.measured = std::move(cluster.stack.measured);
    stack.precisions = std::move(cluster.stack.precisions);
  }
  cluster.stack = std::move(stack);
}

void apply(const Profile::Version& version, Cluster& cluster) {
  cluster.stack.overlap = version.overlap;
  cluster.stack.attention_copies = version.attention_copies;
  cluster.stack.f16_gradients = version.f16_gradients;
  cluster.stack.accumulation = version.accumulation;
  cluster.device.attained.fused_attention = version.fused_attention;
  cluster.device.attained.gradient_bytes = static_cast<double>(version.gradient_bytes);
  cluster.device.attained.bf16_gradient_bytes = static_cast<double>(version.bf16_gradient_bytes);
  for (const Constant& c : version.constants) set_constant(cluster, c.name, c.value);
}

ProfileName parse_profile_name(std::string_view text) {
  constexpr std::string_view kFile = ".toml";
  const size_t file = text.rfind(".toml:");  // a path may have colons
  const size_t colon = file == std::string_view::npos ? text.find(':') : file + kFile.size();
  if (colon == std::string_view::npos || ends_with(text, kFile)) return {std::string(text), ""};
  return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

void apply_version(const Profile& profile, const std::string& says, Cluster& cluster) {
  std::vector<std::string> known;
  const Profile::Version* found = nullptr;
  bool several = false;
  for (const Profile::Version& version : profile.versions) {
    known.insert(known.end(), version.runs_that_say.begin(), version.runs_that_say.end());
    const auto& words = version.runs_that_say;
    if (std::find(words.begin(), words.end(), says) == words.end()) continue;
    several = found != nullptr;
    found = &version;
  }
  if (found == nullptr || several) {
    throw_error("--profile: {} has {} version '{}'{}; known are {}", profile.file,
                several ? "more than one" : "no", clipped(says),
                several ? "" : did_you_mean(says, known),
                known.empty() ? "none" : join(known, ", "));
  }
  apply(*found, cluster);
  cluster.stack.name += ":" + says;
}

}  // namespace mw::cluster

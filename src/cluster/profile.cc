#include "cluster/profile.h"

#include <algorithm>
#include <array>
#include <variant>

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

// What a profile says with true or false. `usual`: where it does not; the first two are written all
// the same.
struct Flag {
  std::string_view key;
  bool usual;
  std::variant<bool Profile::*, bool Stack::*> place;
};
constexpr size_t kAlwaysWritten = 2;
constexpr std::array<Flag, 21> kFlags = {{
    {"scatter_gather", false, &Stack::scatter_gather},
    {"fused_attention", true, &Profile::fused_attention},
    {"blocked_softmax", false, &Profile::blocked_softmax},
    {"gloo", false, &Stack::gloo},
    {"global_sums", true, &Stack::global_sums},
    {"fused_elementwise", true, &Profile::fused_elementwise},
    {"fused_linears", false, &Profile::fused_linears},
    {"selective_op", false, &Stack::selective_op},
    {"keeps_gathered", false, &Profile::keeps_gathered},
    {"f32_loss", false, &Stack::f32_loss},
    {"f32_softmax", false, &Stack::f32_softmax},
    {"gathered_ends", false, &Stack::gathered_ends},
    {"whole_recompute", false, &Stack::whole_recompute},
    {"autograd", false, &Stack::autograd},
    {"dropout_masks", false, &Stack::dropout_masks},
    {"narrow_saved", false, &Stack::narrow_saved},
    {"attention_copies", false, &Stack::attention_copies},
    {"f16_gradients", false, &Stack::f16_gradients},
    {"gathers_late", false, &Stack::gathers_late},
    {"copies_shards", false, &Stack::copies_shards},
    {"torch_2_6", false, &Stack::torch_2_6},
}};
// Of a Profile or a const one.
auto& value_of(auto& profile, const Flag& flag) {
  const auto* own = std::get_if<bool Profile::*>(&flag.place);
  return own != nullptr ? profile.**own : profile.stack.*std::get<bool Stack::*>(flag.place);
}

void read_constants(JsonReader reader, std::vector<Constant>& constants) {
  const std::span<const ConstantInfo> infos = constant_infos();
  for (const std::string& name : reader.keys()) {
    const auto info = std::find_if(infos.begin(), infos.end(),
                                   [&](const ConstantInfo& known) { return known.name == name; });
    if (info == infos.end()) continue;
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
  for (const ConstantInfo& info : infos) reader.ignore(info.name);
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
  for (const Flag& flag : kFlags) value_of(profile, flag) = reader.boolean_or(flag.key, flag.usual);
  if (reader.has("lacks")) read_lacking(reader, profile.stack.lacking);
  reader.ignore("lacks");
  profile.stack.prefetch_mb = reader.integer_or("prefetch_mb", 0, {.min = 0});
  profile.stack.allocator = choice(reader, "allocator", Allocator::kPlan, kAllocators);
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
  text += fmt::format("overlap = {}\n", list_text(profile.stack.overlap));
  for (size_t f = 0; f < kFlags.size(); ++f) {
    const bool value = value_of(profile, kFlags[f]);
    if (f < kAlwaysWritten || value != kFlags[f].usual)
      text += fmt::format("{} = {}\n", kFlags[f].key, value);
  }
  text += lacking_text(profile.stack.lacking);
  text += fmt::format("gradient_bytes = {}\n", profile.gradient_bytes);
  if (profile.bf16_gradient_bytes > 0)
    text += fmt::format("bf16_gradient_bytes = {}\n", profile.bf16_gradient_bytes);
  if (profile.stack.allocator != Allocator::kPlan) {
    text += fmt::format("allocator = {}\n",
                        quoted(kAllocators[static_cast<size_t>(profile.stack.allocator)]));
  }
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

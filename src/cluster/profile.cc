#include "cluster/profile.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
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

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
enum class Written : uint8_t { kWhereUnusual, kOfProfiles, kAlways };

// What a profile says of kernels and engine, in the order in which it is written; what it leaves
// out is as Kernels and Stack begin.
struct Setting {
  using Texts = std::vector<std::string>;
  std::string_view key;
  std::variant<bool Kernels::*, int64_t Kernels::*, bool Stack::*, int64_t Stack::*,
               double Stack::*, Allocator Stack::*, Accumulation Stack::*, Texts Stack::*,
               std::vector<Lacking> Stack::*>
      place;
  bool of_versions = false;
  Written written = Written::kWhereUnusual;
  int64_t least = 0, most = kNoEnd;  // of numbers
};
constexpr std::array<Setting, 30> kSettings = {{
    {"overlap", &Stack::overlap, true, Written::kAlways},
    {"scatter_gather", &Stack::scatter_gather, false, Written::kOfProfiles},
    {"fused_attention", &Kernels::fused_attention, true, Written::kOfProfiles},
    {"blocked_softmax", &Kernels::blocked_softmax},
    {"gloo", &Stack::gloo},
    {"global_sums", &Stack::global_sums},
    {"fused_elementwise", &Kernels::fused_elementwise},
    {"fused_linears", &Kernels::fused_linears},
    {"selective_op", &Stack::selective_op},
    {"keeps_gathered", &Stack::keeps_gathered},
    {"f32_loss", &Stack::f32_loss},
    {"f32_softmax", &Stack::f32_softmax},
    {"gathered_ends", &Stack::gathered_ends},
    {"whole_recompute", &Stack::whole_recompute},
    {"autograd", &Stack::autograd},
    {"dropout_masks", &Stack::dropout_masks},
    {"narrow_saved", &Stack::narrow_saved},
    {"attention_copies", &Stack::attention_copies, true},
    {"f16_gradients", &Stack::f16_gradients, true},
    {"gathers_late", &Stack::gathers_late},
    {"copies_shards", &Stack::copies_shards},
    {"torch_2_6", &Stack::torch_2_6},
    {"lacks", &Stack::lacking},
    {"gradient_bytes", &Kernels::gradient_bytes, true, Written::kOfProfiles, 1, 8},
    {"bf16_gradient_bytes", &Kernels::bf16_gradient_bytes, true, Written::kWhereUnusual, 1, 8},
    {"allocator", &Stack::allocator},
    {"accumulation", &Stack::accumulation, true},
    {"prefetch_mb", &Stack::prefetch_mb},
    {"gathered_again", &Stack::gathered_again, false, Written::kWhereUnusual, 0, 1},
    {"error", &Stack::error, false, Written::kWhereUnusual, 0, 100},
}};

// `use` is called with the setting and its place.
void for_settings(bool of_version, const auto& use) {
  for (const Setting& setting : kSettings) {
    if (setting.of_versions || !of_version)
      std::visit([&](auto place) { use(setting, place); }, setting.place);
  }
}

// Of ProfileSettings, or of the Cluster that they are of, const or not.
template <typename T>
auto& value_at(auto& settings, T Stack::* place) {
  return settings.stack.*place;
}
template <typename T>
auto& value_at(auto& settings, T Kernels::* place) {
  return settings.kernels.*place;
}
template <typename T>
T& value_at(Cluster& cluster, T Kernels::* place) {
  return cluster.device.attained.*place;
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

template <typename T>
concept Enum = std::is_enum_v<T>;
std::span<const std::string_view> names_of(Allocator) { return kAllocators; }
std::span<const std::string_view> names_of(Accumulation) { return kAccumulations; }

// What the setting has is what it is where the key is not there.
void read(JsonReader& reader, const Setting& setting, bool& value) {
  value = reader.boolean_or(setting.key, value);
}
void read(JsonReader& reader, const Setting& setting, int64_t& value) {
  value = reader.integer_or(setting.key, value, {.min = setting.least, .max = setting.most});
}
void read(JsonReader& reader, const Setting& setting, double& value) {
  JsonReader::NumberRange range{.min = static_cast<double>(setting.least)};
  if (setting.most < kNoEnd) range.max = static_cast<double>(setting.most);
  value = reader.number_or(setting.key, value, range);
}
void read(JsonReader& reader, const Setting& setting, Enum auto& value) {
  const auto names = names_of(value);
  const std::string name = reader.choice_or(setting.key, names[static_cast<size_t>(value)], names);
  value = static_cast<std::decay_t<decltype(value)>>(std::find(names.begin(), names.end(), name) -
                                                     names.begin());
}
void read(JsonReader& reader, const Setting& setting, std::vector<std::string>& texts) {
  if (reader.has(setting.key)) texts = reader.strings(setting.key);
  reader.ignore(setting.key);
}
void read(JsonReader& reader, const Setting& setting, std::vector<Lacking>& lacking) {
  std::vector<std::string> names;
  read(reader, setting, names);
  for (const std::string& name : names) {
    const auto known = std::find(kLacking.begin(), kLacking.end(), name);
    if (known == kLacking.end()) {
      reader.fail(setting.key, "'{}' is not one of {}{}", name, join(kLacking, ", "),
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

void read_settings(JsonReader& reader, bool of_version, ProfileSettings& settings) {
  for_settings(of_version, [&](const Setting& setting, auto place) {
    read(reader, setting, value_at(settings, place));
  });
}

void read_versions(std::vector<JsonReader> readers, Profile& profile) {
  for (JsonReader& reader : readers) {
    ProfileSettings& version = profile.versions.emplace_back();
    version.kernels = profile.kernels;
    version.stack = profile.stack;
    version.runs_that_say = read_texts(reader);
    if (!reader.has("overlap")) reader.strings("overlap");  // which it must say
    version.source = reader.string("source");
    read_settings(reader, true, version);
    // A version's own format is that of both kinds of halves.
    if (int64_t& bf16_bytes = version.kernels.bf16_gradient_bytes;
        bf16_bytes > 0 && reader.has("gradient_bytes") && !reader.has("bf16_gradient_bytes"))
      bf16_bytes = version.kernels.gradient_bytes;
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

std::string text_of(std::integral auto value) { return fmt::format("{}", value); }
std::string text_of(double value) { return fmt::format("{:.4g}", value); }
std::string text_of(Enum auto value) { return quoted(names_of(value)[static_cast<size_t>(value)]); }
std::string text_of(std::vector<std::string> texts) {
  for (std::string& text : texts) text = quoted(text);
  return "[" + join(texts, ", ") + "]";
}
std::string text_of(const std::vector<Lacking>& lacking) {
  std::vector<std::string> names;
  for (const Lacking what : lacking) names.emplace_back(kLacking[static_cast<size_t>(what)]);
  return text_of(names);
}

// `usual`: what it is where it is not written.
std::string settings_text(const ProfileSettings& settings, const ProfileSettings& usual,
                          bool of_version) {
  std::string text;
  for_settings(of_version, [&](const Setting& setting, auto place) {
    const bool always = setting.written == Written::kAlways ||
                        (setting.written == Written::kOfProfiles && !of_version);
    const auto& value = value_at(settings, place);
    if (always || value != value_at(usual, place))
      text += fmt::format("{} = {}\n", setting.key, text_of(value));
  });
  return text;
}

// { value = 0.5, source = "..." }; what was not fitted with all its digits.
std::string entry_text(const Constant& c) {
  std::string text = fmt::format("{} = {{ value = ", c.name);
  text += c.fitted() ? fmt::format("{:.5g}, low = {:.4g}, high = {:.4g}, ", c.value, c.low, c.high)
                     : fmt::format("{}, ", c.value);
  return text + fmt::format("source = {} }}", quoted(c.source));
}

void take(const ProfileSettings& settings, bool of_version, Cluster& cluster) {
  for_settings(of_version, [&](const Setting&, auto place) {
    value_at(cluster, place) = value_at(settings, place);
  });
  for (const Constant& c : settings.constants) set_constant(cluster, c.name, c.value);
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
  read_settings(reader, false, profile);
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
    text += fmt::format("runs_that_say = {}\n", text_of(profile.runs_that_say));
  text += settings_text(profile, {}, false);
  for (const ProfileSettings& version : profile.versions) {
    text += fmt::format("\n[[versions]]\nruns_that_say = {}\n", text_of(version.runs_that_say));
    ProfileSettings unsaid = profile;  // what a key that is not there is read as
    if (const int64_t bytes = version.kernels.gradient_bytes;
        unsaid.kernels.bf16_gradient_bytes > 0 && bytes != profile.kernels.gradient_bytes)
      unsaid.kernels.bf16_gradient_bytes = bytes;
    text += settings_text(version, unsaid, true);
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

std::string device_finding(const Profile& profile, const Cluster& cluster) {
  if (profile.device == cluster.device.name) return "";
  return fmt::format("{}: is of {}, but {} has {}", profile.file, profile.device, cluster.file,
                     cluster.device.name);
}

void apply(const Profile& profile, Cluster& cluster) {
  if (const std::string finding = device_finding(profile, cluster); !finding.empty())
    throw Error({finding});
  take(profile, false, cluster);
  cluster.stack.name = profile.software;
  const Stack& stack = profile.stack;
  if (stack.measured.empty() && stack.precisions.empty()) return;  // the cluster file's hold
  cluster.stack.measured = stack.measured;
  cluster.stack.precisions = stack.precisions;
}

void apply_version(const ProfileSettings& version, Cluster& cluster) {
  take(version, true, cluster);
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
  const ProfileSettings* found = nullptr;
  bool several = false;
  for (const ProfileSettings& version : profile.versions) {
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
  apply_version(*found, cluster);
  cluster.stack.name += ":" + says;
}

}  // namespace mw::cluster

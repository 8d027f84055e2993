#include "cluster/hardware.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/json_reader.h"
#include "base/text.h"
#include "base/toml.h"
#include "cluster/measured.h"
#include "cluster/profile.h"

namespace mw::cluster {
namespace {

constexpr std::array<std::string_view, 5> kKinds = {"memory", "nvlink", "pcie", "network", "torus"};
constexpr std::array<std::string_view, 6> kFormats = {"f32", "tf32", "bf16", "f16", "fp8", "fp4"};
constexpr double kTiny = 1e-9;  // a positive number
constexpr double kHuge = 1e9;   // in the unit of its key; 1e9 GB still have a number of bytes
constexpr int64_t kMostDevices = 1 << 30;

void read_peaks(JsonReader peaks, Device& device) {
  for (const std::string_view format : kFormats) {
    if (!peaks.has(format)) {
      peaks.ignore(format);
      continue;
    }
    const double tera = peaks.number(format, {.min = kTiny, .max = kHuge});
    device.peaks.emplace_back(format, FlopsPerSecond(tera * kTera));
  }
  peaks.finish();
  if (device.peaks.empty()) {
    peaks.fail("", "must have the dense peak of a format: {}", join(kFormats, ", "));
  }
}

void read_attained(JsonReader attained, Device& device) {
  Attained& a = device.attained;
  a.matrix_fraction = attained.number("matrix_fraction", {.min = kTiny, .max = 1});
  a.memory_fraction = attained.number("memory_fraction", {.min = kTiny, .max = 1});
  a.launch = Seconds(attained.number("launch_us", {.min = 0, .max = kHuge}) * kMicro);
  a.host_op = Seconds(attained.number("host_op_us", {.min = 0, .max = kHuge}) * kMicro);
  a.fp8_fraction = attained.number_or("fp8_fraction", 1, {.min = kTiny, .max = 2});
  a.product_half_k =
      attained.number_or("product_half_k", a.product_half_k, {.min = 0, .max = kHuge});
  a.collective_latency =
      Seconds(attained.number_or("collective_latency_us", 0, {.min = 0, .max = kHuge}) * kMicro);
  attained.string_or("source", "");
  attained.finish();
}

void read_device(JsonReader device, Cluster& cluster) {
  Device& d = cluster.device;
  d.name = device.string("name");
  if (device.has("also")) d.also = device.strings("also");
  device.ignore("also");
  d.memory = Bytes(std::llround(device.number("memory_GB", {.min = kTiny, .max = kHuge}) * kGiga));
  d.reserved =
      Bytes(std::llround(device.number_or("reserved_GB", 0, {.min = 0, .max = kHuge}) * kGiga));
  if (d.memory.value > 0 && d.reserved >= d.memory)
    device.fail("reserved_GB", "must be less than memory_GB");
  d.memory_bandwidth =
      BytesPerSecond(device.number("memory_GBps", {.min = kTiny, .max = kHuge}) * kGiga);
  d.multiprocessors = device.integer("multiprocessors", {.min = 1, .max = kMostDevices});
  d.cache = Bytes(std::llround(device.number_or("cache_MB", 0, {.min = 0, .max = kHuge}) * 1e6));
  d.source = device.string_or("source", cluster.source);
  read_peaks(device.object("peak_TFLOPs"), d);
  if (device.has("kernel_G_per_s")) {
    JsonReader rates = device.object("kernel_G_per_s");
    for (const std::string& op : rates.keys())
      d.kernel_rates.emplace_back(op, rates.number(op, {.min = kTiny, .max = kHuge}) * kGiga);
    rates.finish();
  }
  device.ignore("kernel_G_per_s");
  read_attained(device.object("attained"), d);
  device.finish();
}

// What collectives reach of a device's port is no more than the port; that of devices in one memory
// is as fast as the caches are.
void check_bus(JsonReader& link, const Link& made) {
  const bool torus = made.kind == LinkKind::kTorus;
  if (made.kind == LinkKind::kMemory || made.bandwidth.value <= 0) return;
  if (torus && made.torus.empty()) return;
  const auto at_most = [&](const char* key, BytesPerSecond is, double links, const char* why) {
    const double most = links * made.bandwidth.value / kGiga;
    if (is.value / kGiga <= most * (1 + kTiny)) return;
    link.fail(key, "is {:g}, must be at most {:g} beside link_GBps={:g}: {}", is.value / kGiga,
              most, made.bandwidth.value / kGiga, why);
  };
  at_most("bus_GBps", made.bus_bandwidth, torus ? 2 * static_cast<double>(made.torus.size()) : 1,
          torus ? "a device has two links a dimension"
                : "a ring's bytes all go through a device's port");
  // See cost/collective.cc: a port carries 1 + 1/n of the bytes, the bus counts 2 (n-1)/n.
  const auto n = static_cast<double>(made.devices);
  at_most("switch_bus_GBps", made.switch_bus_bandwidth,
          made.devices <= 1 ? 2 : 2 * (n - 1) / (n + 1),
          "a port carries what a device gives and its part of the sum");
  at_most("switch_port_GBps", made.switch_port_bandwidth, 1, "it is that port's");
}

// The longest latency of a message that a link of the kind has where NCCL's constants hold: NVLink
// of A100s, PCIe, and cards with RDMA (the cluster files here). 0: they do not hold for the kind.
double usual_latency_us(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink: return 6.5;
    case LinkKind::kPcie: return 10;
    case LinkKind::kNetwork: return 14;
    case LinkKind::kMemory:
    case LinkKind::kTorus: return 0;
  }
  return 0;
}

void read_link(JsonReader& link, Cluster& cluster) {
  Link made;
  made.name = link.string("name");
  const bool known = std::any_of(cluster.links.begin(), cluster.links.end(),
                                 [&](const Link& other) { return other.name == made.name; });
  if (known && !made.name.empty())
    link.fail("name", "is '{}' as that of another level; give each its own", made.name);
  const std::string kind = link.choice("kind", kKinds);
  made.kind = static_cast<LinkKind>(std::find(kKinds.begin(), kKinds.end(), kind) - kKinds.begin());
  made.devices = link.integer_or("devices", 0, {.min = 1, .max = kMostDevices});
  made.bandwidth = BytesPerSecond(link.number("link_GBps", {.min = kTiny, .max = kHuge}) * kGiga);
  made.latency = Seconds(link.number("latency_us", {.min = 0, .max = kHuge}) * kMicro);
  if (const double usual = usual_latency_us(made.kind) * kMicro; usual > 0)
    made.hop_factor = std::max(1.0, made.latency.value / usual);
  made.bus_bandwidth = made.bandwidth;
  if (link.has("bus_GBps"))
    made.bus_bandwidth =
        BytesPerSecond(link.number("bus_GBps", {.min = kTiny, .max = kHuge}) * kGiga);
  link.ignore("bus_GBps");
  made.switch_bus_bandwidth =
      BytesPerSecond(link.number_or("switch_bus_GBps", 0, {.min = 0, .max = kHuge}) * kGiga);
  made.switch_port_bandwidth =
      BytesPerSecond(link.number_or("switch_port_GBps", 0, {.min = 0, .max = kHuge}) * kGiga);
  if (made.switch_port_bandwidth.value > 0 && made.switch_bus_bandwidth.value <= 0)
    link.fail("switch_port_GBps", "is of sums in the switch, and switch_bus_GBps says none");
  const bool adds =
      cluster.links.empty() && made.kind != LinkKind::kMemory && made.kind != LinkKind::kTorus;
  if (made.switch_bus_bandwidth.value > 0 && !adds)
    link.fail("switch_bus_GBps",
              "must be of the innermost level, of kind nvlink, pcie or network: sums that its "
              "switch makes are told of no other");
  if (made.kind == LinkKind::kTorus) {
    made.torus = link.integers("torus", {.min = 1, .max = kMostDevices});
    int64_t size = 1;
    for (const int64_t n : made.torus) size = std::min(kMostDevices + 1, size * n);
    if (const Json* given = link.raw("torus"); given && given->is_array() && made.torus.empty()) {
      link.fail("torus", "has no dimensions, must have one or more");
    } else if (made.torus.size() > kMostDimensions) {
      link.fail("torus", "has {} dimensions, must have at most {}", made.torus.size(),
                kMostDimensions);
    } else if (size > kMostDevices) {
      link.fail("torus", "has more than {} devices", kMostDevices);
    } else if (made.devices != 0 && size != made.devices) {
      link.fail("torus", "has {} devices, must have the level's {}", size, made.devices);
    }
    made.devices = size;
  }
  check_bus(link, made);
  made.source = link.string_or("source", cluster.source);
  link.finish();
  cluster.links.push_back(std::move(made));
}

// `readers`: [level].
void check_levels(JsonReader& reader, std::vector<JsonReader>& readers, Cluster& cluster) {
  if (cluster.links.size() > kMostLevels)
    reader.fail("link", "is there {} times, must be at most {}", cluster.links.size(), kMostLevels);
  int64_t inner = 1;
  for (size_t i = 0; i < cluster.links.size(); ++i) {
    const Link& link = cluster.links[i];
    const bool last = i + 1 == cluster.links.size();
    if (link.devices == 0 && !last) {
      readers[i].fail("devices", "is missing: '{}' joins all devices, so it must be the last",
                      link.name);
    } else if (link.devices != 0 && link.devices % inner != 0) {
      readers[i].fail("devices", "is {}, must be a multiple of the level inside, {}", link.devices,
                      inner);
    } else if (link.kind == LinkKind::kTorus && inner > 1) {
      readers[i].fail("kind",
                      "is torus, and the level inside joins {} devices; a torus joins single ones",
                      inner);
    }
    if (link.devices != 0) inner = link.devices;
  }
  if (cluster.links.empty()) {
    if (cluster.devices > 1)
      reader.fail("link", "must be there at least once, as [[link]]: devices is {}",
                  cluster.devices);
    cluster.devices = 1;
    return;
  }
  const int64_t joined = cluster.links.back().devices;
  if (joined == 0) return;
  if (cluster.devices == 0) cluster.devices = joined;
  if (cluster.devices > joined) {
    reader.fail("devices", "is {}, but the outermost link, '{}', joins {}", cluster.devices,
                cluster.links.back().name, joined);
  }
}

std::vector<std::string> names_in(FileSystem& fs, const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    if (!fs.is_directory(folder)) continue;
    for (const std::string& file : fs.list(folder)) {
      if (ends_with(file, ".toml")) names.push_back(file.substr(0, file.size() - 5));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string no_profile(FileSystem& fs, const std::string& where, const std::string& name,
                       const std::vector<std::string>& folders, const char* otherwise = "or none") {
  const std::vector<std::string> names = names_in(fs, folders);
  return fmt::format("{}: there is no profile '{}'{}; known are {}; {}", where, clipped(name),
                     did_you_mean(name, names), names.empty() ? "none" : join(names, ", "),
                     otherwise);
}

std::vector<std::string> profile_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> inside;
  for (const std::string& folder : folders) inside.push_back(join_path(folder, "profiles"));
  return inside;
}

// Of a name: the first of the folders' profiles/NAME.toml; "": there is none.
std::string existing_profile(FileSystem& fs, const std::string& name,
                             const std::vector<std::string>& folders) {
  if (ends_with(name, ".toml")) return name;
  for (const std::string& folder : profile_folders(folders)) {
    const std::string file = join_path(folder, name + ".toml");
    if (fs.exists(file)) return file;
  }
  return "";
}

// Those of the cluster's device, by name, of a name the first; what cannot be read is left out.
std::map<std::string, Profile> profiles_of_device(FileSystem& fs, const Cluster& cluster,
                                                  const std::vector<std::string>& folders) {
  std::map<std::string, Profile> found;
  for (const std::string& profiles : profile_folders(folders)) {
    for (const std::string& name : names_in(fs, {profiles})) {
      const std::string file = join_path(profiles, name + ".toml");
      try {
        Profile profile = parse_profile(fs.read_file(file), file);
        if (profile.device == cluster.device.name) found.emplace(name, std::move(profile));
      } catch (const Error&) {  // not asked for
      }
    }
  }
  return found;
}
std::vector<std::string> profile_names(FileSystem& fs, const Cluster& cluster,
                                       const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const auto& [name, profile] : profiles_of_device(fs, cluster, folders))
    names.push_back(name);
  return names;
}

// The profile of the cluster's device whose software is called so; "": there is none, or several.
std::string profile_of_software(FileSystem& fs, const Cluster& cluster,
                                const std::vector<std::string>& folders) {
  std::vector<std::string> files;
  for (const auto& [name, profile] : profiles_of_device(fs, cluster, folders)) {
    if (profile.software == cluster.profile) files.push_back(profile.file);
  }
  return files.size() == 1 ? files[0] : "";
}

// A name's file lies in one of the folders, of which the cluster file's is the first: a copy
// elsewhere has none beside it. What is asked for may be the software's name, as results tell it.
std::string profile_file(FileSystem& fs, const Cluster& cluster, bool asked,
                         const std::vector<std::string>& folders) {
  std::string file = existing_profile(fs, cluster.profile, folders);
  if (file.empty() && asked) file = profile_of_software(fs, cluster, folders);
  if (!file.empty()) return file;
  throw Error({no_profile(fs, asked ? "--profile" : cluster.file, cluster.profile,
                          profile_folders(folders))});
}

}  // namespace

bool Stack::lacks(Lacking what) const {
  return std::find(lacking.begin(), lacking.end(), what) != lacking.end();
}

FlopsPerSecond Device::peak(std::string_view format) const {
  for (const auto& [name, peak] : peaks) {
    if (name == format) return peak;
  }
  return FlopsPerSecond(0);
}

const Link* Cluster::node() const {
  const Link* found = nullptr;
  for (const Link& link : links) {
    if (link.kind != LinkKind::kNetwork && link.devices > 1) found = &link;
  }
  return found;
}

int64_t Cluster::node_devices() const {
  const Link* unit = node();
  return unit == nullptr ? 1 : unit->devices;
}

size_t Cluster::level_between(int64_t a, int64_t b) const {
  MW_CHECK(!links.empty(), "{}: devices {} and {} have no link", file, a, b);
  for (size_t i = 0; i + 1 < links.size(); ++i) {
    if (a / links[i].devices == b / links[i].devices) return i;
  }
  return links.size() - 1;
}

std::vector<size_t> Cluster::port_levels() const {
  std::vector<size_t> ports;
  size_t card = links.size();
  for (size_t level = 0; level < links.size(); ++level) {
    const bool network = links[level].kind == LinkKind::kNetwork;
    if (network) card = std::min(card, level);
    ports.push_back(network ? card : level);
  }
  return ports;
}

Cluster parse_cluster(std::string_view text, const std::string& file) {
  const Toml toml = parse_toml(text, file);
  Diagnostics diagnostics;
  JsonReader reader(toml.root, file, &diagnostics, &toml.lines);
  Cluster cluster;
  cluster.file = file;
  cluster.name = reader.string("name");
  cluster.source = reader.string("source");
  cluster.profile = reader.string_or("profile", "");
  cluster.devices = reader.integer_or("devices", 0, {.min = 1});
  cluster.cores = reader.integer_or("cores", 0, {.min = 1});
  read_device(reader.object("device"), cluster);
  const size_t before = diagnostics.findings().size();
  std::vector<JsonReader> links;
  if (reader.has("link")) links = reader.objects("link");  // one device has none
  reader.ignore("link");
  for (JsonReader& link : links) read_link(link, cluster);
  if (diagnostics.findings().size() == before) check_levels(reader, links, cluster);
  if (reader.has("measured")) read_measured(reader.object("measured"), cluster.stack);
  reader.ignore("measured");
  reader.finish();
  diagnostics.throw_if_any();
  return cluster;
}

std::string find_profile(FileSystem& fs, const std::string& name,
                         const std::vector<std::string>& folders) {
  const std::string file = existing_profile(fs, name, folders);
  if (!file.empty()) return file;
  throw Error(
      {no_profile(fs, "--profile", name, profile_folders(folders), "or give a file, x.toml")});
}

Cluster load_cluster(FileSystem& fs, const std::string& name,
                     const std::vector<std::string>& folders, const std::string& profile) {
  const ProfileName named = parse_profile_name(profile);
  if (named.version.empty() && ends_with(profile, ":"))
    throw_error("--profile: '{}' has no version behind its colon; leave it out", clipped(profile));
  const auto load = [&](const std::string& path) {
    Cluster cluster = parse_cluster(fs.read_file(path), path);
    if (!named.name.empty()) cluster.profile = named.name == "none" ? "" : named.name;
    if (cluster.profile.empty() && !named.version.empty())
      throw_error("--profile: '{}' is a version of no profile", clipped(profile));
    std::vector<std::string> beside = folders;
    beside.insert(beside.begin(), parent_path(cluster.file));
    if (cluster.profile.empty()) {
      if (named.name.empty()) cluster.profiles = profile_names(fs, cluster, beside);
      return cluster;
    }
    const std::string file = profile_file(fs, cluster, !named.name.empty(), beside);
    const Profile read = parse_profile(fs.read_file(file), file);
    if (const std::string finding = device_finding(read, cluster); !finding.empty()) {
      const std::vector<std::string> names = profile_names(fs, cluster, beside);
      throw_error("{}; of that are {}", finding, names.empty() ? "none" : join(names, ", "));
    }
    apply(read, cluster);
    if (!named.version.empty()) apply_version(read, named.version, cluster);
    return cluster;
  };
  if (ends_with(name, ".toml")) return load(name);
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, name + ".toml");
    if (fs.exists(path)) return load(path);
  }
  const std::vector<std::string> names = names_in(fs, folders);
  Diagnostics diagnostics;
  diagnostics.add("--cluster: there is no cluster '{}'{}; known are {}; or give a file, x.toml",
                  clipped(name), did_you_mean(name, names),
                  names.empty() ? "none" : join(names, ", "));
  const std::vector<std::string> beside = profile_folders(folders);
  const std::vector<std::string> profiles = names_in(fs, beside);
  if (!named.name.empty() && named.name != "none" && !ends_with(named.name, ".toml") &&
      std::find(profiles.begin(), profiles.end(), named.name) == profiles.end())
    diagnostics.absorb(Error({no_profile(fs, "--profile", named.name, beside)}));
  throw Error(diagnostics.findings());
}

}  // namespace mw::cluster

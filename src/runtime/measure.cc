#include "runtime/measure.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/run_ranks.h"
#include "ops/op_def.h"
#include "runtime/cpu_backend.h"
#include "runtime/sample_values.h"

namespace mw::runtime {
namespace {

using pipeline::Fragment;

constexpr int kPasses = 5;
constexpr double kSmall = 65536;  // bytes
constexpr double kLeast = 1e-18;  // a positive number: seconds of a FLOP or a byte are small

double seconds_since(Seconds begin) { return (steady_clock().now() - begin).value; }

// The number behind `name` in a file such as /proc/meminfo; of the whole file without a name.
// Nothing where there is none, as in "max".
std::optional<int64_t> number_in(FileSystem& fs, const std::string& file, std::string_view name) {
  if (!fs.exists(file)) return std::nullopt;
  const std::string text = fs.read_file(file);
  for (const std::string_view line : split_lines(text)) {
    if (!line.starts_with(name)) continue;
    const std::vector<std::string_view> words = split_words(line.substr(name.size()));
    if (!words.empty()) return parse_int64(words[0]);
  }
  return std::nullopt;
}

struct PreparedOp {
  std::unique_ptr<execute::Kernel> kernel;
  std::vector<void*> operands, results;
  OpTiming timing;
  std::vector<double> seconds;
};

// A fragment's ops with values of their own, for one thread.
class PreparedOps {
 public:
  PreparedOps(const Fragment& fragment, const cluster::Mesh& mesh)
      : values_(fragment), device_{&mesh, RankId(0), 1} {
    const ir::Graph& graph = fragment.graph;
    int64_t scratch_bytes = 64;
    for (const ir::Op& op : graph.ops) {
      if (ir::is_collective(op.kind) || values_.is_alias(op)) continue;
      ops_.push_back(prepared(graph, op));
      scratch_bytes = std::max(scratch_bytes, ops_.back().kernel->scratch_bytes().value);
    }
    scratch_ = backend_.allocate(Bytes(scratch_bytes), device_);
  }

  void run(bool timed) {
    for (PreparedOp& op : ops_) {
      const Seconds begin = steady_clock().now();
      op.kernel->run(op.operands, op.results, scratch_.get());
      if (timed) op.seconds.push_back(seconds_since(begin));
    }
  }

  // Timed, once at least.
  bool has_run() const { return ops_.empty() || !ops_.front().seconds.empty(); }
  std::vector<OpTiming> timings() const {
    std::vector<OpTiming> timings;
    for (const PreparedOp& op : ops_) {
      timings.push_back(op.timing);
      timings.back().seconds = median(op.seconds);
    }
    return timings;
  }

 private:
  PreparedOp prepared(const ir::Graph& graph, const ir::Op& op) {
    PreparedOp made;
    made.kernel = backend_.prepare(graph, op, device_);
    for (const ValueId v : op.operands) made.operands.push_back(values_.at(v));
    for (size_t r = 0; r < op.results.size(); ++r) {
      const int of = ops::alias_operand(op, static_cast<int>(r));
      made.results.push_back(of >= 0 ? made.operands[static_cast<size_t>(of)]
                                     : values_.at(op.results[r]));
    }
    made.timing.kind = op.kind;
    if (ops::op_def(op.kind).cost != nullptr) {
      const ops::OpCost cost = ops::cost_of(graph, op);
      made.timing.flops = cost.flops;
      made.timing.bytes = cost.bytes;
      made.timing.matrix_product = cost.matrix_product;
      const auto elements = static_cast<double>(graph.type(op.results[0]).elements());
      if (op.kind == ir::OpKind::kDot) made.timing.k = std::llround(cost.flops / 2 / elements);
    }
    return made;
  }

  SampleValues values_;
  execute::DeviceContext device_;
  CpuBackend backend_;
  std::vector<PreparedOp> ops_;
  std::shared_ptr<void> scratch_;
};

Fragment product(int64_t m, int64_t k, int64_t n) {
  Fragment fragment;
  ir::Graph& graph = fragment.graph;
  const ValueId a = graph.add_input(ir::make_type(DType::kF32, {m, k}), "a");
  const ValueId b = graph.add_input(ir::make_type(DType::kF32, {n, k}), "b");
  ir::Op op;
  op.kind = ir::OpKind::kDot;
  op.attrs = ir::DotAttrs{"mk", "nk", "mn"};
  op.operands = {a, b};
  graph.add_op(std::move(op), {ir::make_type(DType::kF32, {m, n})});
  fragment.alias_of.resize(graph.values.size());
  fragment.alias_offset.resize(graph.values.size(), 0);
  fragment.workspace_offset.resize(graph.values.size(), Fragment::kNotPlanned);
  return fragment;
}

// time = latency + amount / rate, by least squares on relative errors.
LinkTiming line(const std::vector<std::pair<double, double>>& points) {
  double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const auto& [x, y] : points) {
    const double w = 1 / (y * y);
    s += w, sx += w * x, sxx += w * x * x, sy += w * y, sxy += w * x * y;
  }
  const double slope = (s * sxy - sx * sy) / (s * sxx - sx * sx);
  const double start = (sy - slope * sx) / s;
  return {std::max(kLeast, start), 1 / std::max(kLeast, slope)};
}

// What next to nothing takes is latency; the rest of what `bytes` take is theirs.
LinkTiming link_timing(double nothing, double bytes, double seconds) {
  return {std::max(kLeast, nothing), bytes / std::max(kLeast, seconds - nothing)};
}

}  // namespace

Bytes time_ops_bytes(const Fragment& fragment) { return sample_bytes(fragment); }

Bytes available_memory(FileSystem& fs) {
  int64_t least = std::numeric_limits<int64_t>::max();
  if (const auto kib = number_in(fs, "/proc/meminfo", "MemAvailable:")) least = *kib * 1024;
  const std::string group = "/sys/fs/cgroup/";
  const auto most = number_in(fs, group + "memory.max", "");
  const auto taken = number_in(fs, group + "memory.current", "");
  if (most && taken) {
    // Pages of files give way.
    const int64_t files = number_in(fs, group + "memory.stat", "file ").value_or(0);
    least = std::min(least, *most - *taken + std::min(files, *taken));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const int64_t mapped =
        number_in(fs, "/proc/self/statm", "").value_or(0) * sysconf(_SC_PAGESIZE);
    least = std::min(least, static_cast<int64_t>(limit.rlim_cur) - mapped);
  }
  return Bytes(std::max<int64_t>(0, least));
}

std::vector<OpTiming> time_ops(const Fragment& fragment, const cluster::Mesh& mesh, int passes,
                               int beside) {
  std::vector<std::unique_ptr<PreparedOps>> ops;
  for (int i = 0; i <= beside; ++i) ops.push_back(std::make_unique<PreparedOps>(fragment, mesh));
  std::atomic<int> at_work = 0;
  std::vector<std::jthread> others;  // the first pass of each touches its memory
  for (int i = 1; i <= beside; ++i) {
    others.push_back(start_thread<std::jthread>(
        [&at_work, &same = *ops[static_cast<size_t>(i)]](const std::stop_token& stop) {
          same.run(false);
          for (++at_work; !stop.stop_requested();) same.run(true);
        }));
  }
  ops.front()->run(false);
  while (at_work < beside) std::this_thread::yield();
  for (int pass = 0; pass < passes; ++pass) ops.front()->run(true);
  for (std::jthread& other : others) other.request_stop();
  others.clear();  // ends them
  std::vector<OpTiming> slowest;
  double most = -1;
  for (const auto& of_thread : ops) {
    if (!of_thread->has_run()) continue;
    std::vector<OpTiming> timings = of_thread->timings();
    double sum = 0;
    for (const OpTiming& timing : timings) sum += timing.seconds;
    if (sum > most) slowest = std::move(timings);
    most = std::max(most, sum);
  }
  return slowest;
}

std::vector<OpTiming> time_products(int beside) {
  const cluster::Mesh mesh;
  std::vector<OpTiming> timings;
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{256, 256}, {512, 512}, {1024, 256}}) {
    for (const int64_t k : {16, 32, 64, 128, 256, 512, 1024}) {
      OpTiming timing = time_ops(product(m, k, n), mesh, 9, beside).front();
      timings.push_back(timing);
    }
  }
  return timings;
}

double copy_bandwidth() {
  constexpr size_t kBytes = size_t{256} << 20;
  CpuBackend backend;
  const auto from = backend.allocate(Bytes(kBytes), {}), to = backend.allocate(Bytes(kBytes), {});
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 2, kBytes);
  std::vector<double> seconds;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Seconds begin = steady_clock().now();
    std::memcpy(to.get(), from.get(), kBytes);
    seconds.push_back(seconds_since(begin));
  }
  return 2.0 * kBytes / median(seconds);
}

LinkTiming time_messages() {
  const auto seconds_of = [](int64_t bytes) {
    constexpr int kTurns = 100;
    std::vector<double> seconds;  // there and back
    comm::ThreadWorld world(2);
    comm::run_ranks(world, [&](comm::Endpoint& rank) {
      const bool first = rank.rank().value == 0;
      const RankId peer(first ? 1 : 0);
      const auto there = rank.channel(peer, 0, Bytes(bytes), 1, first);
      const auto back = rank.channel(peer, 1, Bytes(bytes), 1, !first);
      std::vector<char> own(static_cast<size_t>(bytes), 1);
      comm::Channel& out = first ? *there : *back;
      comm::Channel& in = first ? *back : *there;
      for (int turn = 0; turn < kTurns; ++turn) {
        const Seconds begin = steady_clock().now();
        for (int half = 0; half < 2; ++half) {
          if ((half == 0) == first) {
            std::memcpy(out.acquire(turn), own.data(), own.size());
            out.publish(turn);
          } else {
            std::memcpy(own.data(), in.receive(turn), own.size());
            in.release(turn);
          }
        }
        if (first) seconds.push_back(seconds_since(begin));
      }
    });
    return median(seconds) / 2;
  };
  constexpr int64_t kBytes = int64_t{1} << 21;
  return link_timing(seconds_of(64), static_cast<double>(kBytes), seconds_of(kBytes));
}

LinkTiming time_collectives(int ranks) {
  // Each turn has values of its own, so that caches hold none of the larger ones, as none of a
  // step's gradients.
  constexpr int kTurns = 16;
  const auto seconds_of = [&](int64_t count) {
    std::vector<double> seconds;
    comm::ThreadWorld world(ranks);
    comm::run_ranks(world, [&](comm::Endpoint& rank) {
      std::vector<RankId> members;
      for (int r = 0; r < ranks; ++r) members.emplace_back(r);
      const auto group = rank.group(members, "all");
      std::vector<float> data(static_cast<size_t>(kTurns * count), 1.0F);
      for (int turn = 0; turn < kTurns; ++turn) {
        const comm::Buffer buffer{data.data() + turn * count, count};
        const Seconds begin = steady_clock().now();
        group->all_reduce({&buffer, 1}, DType::kF32, comm::ReduceOp::kSum);
        if (rank.rank().value == 0) seconds.push_back(seconds_since(begin));
      }
    });
    return median(seconds);
  };
  constexpr int64_t kAll = int64_t{512} << 20;  // bytes of all ranks and turns
  const int64_t count = std::max<int64_t>(1024, kAll / (4 * kTurns * ranks));
  const double n = ranks, hops = 2 * (n - 1);
  LinkTiming timing =
      link_timing(seconds_of(64), hops / n * 4 * static_cast<double>(count), seconds_of(count));
  timing.latency /= hops;
  return timing;
}

MachineProfile machine_profile(const std::vector<OpTiming>& products,
                               const std::vector<OpTiming>& ops) {
  MachineProfile profile;
  // seconds / FLOPs = (1 + half_k / k) / peak.
  std::vector<std::pair<double, double>> points;
  for (const OpTiming& t : products)
    points.emplace_back(1 / static_cast<double>(t.k), t.seconds / t.flops);
  const LinkTiming fit = line(points);
  profile.peak_flops = 1 / fit.latency;
  profile.half_k = std::max(0.0, 1 / (fit.bandwidth * fit.latency));
  profile.launch = 1e-6;
  for (const OpTiming& t : ops) profile.launch = std::min(profile.launch, t.seconds);
  std::map<ir::OpKind, std::pair<double, double>> totals;  // amount, seconds
  for (const OpTiming& t : ops) {
    if (t.bytes < kSmall) continue;  // its time says nothing of a rate
    auto& [amount, seconds] = totals[t.kind];
    const double k = static_cast<double>(std::max<int64_t>(1, t.k));
    const double of = t.matrix_product ? t.flops : t.bytes;
    amount += t.kind == ir::OpKind::kDot ? of * (k + profile.half_k) / k : of;
    seconds += std::max(1e-9, t.seconds - profile.launch);
  }
  for (const auto& [kind, total] : totals) {
    if (total.first > 0)
      profile.kernel_rates.emplace_back(ir::op_name(kind), total.first / total.second);
  }
  profile.memory_bandwidth = copy_bandwidth();
  profile.messages = time_messages();
  profile.cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  profile.collectives = time_collectives(static_cast<int>(std::max<int64_t>(2, profile.cores)));
  const double hops = 2 * static_cast<double>(std::max<int64_t>(2, profile.cores) - 1);
  profile.collective_latency =
      std::max(0.0, hops * (profile.collectives.latency - profile.messages.latency));
  profile.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return profile;
}

std::string to_toml(const MachineProfile& p, const std::string& source) {
  std::string text = fmt::format(
      "# Ranks that are threads of one process: what `train` runs on. Written by `meshwright "
      "profile`.\n"
      "name = \"this machine\"\nsource = \"{}\"\ncores = {}\n\n"
      "[device]\nname = \"CPU core\"\nmemory_GB = {:.4g}  # of the machine; ranks share it\n"
      "memory_GBps = {:.4g}\nmultiprocessors = 1\npeak_TFLOPs = {{ f32 = {:.4g} }}\n\n"
      "[device.attained]\nmatrix_fraction = 1\nmemory_fraction = 1\nlaunch_us = {:.4g}\n"
      "host_op_us = 0\nproduct_half_k = {:.4g}\ncollective_latency_us = "
      "{:.4g}\n\n[device.kernel_G_per_s]\n",
      source, p.cores, static_cast<double>(p.memory_bytes) / 1e9, p.memory_bandwidth / 1e9,
      p.peak_flops / 1e12, p.launch * 1e6, p.half_k, p.collective_latency * 1e6);
  for (const auto& [op, rate] : p.kernel_rates)
    text += fmt::format("{} = {:.4g}\n", op, rate / 1e9);
  text += fmt::format(
      "\n[[link]]\nname = \"memory\"\nkind = \"memory\"\nlink_GBps = {:.4g}\nbus_GBps = {:.4g}\n"
      "latency_us = {:.4g}\n",
      p.messages.bandwidth / 1e9, p.collectives.bandwidth / 1e9, p.messages.latency * 1e6);
  return text;
}

}  // namespace mw::runtime

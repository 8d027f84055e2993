#include "calibrate/kernels.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/csv_table.h"

namespace mw::calibrate {
namespace {

using cost::OpWork;
using Kind = OpWork::Kind;
using Works = std::vector<OpWork>;
using ir::OpKind;

constexpr std::array<std::string_view, 6> kCollectiveColumns = {"device", "collective", "nodes",
                                                                "ranks",  "bytes",      "time_us"};
constexpr std::array<std::string_view, 9> kKernelColumns = {
    "device", "kernel", "dtype", "batch", "m", "n", "k", "causal", "time_us"};

constexpr std::array<std::string_view, 6> kCollectives = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"};
constexpr std::array<std::string_view, 4> kTypes = {"bf16", "f16", "f32", "fp8"};

// Beyond these nothing was measured.
constexpr int64_t kMostRanks = 1 << 20, kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostBatch = 1 << 18, kMostSize = 1 << 20;
constexpr double kMostMicroseconds = 1e12;

// The cells of a line, checked.
class Cells {
 public:
  Cells(const CsvTable& table, const CsvTable::Line& line, const std::string& file,
        Diagnostics& diagnostics)
      : table_(table), line_(line), file_(file), diagnostics_(diagnostics) {}

  int64_t count(std::string_view name, int64_t least, int64_t most) {
    const std::optional<int64_t> value = parse_int64(table_.cell(line_, name));
    if (value && *value >= least && *value <= most) return *value;
    fail(name, value && *value > most ? fmt::format("at most {}", most)
                                      : fmt::format("an integer of at least {}", least));
    return least;
  }
  const std::string& word(std::string_view name, std::span<const std::string_view> known) {
    const std::string& cell = table_.cell(line_, name);
    if (std::find(known.begin(), known.end(), cell) == known.end())
      fail(name, "one of " + join(known, ", "));
    return cell;
  }
  const std::string& device() {
    const std::string& cell = table_.cell(line_, "device");
    if (cell.empty()) fail("device", "that of a cluster, or how it begins");
    return cell;
  }
  double time_us() {
    const std::optional<double> time = parse_double(table_.cell(line_, "time_us"));
    if (time && *time >= 1 / kMostMicroseconds && *time <= kMostMicroseconds) return *time;
    fail("time_us", time && *time > 0
                        ? fmt::format("from {:g} to {:g}", 1 / kMostMicroseconds, kMostMicroseconds)
                        : "a positive number");
    return 1;
  }
  void fail(std::string_view name, const std::string& must_be) {
    diagnostics_.add("{}:{}: {}: must be {}, is \"{}\"", file_, line_.number, name, must_be,
                     table_.cell(line_, name));
  }

 private:
  const CsvTable& table_;
  const CsvTable::Line& line_;
  const std::string& file_;
  Diagnostics& diagnostics_;
};

void read_collectives(const CsvTable& table, const std::string& file, const std::string& device,
                      MeasuredKernels& read, Diagnostics& diagnostics) {
  for (const CsvTable::Line& line : table.lines) {
    Cells cells(table, line, file, diagnostics);
    const std::string& collective = cells.word("collective", kCollectives);
    const std::string& of = cells.device();
    CollectiveRow row{cells.count("nodes", 1, kMostRanks), cells.count("ranks", 2, kMostRanks),
                      Bytes(cells.count("bytes", 1, kMostBytes)), 0};
    if (row.ranks % row.nodes != 0)
      cells.fail("ranks", fmt::format("a multiple of the {} nodes", row.nodes));
    row.time_us = cells.time_us();
    if (!starts_with(device, of)) continue;
    if (collective == "all_reduce") {
      read.collectives.push_back(row);
    } else {
      ++read.others[collective];
    }
  }
}

// What a row of kernels says, but for its time.
struct Sizes {
  std::string dtype;
  double one = 0;  // bytes of an element
  int64_t batch = 1, m = 1, n = 1, k = 1;
  bool causal = false;

  double b() const { return static_cast<double>(batch); }
  double rows() const { return static_cast<double>(m); }
  double columns() const { return static_cast<double>(n); }
  double depth() const { return static_cast<double>(k); }
};

OpWork work_of_kind(Kind kind, OpKind op, const Sizes& s) {
  OpWork work;
  work.kind = kind;
  work.op = op;
  work.dtype = s.dtype == "f32" ? DType::kF32 : s.dtype == "f16" ? DType::kF16 : DType::kBF16;
  work.shape = {.batch = s.batch, .m = s.m, .n = s.n, .k = s.k};
  return work;
}
OpWork of_bytes(Kind kind, OpKind op, const Sizes& s, double bytes) {
  OpWork work = work_of_kind(kind, op, s);
  work.bytes = bytes;
  return work;
}

// batch products: operands read, results written, in two bytes where the operands are fp8.
Works product(const Sizes& s) {
  OpWork work = work_of_kind(Kind::kProduct, OpKind::kDot, s);
  work.matrix_product = true;
  work.flops = 2 * s.b() * s.rows() * s.columns() * s.depth();
  const double operands = s.b() * s.depth() * (s.rows() + s.columns());
  work.bytes = operands * s.one + s.b() * s.rows() * s.columns() * std::max(s.one, 2.0);
  return {work};
}

// As ops count them: two products forward and five backward, of half of the scores if causal.
template <bool backward>
Works fused_attention(const Sizes& s) {
  OpWork work =
      work_of_kind(Kind::kAttention, backward ? OpKind::kAttentionGrad : OpKind::kAttention, s);
  work.matrix_product = true;
  work.backward = backward;
  const double keys = s.causal ? s.columns() - (s.rows() - 1) / 2 : s.columns();
  work.flops = 2 * (backward ? 5 : 2) * s.b() * s.rows() * keys * s.depth();
  // Forward: queries and result, keys and values. Backward: those, and the gradients of all.
  const double values = 2 * s.b() * (s.rows() + s.columns()) * s.depth();
  work.bytes = s.one * values * (backward ? 2 : 1);
  return {work};
}

struct KernelKind {
  std::string_view name;
  std::span<const std::string_view> types;
  int64_t most_m;
  Works (*works)(const Sizes&);
  std::string (*text)(const Sizes&);
  bool attends = false;
};

std::string product_text(const Sizes& s) {
  const std::string of = s.batch > 1 ? fmt::format("{} of ", s.batch) : "";
  return fmt::format("{}{} x {} x {}, {}", of, s.m, s.n, s.k, s.dtype);
}
std::string heads_text(const Sizes& s) {
  return fmt::format("{} heads of {}, {} queries, {} keys{}, {}", s.batch, s.k, s.m, s.n,
                     s.causal ? ", causal" : "", s.dtype);
}

constexpr std::span<const std::string_view> kAll = kTypes, kWide = kAll.first(3),
                                            kHalf = kAll.first(2), kFull = kAll.subspan(2, 1);
constexpr std::array<KernelKind, 8> kKernels = {{
    {"product", kAll, kMostSize, product, product_text},
    {"attention", kHalf, kMostSize, fused_attention<false>, heads_text, true},
    {"attention_grad", kHalf, kMostSize, fused_attention<true>, heads_text, true},
    {"stream", kWide, kMostBytes,
     [](const Sizes& s) { return Works{of_bytes(Kind::kStream, OpKind::kCopy, s, s.rows())}; },
     [](const Sizes& s) { return fmt::format("{}, {}", format_bytes(s.m), s.dtype); }},
    {"loss", kWide, kMostSize,
     [](const Sizes& s) {
       const double logits = s.one * s.rows() * s.columns();
       return Works{of_bytes(Kind::kLoss, OpKind::kCrossEntropyMax, s, logits),
                    of_bytes(Kind::kLoss, OpKind::kCrossEntropySum, s, logits),
                    of_bytes(Kind::kLoss, OpKind::kCrossEntropyGrad, s, 2 * logits)};
     },
     [](const Sizes& s) { return fmt::format("{} tokens, {} words, {}", s.m, s.n, s.dtype); }},
    {"update", kFull, kMostBytes,
     [](const Sizes& s) {  // weight, gradient and moments read, all but the gradient written
       return Works{of_bytes(Kind::kUpdate, OpKind::kAdamW, s, 7 * s.one * s.rows())};
     },
     [](const Sizes& s) { return fmt::format("{} parameters, {}", s.m, s.dtype); }},
    {"host", kWide, kMostSize,
     [](const Sizes& s) { return Works{work_of_kind(Kind::kNothing, OpKind::kCopy, s)}; },
     [](const Sizes&) -> std::string { return "to issue an op"; }},
    {"gradient_copy", kHalf, kMostBytes,
     [](const Sizes& s) {
       constexpr double kSummed = 4;  // bytes
       return Works{of_bytes(Kind::kGradientCopy, OpKind::kCopy, s, (s.one + kSummed) * s.rows())};
     },
     [](const Sizes& s) {
       return fmt::format("{} gradients for {} ranks, {}", s.m, s.n, s.dtype);
     }},
}};
constexpr auto kKernelNames = [] {
  std::array<std::string_view, kKernels.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kKernels[i].name;
  return names;
}();

std::vector<KernelRow> read_kernels(const CsvTable& table, const std::string& file,
                                    const std::string& device, Diagnostics& diagnostics) {
  std::vector<KernelRow> rows;
  for (const CsvTable::Line& line : table.lines) {
    Cells cells(table, line, file, diagnostics);
    KernelRow row;
    row.kernel = cells.word("kernel", kKernelNames);
    const auto known = std::find_if(kKernels.begin(), kKernels.end(),
                                    [&](const auto& one) { return one.name == row.kernel; });
    const KernelKind& kind = known == kKernels.end() ? kKernels.front() : *known;
    Sizes s;
    s.dtype = cells.word("dtype", kind.types);
    s.one = s.dtype == "f32" ? 4 : s.dtype == "fp8" ? 1 : 2;
    s.batch = cells.count("batch", 1, kMostBatch);
    s.m = cells.count("m", 1, kind.most_m);
    s.n = cells.count("n", 1, kMostSize);
    s.k = cells.count("k", 1, kMostSize);
    s.causal = cells.count("causal", 0, 1) == 1;
    if (known != kKernels.end() && s.causal && (!kind.attends || s.m > s.n)) {
      cells.fail("causal",
                 kind.attends ? "0, as not every query has a key" : "0 but for attention");
    }
    row.time_us = cells.time_us();
    if (!starts_with(device, cells.device())) continue;
    row.works = kind.works(s);
    row.sizes = kind.text(s);
    row.fp8 = s.dtype == "fp8" ? cost::Fp8::kTensor : cost::Fp8::kOff;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Seconds kernel_time(const cluster::Device& device, const KernelRow& row) {
  Seconds on_device, of_host;
  for (const OpWork& work : row.works) {
    const cost::OpTime time = cost::op_time(device, work, false, row.fp8);
    on_device += time.device;
    of_host += time.host;
  }
  return std::max(on_device, of_host);
}

MeasuredKernels parse_kernels(std::string_view csv, const std::string& file,
                              const std::string& device) {
  Diagnostics diagnostics;
  MeasuredKernels read;
  const std::vector<std::string_view> header =
      split(trim(without_bom(csv.substr(0, csv.find('\n')))), ',');
  const auto is_of_kernels = [](std::string_view name) {
    return trim(name) == "kernel" || trim(name) == "\"kernel\"";
  };
  size_t lines = 0;
  if (std::any_of(header.begin(), header.end(), is_of_kernels)) {
    const CsvTable table = parse_csv(csv, file, kKernelColumns, diagnostics);
    read.kernels = read_kernels(table, file, device, diagnostics);
    lines = table.lines.size();
  } else {
    const CsvTable table = parse_csv(csv, file, kCollectiveColumns, diagnostics);
    read_collectives(table, file, device, read, diagnostics);
    lines = table.lines.size();
  }
  if (lines == 0 && diagnostics.empty()) diagnostics.add("{}: has no rows", file);
  diagnostics.throw_if_any();
  return read;
}

}  // namespace mw::calibrate

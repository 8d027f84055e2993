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
using ir::OpKind;

constexpr std::array<std::string_view, 6> kCollectiveColumns = {"device", "collective", "nodes",
                                                                "ranks",  "bytes",      "time_us"};
constexpr std::array<std::string_view, 9> kKernelColumns = {
    "device", "kernel", "dtype", "batch", "m", "n", "k", "causal", "time_us"};

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
  const std::string& word(std::string_view name, const std::vector<std::string>& known) {
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
  static const std::vector<std::string> kCollectives = {
      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"};
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

OpWork work_of_kind(OpWork::Kind kind, OpKind op, const Sizes& s) {
  OpWork work;
  work.kind = kind;
  work.op = op;
  work.dtype = s.dtype == "f32" ? DType::kF32 : s.dtype == "f16" ? DType::kF16 : DType::kBF16;
  work.shape = {.batch = s.batch, .m = s.m, .n = s.n, .k = s.k};
  return work;
}
OpWork of_bytes(OpWork::Kind kind, OpKind op, const Sizes& s, double bytes) {
  OpWork work = work_of_kind(kind, op, s);
  work.bytes = bytes;
  return work;
}

// batch products: operands read, results written, in two bytes where the operands are fp8.
OpWork product(const Sizes& s) {
  OpWork work = work_of_kind(OpWork::Kind::kProduct, OpKind::kDot, s);
  work.matrix_product = true;
  work.flops = 2 * s.b() * s.rows() * s.columns() * s.depth();
  const double operands = s.b() * s.depth() * (s.rows() + s.columns());
  work.bytes = operands * s.one + s.b() * s.rows() * s.columns() * std::max(s.one, 2.0);
  return work;
}

// As ops count them: two products forward and five backward, of half of the scores if causal.
OpWork fused_attention(const Sizes& s, bool backward) {
  OpWork work = work_of_kind(OpWork::Kind::kAttention,
                             backward ? OpKind::kAttentionGrad : OpKind::kAttention, s);
  work.matrix_product = true;
  work.backward = backward;
  const double keys = s.causal ? s.columns() - (s.rows() - 1) / 2 : s.columns();
  work.flops = 2 * (backward ? 5 : 2) * s.b() * s.rows() * keys * s.depth();
  // Forward: queries and result, keys and values. Backward: those, and the gradients of all.
  const double values = 2 * s.b() * (s.rows() + s.columns()) * s.depth();
  work.bytes = s.one * values * (backward ? 2 : 1);
  return work;
}

std::vector<OpWork> works_of(const std::string& kernel, const Sizes& s) {
  if (kernel == "product") return {product(s)};
  if (kernel == "attention" || kernel == "attention_grad")
    return {fused_attention(s, kernel == "attention_grad")};
  if (kernel == "stream") return {of_bytes(OpWork::Kind::kStream, OpKind::kCopy, s, s.rows())};
  if (kernel == "gradient_copy") {
    constexpr double kSummed = 4;  // bytes
    return {of_bytes(OpWork::Kind::kGradientCopy, OpKind::kCopy, s, (s.one + kSummed) * s.rows())};
  }
  if (kernel == "host") return {work_of_kind(OpWork::Kind::kNothing, OpKind::kCopy, s)};
  if (kernel == "update") {
    // Weight, gradient and both moments read, all but the gradient written.
    return {of_bytes(OpWork::Kind::kUpdate, OpKind::kAdamW, s, 7 * s.one * s.rows())};
  }
  const double logits = s.one * s.rows() * s.columns();
  return {of_bytes(OpWork::Kind::kLoss, OpKind::kCrossEntropyMax, s, logits),
          of_bytes(OpWork::Kind::kLoss, OpKind::kCrossEntropySum, s, logits),
          of_bytes(OpWork::Kind::kLoss, OpKind::kCrossEntropyGrad, s, 2 * logits)};
}

std::string text_of(const std::string& kernel, const Sizes& s) {
  std::string text;
  if (kernel == "host") return "to issue an op";
  if (kernel == "product") {
    text = fmt::format("{} x {} x {}", s.m, s.n, s.k);
    if (s.batch > 1) text = fmt::format("{} of {}", s.batch, text);
  } else if (kernel == "stream") {
    text = format_bytes(s.m);
  } else if (kernel == "gradient_copy") {
    text = fmt::format("{} gradients for {} ranks", s.m, s.n);
  } else if (kernel == "update") {
    text = fmt::format("{} parameters", s.m);
  } else if (kernel == "loss") {
    text = fmt::format("{} tokens, {} words", s.m, s.n);
  } else {
    text = fmt::format("{} heads of {}, {} queries, {} keys{}", s.batch, s.k, s.m, s.n,
                       s.causal ? ", causal" : "");
  }
  return fmt::format("{}, {}", text, s.dtype);
}

std::vector<KernelRow> read_kernels(const CsvTable& table, const std::string& file,
                                    const std::string& device, Diagnostics& diagnostics) {
  static const std::vector<std::string> kKernels = {"product", "attention",    "attention_grad",
                                                    "stream",  "loss",         "update",
                                                    "host",    "gradient_copy"},
                                        kTypes = {"bf16", "f16", "f32", "fp8"},
                                        kHalf = {"bf16", "f16"}, kFull = {"f32"},
                                        kWide = {"bf16", "f16", "f32"};
  std::vector<KernelRow> rows;
  for (const CsvTable::Line& line : table.lines) {
    Cells cells(table, line, file, diagnostics);
    KernelRow row;
    row.kernel = cells.word("kernel", kKernels);
    Sizes s;
    const bool product = row.kernel == "product", stream = row.kernel == "stream";
    const bool attention = row.kernel.starts_with("attention");
    const bool update = row.kernel == "update", copies = row.kernel == "gradient_copy";
    s.dtype = cells.word("dtype", product               ? kTypes
                                  : attention || copies ? kHalf
                                  : update              ? kFull
                                                        : kWide);
    s.one = s.dtype == "f32" ? 4 : s.dtype == "fp8" ? 1 : 2;
    s.batch = cells.count("batch", 1, kMostBatch);
    s.m = cells.count("m", 1, stream || update || copies ? kMostBytes : kMostSize);
    s.n = cells.count("n", 1, kMostSize);
    s.k = cells.count("k", 1, kMostSize);
    s.causal = cells.count("causal", 0, 1) == 1;
    if (s.causal && (!attention || s.m > s.n))
      cells.fail("causal", attention ? "0, as not every query has a key" : "0 but for attention");
    row.time_us = cells.time_us();
    if (!starts_with(device, cells.device())) continue;
    row.works = works_of(row.kernel, s);
    row.sizes = text_of(row.kernel, s);
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
  const std::vector<std::string_view> header = split(trim(csv.substr(0, csv.find('\n'))), ',');
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

// Measured collectives and kernels, one a row of a CSV file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "cluster/hardware.h"
#include "cost/op_time.h"

namespace mw::calibrate {

// An all-reduce of so many bytes a rank.
struct CollectiveRow {
  int64_t nodes = 1, ranks = 1;  // of all nodes
  Bytes bytes;
  double time_us = 0;
};

// A kernel, or several that always come together, from the start of one call to the start of the
// next where many are issued; or what the host takes to issue one.
struct KernelRow {
  std::string kernel;  // "product"
  std::string sizes;   // as text: "8192 x 4096 x 1024, bf16"
  std::vector<cost::OpWork> works;
  cost::Fp8 fp8 = cost::Fp8::kOff;
  double time_us = 0;
};
// The longer of the device's work and the host's to issue it.
Seconds kernel_time(const cluster::Device& device, const KernelRow& row);

struct MeasuredKernels {
  std::vector<CollectiveRow> collectives;
  std::vector<KernelRow> kernels;
  std::map<std::string, int64_t> others;  // rows of the device's other collectives, left out

  size_t size() const { return collectives.size() + kernels.size(); }
};
// The rows on the device, or on what its name begins with ("A100-SXM" is any A100 with that
// connector); rows of other devices are checked and left out. A CSV file with the columns device,
// collective, nodes, ranks, bytes, time_us: its all_reduces; or one with device, kernel, dtype,
// batch, m, n, k, causal, time_us, as scripts/measure_gpu.py writes it:
//
//   product                     batch products of [m, k] by [k, n] (dtype fp8: no casts)
//   attention, attention_grad   fused; batch heads of all samples, m queries, n keys, size k
//   stream                      m bytes, read and written together
//   loss                        cross-entropy of m tokens, n words, and the logits' gradient
//   update                      AdamW of m f32 parameters
//   gradient_copy               m gradients of halves put together for a collective of n ranks
//   host                        an op that is too small for the device to matter
//
// dtype: bf16, f16 or f32; of product fp8, too; of attention and gradient_copy a half; of update
// f32.
//
// Throws Error with all findings.
MeasuredKernels parse_kernels(std::string_view csv, const std::string& file,
                              const std::string& device);

}  // namespace mw::calibrate

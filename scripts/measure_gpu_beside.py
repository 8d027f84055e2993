#!/usr/bin/env python3
"""Time kernels of a GPU beside copies that hold some of its multiprocessors, as NCCL's kernels do.

usage: measure_gpu_beside.py -o TABLE.csv [--multiprocessors 8 16 24 32]

A row is a kernel and a number of multiprocessors: a copy inside the device's memory runs there, a
block of 544 threads and 64 KiB of shared memory on each, from before the kernel's first call until
behind its last. `slower` is the kernel's time beside it over its time alone, a median of three.
"""

import argparse
import csv
import statistics
import time

import cupy
import torch
import torch.nn.functional as F
from measure_gpu import ATTENTION, normal
from torch.nn.attention import sdpa_kernel

THREADS, SHARED_BYTES, LONGEST_MS = 544, 64 << 10, 60
COPY = r"""
extern "C" __global__ void __launch_bounds__(544, 1)
copy(const float4* from, float4* to, long long count, volatile int* stop) {
  extern __shared__ float4 held[];
  const long long part = (count + gridDim.x - 1) / gridDim.x, first = part * blockIdx.x;
  const long long last = min(count, first + part), stride = 4LL * blockDim.x;
  while (!*stop) {
    for (long long at = first + threadIdx.x; at < last; at += stride) {
      float4 values[4];
      #pragma unroll
      for (int k = 0; k < 4; ++k)
        if (at + k * blockDim.x < last) values[k] = from[at + k * blockDim.x];
      #pragma unroll
      for (int k = 0; k < 4; ++k)
        if (at + k * blockDim.x < last) to[at + k * blockDim.x] = values[k];
      if ((at - first) / stride % 64 == 0 && *stop) return;
    }
  }
}"""


def kernels():
    x, w = normal(8192, 4096), normal(14336, 4096)
    yield "product of 8192 x 14336 over 4096, bf16", lambda: F.linear(x, w)
    a, b = normal(8192, 8192), normal(8192, 8192)
    yield "product of 8192 x 8192 over 8192, bf16", lambda: F.linear(a, b)
    q, k, v = (normal(4, 32, 8192, 128) for _ in range(3))

    def attention():
        with sdpa_kernel(ATTENTION["flash"]):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    yield "FlashAttention-2, 128 heads of 128, 8192 keys, causal", attention
    first, second = (normal(1 << 26, dtype=torch.float32) for _ in range(2))
    yield "copy of 256 MiB", lambda: second.copy_(first)


class Beside:
    def __init__(self):
        self.copy = cupy.RawKernel(COPY, "copy")
        self.copy.max_dynamic_shared_size_bytes = SHARED_BYTES
        self.values = normal(1 << 28, dtype=torch.float32)
        self.copied = torch.empty_like(self.values)
        self.stop = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.copies, self.stops = torch.cuda.Stream(), torch.cuda.Stream()

    def milliseconds(self, call, multiprocessors, calls):
        self.stop.zero_()
        torch.cuda.synchronize()
        if multiprocessors > 0:
            arguments = (self.values.data_ptr(), self.copied.data_ptr(),
                         cupy.int64(self.values.numel() // 4), self.stop.data_ptr())  # fmt: skip
            with cupy.cuda.ExternalStream(self.copies.cuda_stream):
                self.copy((multiprocessors,), (THREADS,), arguments, shared_mem=SHARED_BYTES)
            time.sleep(0.002)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        with torch.cuda.stream(self.stops):
            self.stop.fill_(1)
        torch.cuda.synchronize()
        return first.elapsed_time(last) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", required=True, help="the table")
    parser.add_argument("--multiprocessors", type=int, nargs="+", default=[8, 16, 24, 32])
    options = parser.parse_args()
    beside, rows = Beside(), []
    for name, call in kernels():
        call()
        calls = max(5, int(LONGEST_MS / beside.milliseconds(call, 0, 5)))
        times = {n: [] for n in (0, *options.multiprocessors)}
        for _ in range(3):
            for count, seen in times.items():
                seen.append(beside.milliseconds(call, count, calls))
        alone = statistics.median(times[0])
        for count in options.multiprocessors:
            slower = statistics.median(times[count]) / alone
            rows.append([torch.cuda.get_device_name(), name, count, f"{alone:.3f}", f"{slower:.3f}"])
    with open(options.output, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([["device", "kernel", "multiprocessors", "alone_ms", "slower"], *rows])


if __name__ == "__main__":
    main()

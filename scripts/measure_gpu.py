#!/usr/bin/env python3
"""Time kernels of a GPU with PyTorch into a table for `meshwright calibrate --kernels`.

usage: measure_gpu.py --device NAME -o TABLE.csv [--seconds 0.1] [--attention cudnn] [--only PART…]

NAME is the device's in the cluster file (H100-SXM-80GB). A row is a kernel and the microseconds
from the start of one call to the start of the next, of as many as fill --seconds, so that large
ones run at the clock that the power limit leaves. What takes under 25 us, or under twice what the
host takes to issue an op, is left out: one row says how long that is.

| kernel | is | sizes |
| --- | --- | --- |
| product | x w^T, as a linear layer calls it; of experts, grouped | batch products of [m, k] by [k, n] |
| attention, attention_grad | FlashAttention-2 or cuDNN's, its gradients | batch heads, m queries, n keys, size k |
| stream | a sum or copy of vectors, a fill | m bytes, read and written together |
| gradient_copy | a block's gradients in bf16 into the f32 buffer that FSDP2 scatters | m elements, for n ranks |
| loss | cross_entropy of f32 logits, with gradients | m tokens, n words |
| update | AdamW as PyTorch has it by default, `foreach`, f32 | m parameters |
| host | a linear layer too small for the device to matter | |
"""

import argparse
import csv
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHORTEST_US = 25
COLUMNS = ["source", "device", "kernel", "dtype", "batch", "m", "n", "k", "causal", "time_us"]


ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


class Table:
    def __init__(self, device, seconds, attention):
        self.attention = ATTENTION[attention]
        name = torch.cuda.get_device_name()
        self.source = f"scripts/measure_gpu.py; PyTorch {torch.__version__}; {name}"
        self.device, self.seconds, self.rows = device, seconds, []
        self.shortest_us = SHORTEST_US

    def add(self, call, kernel, dtype, batch=1, m=1, n=1, k=1, causal=0):
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        calls = max(3, min(3000, int(self.seconds / (time.perf_counter() - begin))))
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        torch.cuda.synchronize()
        time_us = first.elapsed_time(last) * 1e3 / calls
        if kernel == "host":
            self.shortest_us = max(SHORTEST_US, 2 * time_us)
        elif time_us < self.shortest_us:
            return
        self.rows.append([self.source, self.device, kernel, dtype, batch, m, n, k, causal,
                          f"{time_us:.3f}"])  # fmt: skip

    def write(self, path):
        with open(path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *self.rows])


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def product_shapes():
    for size in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384):
        yield size, size, size
    for tokens in (64, 256, 512, 1000, 3000, 5000):
        yield tokens, 4096, 4096
    for hidden in (1024, 2048, 4096, 8192, 12288):  # a layer's four products, whole and in eighths
        for parts in (1, 8):
            for tokens in (2048, 8192):
                yield tokens, 3 * hidden // parts, hidden
                yield tokens, hidden, hidden // parts
                yield tokens, 4 * hidden // parts, hidden
                yield tokens, hidden, 4 * hidden // parts
    for tokens in (16384, 32768):
        yield tokens, 14336, 4096
        yield tokens, 4096, 14336
        yield tokens, 128256, 4096


def products(table):
    has_fp8 = torch.cuda.get_device_capability() >= (8, 9)
    one = torch.ones((), device="cuda")
    small = normal(64, 64)
    table.add(lambda: F.linear(small, small), "host", "bf16")
    for m, n, k in sorted(set(product_shapes())):
        x, w = normal(m, k), normal(n, k)
        table.add(lambda: F.linear(x, w), "product", "bf16", 1, m, n, k)
        if has_fp8 and min(m, n, k) >= 1024:
            x8, w8 = (t.to(torch.float8_e4m3fn) for t in (x, w))
            table.add(
                lambda: torch._scaled_mm(
                    x8, w8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
                ),
                "product",
                "fp8",
                1,
                m,
                n,
                k,
            )


def expert_shapes():
    """Experts, rows of each, ffn, hidden."""
    for experts, ffn, hidden in ((8, 14336, 4096), (128, 768, 2048), (16, 1536, 4096), (32, 2048, 7168)):
        for rows in (128, 512, 2048):
            if experts * rows <= 65536:
                yield experts, rows, ffn, hidden


def grouped_products(table):
    for experts, rows, ffn, hidden in expert_shapes():
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows
        x, h = normal(experts * rows, hidden), normal(experts * rows, ffn)
        up, down = normal(experts, ffn, hidden), normal(experts, hidden, ffn)
        table.add(
            lambda: torch._grouped_mm(x, up.transpose(-2, -1), offs=ends),
            "product", "bf16", experts, rows, ffn, hidden)  # fmt: skip
        table.add(
            lambda: torch._grouped_mm(h, down.transpose(-2, -1), offs=ends),
            "product", "bf16", experts, rows, hidden, ffn)  # fmt: skip
        table.add(
            lambda: torch._grouped_mm(h.t(), x, offs=ends),
            "product", "bf16", experts, ffn, hidden, rows)  # fmt: skip


def attention(table):
    for size, heads in ((128, 32), (64, 64), (96, 24)):
        for length in (512, 1024, 2048, 4096, 8192, 16384, 32768):
            for causal in (True, False):
                if (length > 8192 or not causal) and size != 128:
                    continue
                samples = 32768 // length
                q, k, v = (normal(samples, heads, length, size) for _ in range(3))
                sizes = ("bf16", samples * heads, length, length, size, int(causal))
                with sdpa_kernel(table.attention):

                    def forward():
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                    table.add(forward, "attention", *sizes)
                    for t in (q, k, v):
                        t.requires_grad_()
                    out = forward()
                    gradient = torch.randn_like(out)
                    table.add(
                        lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
                        "attention_grad",
                        *sizes,
                    )


def streams(table):
    for mib in (1, 4, 16, 64, 256, 1024):
        a, b = (torch.empty(mib << 18, device="cuda").normal_() for _ in range(2))
        size = mib << 20
        table.add(lambda: b.copy_(a), "stream", "f32", m=2 * size)
        table.add(lambda: torch.add(a, b, out=b), "stream", "f32", m=3 * size)
        table.add(lambda: b.zero_(), "stream", "f32", m=size)


def gradient_copies(table):
    blocks = [  # square matrices, narrow ones, of the FFN; experts
        [(h, h)] * 2 + [(h // 4, h)] * 2 + [(7 * h // 2, h)] * 2 + [(h, 7 * h // 2)]
        for h in (1024, 2048, 4096, 8192)
    ] + [[(experts, ffn, 2048)] * 3 for experts, ffn in ((32, 1024), (128, 768))]
    for shapes in blocks:
        gradients = [normal(*shape) for shape in shapes]
        elements = sum(gradient.numel() for gradient in gradients)
        for ranks in (8, 32):
            whole = torch.empty(ranks, elements // ranks, device="cuda")
            table.add(
                lambda: torch._chunk_cat(gradients, dim=0, num_chunks=ranks, out=whole),
                "gradient_copy", "bf16", m=elements, n=ranks,
            )  # fmt: skip


def ends(table):
    for tokens in (2048, 8192):
        for words in (32000, 128256):
            logits = normal(tokens, words).requires_grad_()
            targets = torch.randint(0, words, (tokens,), device="cuda")

            def loss():
                torch.autograd.grad(F.cross_entropy(logits.float(), targets), logits)

            table.add(loss, "loss", "bf16", m=tokens, n=words)
    for count in (8, 32):
        weights = [torch.nn.Parameter(normal(4096, 4096, dtype=torch.float32)) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        update = torch.optim.AdamW(weights, lr=1e-4, foreach=True)
        table.add(update.step, "update", "f32", m=count << 24)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", required=True, help="its name in the cluster file")
    parser.add_argument("-o", "--output", required=True, help="the table")
    parser.add_argument("--seconds", type=float, default=0.1, help="of calls a kernel")
    parser.add_argument("--attention", choices=ATTENTION, default="flash", help="whose kernels")
    parts = {part.__name__.replace("_", "-"): part
             for part in (products, grouped_products, attention, streams, gradient_copies, ends)}  # fmt: skip
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="of these parts")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    table = Table(options.device, options.seconds, options.attention)
    for part in options.only:
        parts[part](table)
        table.write(options.output)
    print(f"{len(table.rows)} kernels in {options.output}")


if __name__ == "__main__":
    main()

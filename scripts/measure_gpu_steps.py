#!/usr/bin/env python3
"""Time training steps on one GPU with PyTorch, as one rank of so many devices would run them.

usage: measure_gpu_steps.py STEPS.csv -o MEASURED.csv [--steps 8] [--kernels DIR]

STEPS.csv has the columns of data/measured/h100_steps.csv; a row's model is models/MODEL.json with so
many layers, its profile says whether blocks are compiled. What is measured is filled in: the median
step's seconds, those of them that the fake group's copies took, the allocator's most bytes.
`--kernels` writes what each op took of the GPU in a step.

The model is a Llama or a mixture of experts, written as torchtitan's are [pytorch/torchtitan
torchtitan/models, of 2024 and, experts, 2025]: norms and rope through f32, keys and values repeated
for every query, experts in grouped products. FSDP2 divides it, its root stays gathered, as in
PyTorch 2.6; context parallelism is PyTorch's ring of flash attention. The group is PyTorch's fake
one, whose gathers copy inside the device. All its shards are one, so that a router's logits would
tie: which experts a token goes to is drawn, evenly, and the router's choice is made and not used.
"""

import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from measure_gpu import ATTENTION
from torch import nn
from torch.nn.attention import sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parents[1]
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


def linear(size_in, size_out):
    return nn.Linear(size_in, size_out, bias=False)


def rotated(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Attention(nn.Module):
    kernel = "flash"

    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.size = c.get("head_dim", c["hidden_size"] // self.heads)
        self.wq = linear(c["hidden_size"], self.heads * self.size)
        self.wk = linear(c["hidden_size"], self.kv_heads * self.size)
        self.wv = linear(c["hidden_size"], self.kv_heads * self.size)
        self.wo = linear(self.heads * self.size, c["hidden_size"])
        if c["model_type"].startswith("qwen3"):
            self.q_norm = Norm(self.size, c["rms_norm_eps"])
            self.k_norm = Norm(self.size, c["rms_norm_eps"])

    def forward(self, x, turns):
        samples, length, _ = x.shape
        q, k, v = (
            w(x).view(samples, length, -1, self.size) for w in (self.wq, self.wk, self.wv)
        )
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (self.repeated(t) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        with sdpa_kernel(ATTENTION[Attention.kernel]):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(samples, length, -1))

    def repeated(self, x):
        samples, length, heads, size = x.shape
        times = self.heads // self.kv_heads
        wide = x[:, :, :, None, :].expand(samples, length, heads, times, size)
        return wide.reshape(samples, length, heads * times, size)


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate, self.up, self.down = linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, c, tokens):
        super().__init__()
        self.count = c.get("num_local_experts") or c["num_experts"]
        self.top_k = c["num_experts_per_tok"]
        hidden, ffn = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
        self.router = linear(hidden, self.count)
        self.gate = nn.Parameter(torch.empty(self.count, ffn, hidden))
        self.up = nn.Parameter(torch.empty(self.count, ffn, hidden))
        self.down = nn.Parameter(torch.empty(self.count, hidden, ffn))
        groups = self.count // self.top_k  # of experts, each chosen by as many tokens
        group = torch.randperm(tokens, device=DEVICE) % groups
        self.drawn = torch.stack([group * self.top_k + k for k in range(self.top_k)], 1)

    def forward(self, x):
        samples, length, hidden = x.shape
        x = x.view(-1, hidden)
        scores = F.softmax(self.router(x).float(), dim=1)
        _, chosen = torch.topk(scores, self.top_k, dim=1)
        chosen = torch.where(chosen < 0, chosen, self.drawn)
        gates = scores.gather(1, chosen)
        rows = torch.histc(chosen.view(-1).float(), bins=self.count, min=0, max=self.count)
        order = torch.argsort(chosen.view(-1), stable=True)
        gates = gates.view(-1)[order].reshape(-1, 1)
        token = (order // self.top_k).reshape(-1, 1).expand(-1, hidden)
        dealt = torch.gather(x, 0, token)
        dealt = (dealt.float() * gates).type_as(x)
        ends = torch.cumsum(rows, 0, dtype=torch.int32)
        up = torch._grouped_mm(dealt, self.up.transpose(-2, -1), offs=ends)
        gate = F.silu(torch._grouped_mm(dealt, self.gate.transpose(-2, -1), offs=ends))
        made = torch._grouped_mm(gate * up, self.down.transpose(-2, -1), offs=ends)
        out = torch.zeros_like(x).scatter_add(0, token, made)
        return out.view(samples, length, hidden)


class Block(nn.Module):
    def __init__(self, c, tokens):
        super().__init__()
        self.attention = Attention(c)
        mixture = c.get("num_local_experts") or c.get("num_experts")
        self.ffn = Experts(c, tokens) if mixture else Mlp(c["hidden_size"], c["intermediate_size"])
        self.attention_norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.ffn_norm = Norm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.ffn(self.ffn_norm(x))


def turns_of(c, length):
    """Of each position's pairs, one factor a pair: [1, length, 1, pairs]."""
    size = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    rates = c["rope_theta"] ** (-torch.arange(0, size, 2, device=DEVICE).float() / size)
    angles = torch.outer(torch.arange(length, device=DEVICE), rates)
    return torch.polar(torch.ones_like(angles), angles)[None, :, None, :]


class Model(nn.Module):
    def __init__(self, c, samples, length):
        super().__init__()
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = nn.ModuleList(
            Block(c, samples * length) for _ in range(c["num_hidden_layers"])
        )
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.output = linear(c["hidden_size"], c["vocab_size"])
        self.turns = turns_of(c, length)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.output(self.norm(x))


def keeps_every_second():
    """Of products; what attention and reductions made is kept."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = {aten.mm.default, aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default}  # fmt: skip

    def contexts():
        products = {False: 0, True: 0}

        def policy(context, op, *_args, **_kwargs):
            if op == aten.mm.default:
                products[context.is_recompute] += 1
            if op in kept and not (op == aten.mm.default and products[context.is_recompute] % 2 == 0):
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return {"context_fn": contexts}


def divided(row, config):
    """The row's model on the first of its devices, with its optimizer and the mesh of dp and cp."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    devices = int(row["devices"])
    plan = dict(part.split("=") for part in row["plan"].split(","))
    dp, cp = int(plan["dp"]), int(plan.get("cp", 1))
    if dp * cp != devices or plan.get("zero") != "3" or row["precision"] != "bf16":
        sys.exit(f"this measures dp=N, cp=M, zero=3 in bf16, not {row['plan']} in {row['precision']}")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    mesh = init_device_mesh(DEVICE, (dp, cp), mesh_dim_names=("dp", "cp"))
    samples = int(row["global_batch"]) // dp
    with torch.device("meta"):
        model = Model(config, samples, int(row["seq_len"]))
    for i, block in enumerate(model.blocks):
        recompute = plan.get("recompute", "none")
        if recompute != "none":
            options = keeps_every_second() if recompute == "selective-op" else {}
            block = checkpoint_wrapper(block, preserve_rng_state=False, **options)
        if row["profile"].endswith("-compiled"):
            block.compile()
        model.blocks[i] = block
    whole = mesh[("dp", "cp")]._flatten()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.blocks):
        fully_shard(block, mesh=whole, mp_policy=policy,
                    reshard_after_forward=i + 1 < len(model.blocks))  # fmt: skip
    fully_shard(model, mesh=whole, mp_policy=policy, reshard_after_forward=False)
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(0, 0.02)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True), mesh


def ops_of(step, wait):
    """What ops with these operands took of the device in a step, in us, with their number."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if GPU else [])
    with profile(activities=kinds, record_shapes=True) as seen:
        step()
        wait()
    time_us = "self_device_time_total" if GPU else "self_cpu_time_total"
    ops = seen.key_averages(group_by_input_shape=True)
    rows = [(getattr(op, time_us), op.count, op.key, op.input_shapes) for op in ops]
    return sorted((row for row in rows if row[0] > 0), key=lambda row: -row[0])


def copies_of_the_group(ops):
    """Seconds: a gather copies the shard to every part of the whole."""

    def is_copy(key, shapes):
        return key == "aten::copy_" and len(shapes[0]) == 1 and shapes[0] == shapes[1]

    return sum(row[0] for row in ops if is_copy(*row[2:])) / 1e6


def measured(row, steps, kernels):
    config = json.loads((ROOT / f"models/{row['model']}.json").read_text())
    config["num_hidden_layers"] = int(row["layers"])
    Attention.kernel = row.get("attention") or "flash"
    model, update, mesh = divided(row, config)
    shape = (int(row["global_batch"]) // mesh["dp"].size(), int(row["seq_len"]))
    inputs, targets = (torch.randint(0, config["vocab_size"], shape, device=DEVICE) for _ in range(2))
    if mesh["cp"].size() > 1:
        from torch.distributed.tensor.experimental import context_parallel

        along = [inputs, targets, model.turns]  # dealt to the ranks; left so, and attention a ring
        context_parallel(
            mesh["cp"], buffers=along, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(along)
        ).__enter__()

    def step():
        update.zero_grad()
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        update.step()

    def wait():
        if GPU:
            torch.cuda.synchronize()

    seconds = []
    for _ in range(steps):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    ops = ops_of(step, wait)
    if kernels:
        name = "-".join(row[k] for k in ("model", "layers", "profile", "plan"))
        path = pathlib.Path(kernels) / f"{name.replace('=', '').replace(',', '-')}.csv"
        with open(path, "w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerows([["us", "calls", "op", "operands"], *ops[:400]])
    row["step_s"] = f"{statistics.median(seconds[2:]):.4f}"
    row["group_s"] = f"{copies_of_the_group(ops):.4f}"
    if GPU:
        row["allocated_GiB"] = f"{torch.cuda.max_memory_allocated() / 2**30:.3f}"
        row["reserved_GiB"] = f"{torch.cuda.max_memory_reserved() / 2**30:.3f}"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", help="a table with the columns of data/measured/h100_steps.csv")
    parser.add_argument("-o", "--output", required=True, help="the table, measured")
    parser.add_argument("--steps", type=int, default=8, help="the first two do not count")
    parser.add_argument("--kernels", help="a folder for each row's kernels")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    rows = list(csv.DictReader(open(options.rows)))
    if options.row is not None:
        return write([measured(rows[options.row], options.steps, options.kernels)], options.output)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for i in range(len(rows)):
        part = f"{options.output}.{i}"
        words = [sys.executable, __file__, *sys.argv[1:], "-o", part, "--row", str(i)]
        if subprocess.run(words).returncode == 0:
            rows[i] = next(csv.DictReader(open(part)))
        pathlib.Path(part).unlink(missing_ok=True)
        write(rows, options.output)


def write(rows, path):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()

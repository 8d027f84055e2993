"""One peer of bench/train_vs_pytorch: trains the model with PyTorch and prints {"step_s": …, "peak_bytes": …}.

Usage: pytorch_peer.py eager|compile|ddp|dtensor|pipe-1f1b|pipe-interleaved CONFIG THREADS RANKS STEPS
       pytorch_peer.py probe THREADS      answers every line of its input with the seconds of a fixed matrix product
"""

import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

SEQUENCE, BATCH, MICROBATCHES = 256, 8, 4


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.head_dim = width // config["n_head"]
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x_BSD):
        def heads(y):
            return y.view(y.shape[0], y.shape[1], -1, self.head_dim).transpose(1, 2)

        y = F.scaled_dot_product_attention(heads(self.q(x_BSD)), heads(self.k(x_BSD)), heads(self.v(x_BSD)), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x_BSD.shape[0], x_BSD.shape[1], -1))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(config)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BSD):
        x_BSD = x_BSD + self.attention(self.ln_1(x_BSD))
        return x_BSD + self.down(F.gelu(self.up(self.ln_2(x_BSD)), approximate="tanh"))


class Embedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.positions = nn.Embedding(config["n_positions"], config["n_embd"])

    def forward(self, tokens_BS):
        return self.tokens(tokens_BS) + self.positions.weight[: tokens_BS.shape[1]]


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config["n_embd"])
        self.logits = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)

    def forward(self, x_BSD):
        return self.logits(self.norm(x_BSD))


class Gpt(nn.Module):
    """The head is tied to the embedding, but not where a pipeline splits the two."""

    def __init__(self, config, tied=True):
        super().__init__()
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["n_layer"]))
        self.head = Head(config)
        if tied:
            self.head.logits.weight = self.embedding.tokens.weight

    def forward(self, tokens_BS):
        x_BSD = self.embedding(tokens_BS)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return self.head(x_BSD)


def loss_of(logits_BSV, targets_BS):
    return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def batch_of(config, rows):
    tokens = torch.randint(0, min(256, config["vocab_size"]), (rows, SEQUENCE + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def timed(step, steps):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def plain_step(model, optimizer, forward, inputs, targets):
    def step():
        loss_of(forward(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def one_rank(peer, config, steps):
    model = Gpt(config)
    forward = torch.compile(model) if peer == "compile" else model
    return timed(plain_step(model, optimizer_of(model), forward, *batch_of(config, BATCH)), steps)


def ddp(rank, config, steps):
    model = Gpt(config)
    replica = nn.parallel.DistributedDataParallel(model)
    return timed(plain_step(model, optimizer_of(model), replica, *batch_of(config, BATCH // 2)), steps)


def dtensor(rank, config, steps):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Gpt(config, tied=False)
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
            "attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    parallelize_module(model, mesh, {
        "embedding.tokens": RowwiseParallel(input_layouts=Replicate()),
        "head.logits": ColwiseParallel(output_layouts=Replicate())})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    inputs, targets = batch_of(config, BATCH)

    def step():
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, steps)


def pipeline(rank, config, steps, interleaved):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    chunks = 2 if interleaved else 1
    stages = 2 * chunks
    whole = Gpt(config, tied=False)
    layers = config["n_layer"]
    counts = [layers // stages + (1 if s < layers % stages else 0) for s in range(stages)]
    parts, begin = [], 0
    for s in range(stages):
        part = list(whole.blocks[begin:begin + counts[s]])
        begin += counts[s]
        parts.append(nn.Sequential(*([whole.embedding] if s == 0 else []), *part, *([whole.head] if s == stages - 1 else [])))
    mine = [c * 2 + rank for c in range(chunks)]
    made = [PipelineStage(parts[s], s, stages, torch.device("cpu")) for s in mine]
    schedule = (ScheduleInterleaved1F1B(made, MICROBATCHES, loss_fn=loss_of) if interleaved
                else Schedule1F1B(made[0], MICROBATCHES, loss_fn=loss_of))
    model = nn.ModuleList(parts[s] for s in mine)
    optimizer = optimizer_of(model)
    inputs, targets = batch_of(config, BATCH)

    def step():
        arguments = [inputs] if rank == 0 else []
        schedule.step(*arguments, **({"target": targets} if rank == 1 else {}))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, steps)


def worker(rank, peer, config, threads, steps, port, results):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    if peer == "ddp":
        step_s = ddp(rank, config, steps)
    elif peer == "dtensor":
        step_s = dtensor(rank, config, steps)
    else:
        step_s = pipeline(rank, config, steps, peer == "pipe-interleaved")
    results.put((step_s, peak_bytes()))
    dist.barrier()
    dist.destroy_process_group()


def probe(threads):
    """How fast the machine is at this moment: 40 products of 1024 x 1024 matrices, on all threads that a case uses."""
    torch.set_num_threads(threads)
    a, b, c = torch.rand(1024, 1024), torch.rand(1024, 1024), torch.empty(1024, 1024)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(40):
            torch.mm(a, b, out=c)
        print(time.perf_counter() - begin, flush=True)


def main():
    if sys.argv[1] == "probe":
        return probe(int(sys.argv[2]))
    peer, config_file, threads, ranks, steps = sys.argv[1:6]
    threads, ranks, steps = int(threads), int(ranks), int(steps)
    with open(config_file) as file:
        config = json.load(file)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if ranks == 1:
        step_s = one_rank(peer, config, steps)
        print(json.dumps({"step_s": step_s, "peak_bytes": peak_bytes()}))
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(worker, (peer, config, threads, steps, port, results), nprocs=ranks)
    measured = [results.get() for _ in range(ranks)]
    print(json.dumps({"step_s": max(m[0] for m in measured), "peak_bytes": sum(m[1] for m in measured)}))


if __name__ == "__main__":
    main()

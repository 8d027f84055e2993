#!/usr/bin/env python3
"""Time the passes of a pipeline's stage on one GPU with PyTorch: forward, backward, and backward in two.

usage: measure_gpu_passes.py PASSES.csv -o MEASURED.csv [--passes 6]

PASSES.csv has the columns of data/measured/h100_passes.csv; a row is a stage of so many blocks of
models/MODEL.json (as scripts/measure_gpu_steps.py writes them, eager, weights whole and in bf16)
and a microbatch of so many sequences. What is measured is filled in: seconds of the forward pass,
of a whole backward pass, of the gradients of inputs alone and of those of weights that are left
then, as torch.distributed.pipelining splits them, medians over passes behind the second; and what
a microbatch holds in GiB behind its forward pass and behind the gradients of its inputs.
"""

import argparse
import csv
import json
import statistics
import sys

import torch
from measure_gpu_steps import DEVICE, GPU, ROOT, Block, keeps_every_second, turns_of
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


class Stage(torch.nn.Module):
    def __init__(self, row):
        super().__init__()
        config = json.loads((ROOT / f"models/{row['model']}.json").read_text())
        self.samples, self.length = int(row["samples"]), int(row["seq_len"])
        self.hidden = config["hidden_size"]
        with torch.device("meta"):
            blocks = [Block(config, self.samples * self.length) for _ in range(int(row["layers"]))]
        self.blocks = torch.nn.ModuleList(self.kept(block, row["recompute"]) for block in blocks)
        self.to(torch.bfloat16).to_empty(device=DEVICE)
        self.turns = turns_of(config, self.length)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.02)

    @staticmethod
    def kept(block, recompute):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        if recompute == "none":
            return block
        options = {"full": {}, "selective-op": keeps_every_second()}[recompute]
        return checkpoint_wrapper(block, preserve_rng_state=False, **options)

    def boundary(self):
        shape = (self.samples, self.length, self.hidden)
        return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.turns)
        return x


class Clock:
    """Marks of the device's time line."""

    def __init__(self):
        self.marks = []

    def mark(self):
        if GPU:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()

    def seconds(self):
        if GPU:
            torch.cuda.synchronize()
        pairs = zip(self.marks, self.marks[1:])
        return [first.elapsed_time(last) / 1e3 for first, last in pairs]


def alive():
    return torch.cuda.memory_allocated() / 2**30 if GPU else 0


def whole_backward(stage, gradient):
    clock, x = Clock(), stage.boundary().requires_grad_()
    before = alive()
    clock.mark()
    out = stage(x)
    clock.mark()
    held = alive() - before
    torch.autograd.backward(out, gradient)
    clock.mark()
    return *clock.seconds(), held


def split_backward(stage, gradient):
    clock, x = Clock(), stage.boundary().requires_grad_()
    before = alive()
    out = stage(x)
    clock.mark()
    _, groups = stage_backward_input([out], [gradient], [x], stage.parameters())
    clock.mark()
    held = alive() - before
    stage_backward_weight(stage.parameters(), groups)
    clock.mark()
    return *clock.seconds(), held


def measured(row, passes):
    stage = Stage(row)
    gradient = stage.boundary()
    whole = [whole_backward(stage, gradient) for _ in range(passes)][2:]
    split = [split_backward(stage, gradient) for _ in range(passes)][2:]
    if not GPU:
        return row
    columns = ("forward_s", "backward_s", "held_GiB", "input_s", "weight_s", "held_to_weights_GiB")
    values = [statistics.median(column) for column in (*zip(*whole), *zip(*split))]
    return row | {column: f"{value:.5f}" for column, value in zip(columns, values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", help="a table with the columns of data/measured/h100_passes.csv")
    parser.add_argument("-o", "--output", required=True, help="the table, measured")
    parser.add_argument("--passes", type=int, default=8, help="the first two do not count")
    options = parser.parse_args()
    rows = list(csv.DictReader(open(options.rows)))
    if not rows:
        sys.exit(f"{options.rows} has no rows")
    rows = [measured(row, options.passes) for row in rows]
    with open(options.output, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()

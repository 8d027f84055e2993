"""Runs schedules of CSV files in PyTorch's own pipeline runtime: a process a rank, over Gloo, on the CPU.

A stage is two linear layers and a tanh between them. What comes of it is compared with all stages in one process.
"""

import csv
import dataclasses
import datetime
import json
import pathlib
import re

import torch
from torch import distributed
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

HIDDEN = 8
SEQUENCES = 2  # of a microbatch
SECONDS = 60  # a message that is waited for longer fails


@dataclasses.dataclass(frozen=True)
class Order:
    file: str
    format: str  # "compute_only" or "compute_comms"


def module_of(stage: int) -> torch.nn.Module:
    torch.manual_seed(100 + stage)
    return torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN))


def batch_of(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    return torch.randn(microbatches * SEQUENCES, HIDDEN), torch.randn(microbatches * SEQUENCES, HIDDEN)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def in_one_process(stages: int, microbatches: int) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """All stages with their gradients, and the losses."""
    whole = torch.nn.Sequential(*(module_of(stage) for stage in range(stages)))
    losses = []
    for x, y in zip(*(part.split(SEQUENCES) for part in batch_of(microbatches)), strict=True):
        losses.append(loss_of(whole(x), y))
        (losses[-1] / microbatches).backward()
    return whole, losses


def hosted(file: str) -> list[list[int]]:
    """[rank] its stages, ascending."""
    with open(file, newline="", encoding="utf-8") as rows:
        return [sorted({int(stage) for cell in row for stage in re.findall(r"(\d+)[FBIW]\d", cell)})
                for row in csv.reader(rows)]


def run_order(order: Order, rank: int, microbatches: int) -> dict[str, float]:
    """The largest differences of a rank's gradients and losses."""
    stages_of = hosted(order.file)
    count = 1 + max(stage for stages in stages_of for stage in stages)
    modules = {stage: module_of(stage) for stage in stages_of[rank]}
    stages = [pipelining.PipelineStage(module, stage, count, torch.device("cpu")) for stage, module in modules.items()]
    schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of)
    schedule._load_csv(order.file, format=order.format)
    x, y = batch_of(microbatches)
    losses = []
    schedule.step(*([x] if 0 in modules else []),
                  **({"target": y, "losses": losses} if count - 1 in modules else {}))
    whole, expected = in_one_process(count, microbatches)
    return {
        "gradient": max(float((a.grad - b.grad).abs().max()) for stage, module in modules.items()
                        for a, b in zip(module.parameters(), whole[stage].parameters(), strict=True)),
        "loss": max((float((a - b).abs()) for a, b in zip(losses, expected, strict=True)) if losses else [0.0]),
        "losses": len(losses),
    }


def run_rank(rank: int, ranks: int, microbatches: int, orders: list[Order], folder: pathlib.Path) -> None:
    """Leaves rankN.json in the folder: of each order what run_order says."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks,
                                   timeout=datetime.timedelta(seconds=SECONDS))
    found = [run_order(order, rank, microbatches) for order in orders]
    (folder / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()

"""What PyTorch's pipelines do when inputs' and weights' gradients are apart (I and W), which is why profiles of PyTorch
say that their engines lack it where something is recomputed or compiled (`lacks` in clusters/profiles/*torch*.toml)."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="scripts/setup installs torch into build/venv")

from torch.distributed.pipelining import schedules  # noqa: E402
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight  # noqa: E402
from torch.utils import checkpoint as recompute  # noqa: E402

PROFILES = Path(__file__).parents[2] / "clusters" / "profiles"
HIDDEN, BLOCKS = 16, 2


class Block(torch.nn.Module):
    """A norm and a gated feed-forward network: four weights, three of products."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(HIDDEN)
        self.gate, self.up = (torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def keeps_products():
    """The policy of selective recomputation by op: products are kept."""
    keep = recompute.CheckpointPolicy.MUST_SAVE, recompute.CheckpointPolicy.PREFER_RECOMPUTE
    return recompute.create_selective_checkpoint_contexts(
        lambda context, op, *args, **kwargs: keep[op != torch.ops.aten.mm.default])


WAYS = {
    "none": lambda block, x: block(x),
    "full": lambda block, x: recompute.checkpoint(block, x, use_reentrant=False),
    "selective": lambda block, x: recompute.checkpoint(block, x, use_reentrant=False, context_fn=keeps_products),
}


def forwards(way: str) -> tuple[list[int], list[torch.Tensor]]:
    """How often a block runs forward in F, I and W of a stage; the weights' gradients."""
    torch.manual_seed(1)
    blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
    x = torch.randn(3, HIDDEN, requires_grad=True)
    y, counts = x, [0]
    for block in blocks:
        y = WAYS[way](block, y)
    counts.append(blocks[0].forwards)
    _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], blocks.parameters())
    counts.append(blocks[0].forwards)
    stage_backward_weight(blocks.parameters(), groups)
    counts.append(blocks[0].forwards)
    return [b - a for a, b in zip(counts, counts[1:])], [p.grad for p in blocks.parameters()]


def lacks(profile: str) -> list[str]:
    return tomllib.loads((PROFILES / f"{profile}.toml").read_text())["lacks"]


def test_a_block_that_is_recomputed_runs_once_more_for_each_weight():
    plain, gradients = forwards("none")
    full, same = forwards("full")
    assert plain == [1, 0, 0]
    assert full == [1, 1, len(gradients) // BLOCKS]
    for a, b in zip(gradients, same, strict=True):
        assert torch.equal(a, b)
    assert "split-recompute" in lacks("h100-80gb-torch")
    assert "split-backward" not in lacks("h100-80gb-torch")


def test_selective_recomputation_refuses_a_second_backward_pass():
    with pytest.raises(RuntimeError, match="backward an extra time"):
        forwards("selective")


@pytest.mark.parametrize("kind", ["ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"])
def test_schedules_with_a_split_backward_refuse_compiled_blocks(kind):
    blocks = torch.nn.ModuleList([torch.compile(Block())])
    stage = SimpleNamespace(submod=blocks, group_size=1)
    with pytest.raises(RuntimeError, match=f"{kind} schedule is not supported with stage modules that have used"):
        getattr(schedules, kind)([stage, stage], n_microbatches=2)
    assert "split-backward" in lacks("h100-80gb-torch-compiled")

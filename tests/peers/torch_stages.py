"""What a pipeline rank holds in PyTorch: its stages under FSDP2 on the CPU, with a fake group in place of the others.

usage: torch_stages.py CASE, JSON of {model, microbatches, seq_len, dp, order, rank}: a config, a CSV file of a schedule
and a row of it. Prints the most bytes that tensors had in the second step. Everything that an op makes counts until
nothing refers to it, as a GPU's allocator would count it, in blocks of 512 bytes.
"""

import json
import pathlib
import sys
import weakref

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_pipeline import hosted

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import measure_gpu_steps as models  # noqa: E402

BLOCK_BYTES = 512
CPU = torch.device("cpu")


class Alive(TorchDispatchMode):
    """Bytes of all storages that ops have made under it; the most since `most` was set."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.storages = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its parts come here by themselves
        made = op(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if type(leaf) in (torch.Tensor, nn.Parameter):
                self.count(leaf.untyped_storage())
        return made

    def count(self, storage):
        size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        key = storage._cdata
        if size == 0 or key in self.storages:
            return
        self.storages.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        self.storages.discard(key)
        self.now -= size


class Stage(nn.Module):
    def __init__(self, config, seq_len, blocks, first, last):
        super().__init__()
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        self.embedding = nn.Embedding(vocabulary, hidden) if first else nn.Identity()
        self.blocks = nn.ModuleList(models.Block(config, seq_len) for _ in range(blocks))
        self.norm = models.Norm(hidden, config["rms_norm_eps"]) if last else nn.Identity()
        self.output = models.linear(hidden, vocabulary) if last else nn.Identity()
        self.turns = models.turns_of(config, seq_len)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.output(self.norm(x))


def stage_of(case, index, stages, mesh):
    """Of a microbatch of one sequence; blocks are dealt out evenly, the first stages have one more."""
    config, seq_len = case["model"], case["seq_len"]
    blocks, more = divmod(config["num_hidden_layers"], stages)
    first, last = index == 0, index == stages - 1
    module = Stage(config, seq_len, blocks + (index < more), first, last)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0, 0.02)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*module.blocks, module):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)

    def value(features):
        return torch.zeros(1, seq_len, features, dtype=torch.bfloat16, requires_grad=True)

    tokens = torch.zeros(1, seq_len, dtype=torch.long)
    inputs = tokens if first else value(config["hidden_size"])
    outputs = value(config["vocab_size" if last else "hidden_size"])
    stage = PipelineStage(module, index, stages, CPU, input_args=inputs, output_args=outputs,
                          input_grads=None if first else inputs.detach(), output_grads=outputs.detach(),
                          group=mesh["pp"].get_group())
    stage._inference_mode = InferenceMode.STATIC  # the ranks would agree on it, and there are no others
    return stage


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def most_bytes(case) -> int:
    stages_of = hosted(case["order"])
    count = 1 + max(stage for stages in stages_of for stage in stages)
    mine, dp, microbatches = stages_of[case["rank"]], case["dp"], case["microbatches"]
    distributed.init_process_group("fake", store=FakeStore(), rank=case["rank"] * dp, world_size=len(stages_of) * dp)
    mesh = init_device_mesh("cpu", (len(stages_of), dp), mesh_dim_names=("pp", "dp"))
    with Alive() as alive:
        stages = [stage_of(case, index, count, mesh) for index in mine]
        schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of, scale_grads=False)
        schedule._warmup_p2p = lambda *_: None
        schedule._load_csv(case["order"])
        weights = [weight for stage in stages for weight in stage.submod.parameters()]
        update = torch.optim.AdamW(weights, lr=1e-4, foreach=True)
        tokens, targets = (torch.randint(case["model"]["vocab_size"], (microbatches, case["seq_len"]))
                           for _ in range(2))
        for _ in range(2):
            alive.most = alive.now
            update.zero_grad()
            known = {"target": targets, "losses": []} if mine[-1] == count - 1 else {}
            schedule.step(*([tokens] if mine[0] == 0 else []), **known, return_outputs=False)
            nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            update.step()
    return alive.most


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(most_bytes(json.loads(sys.argv[1])))

"""Runs the binary from a test: writes jobs and data, starts runs, reads what they left.

Needs the standard library alone. The binary is MESHWRIGHT_BIN, by default build/meshwright.
"""

import array
import dataclasses
import json
import os
import pathlib
import shlex
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("MESHWRIGHT_BIN", ROOT / "build" / "meshwright"))
TEXT = ROOT / "build" / "data" / "kjv.txt"
EVERYTHING = os.environ.get("MESHWRIGHT_TEST_ALL") == "1"
SEED = int(os.environ.get("MESHWRIGHT_TEST_SEED", "20261121"))
RUN_SECONDS = 300


def missing() -> str:
    """Why no test of this folder can run; empty: they can, or MESHWRIGHT_BIN promised that they can."""
    return "" if BINARY.exists() or "MESHWRIGHT_BIN" in os.environ else f"{BINARY} is not built"


def execute(arguments: list) -> subprocess.CompletedProcess:
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, cwd=ROOT,
                          stdin=subprocess.DEVNULL, timeout=RUN_SECONDS)


def generated(arguments: list) -> bytes:
    """What `generate` prints: bytes, which need be no UTF-8."""
    done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, cwd=ROOT,
                          stdin=subprocess.DEVNULL, timeout=RUN_SECONDS)
    assert done.returncode == 0, f"{command_line(arguments)}\nexit code {done.returncode}\n{done.stderr.decode()}"
    return done.stdout


def command_line(arguments: list) -> str:
    return shlex.join(["meshwright", *map(str, arguments)])


def write_job(path: pathlib.Path, *, model, data, seq_len: int, global_batch: int, valid_fraction: float = 0,
              eval_every: int = 0, eval_batches: int = 1, checkpoint_every: int = 0, seed: int = 1,
              **train) -> pathlib.Path:
    """`train` are the keys of [train]; without evaluation and with the last checkpoint alone by default."""
    train = {"steps": 200, "lr": 3e-4, "min_lr": 3e-5, "warmup": 50, **train}
    lines = [f'model = "{model}"', f"seed = {seed}", "[data]", f'file = "{data}"', f"seq_len = {seq_len}",
             f"valid_fraction = {float(valid_fraction)}", "[train]", f"global_batch = {global_batch}",
             *(f"{key} = {value}" for key, value in train.items()),
             "[eval]", f"every = {eval_every}", f"batches = {eval_batches}",
             "[checkpoint]", f"every = {checkpoint_every}", "keep = 9"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_indexed(prefix: pathlib.Path, tokens: list[int]) -> pathlib.Path:
    """One document of int32 tokens as Megatron-LM's PREFIX.bin and PREFIX.idx."""
    prefix.with_suffix(".bin").write_bytes(array.array("i", tokens).tobytes())
    int32_code = 4
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, int32_code, 1, 2) + struct.pack("<iqqq", len(tokens), 0, 0, 1))
    return prefix


@dataclasses.dataclass
class Tensor:
    """A tensor of a safetensors file: its type's name there, its shape and its bytes."""
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: Tensor(entry["dtype"], tuple(entry["shape"]),
                         content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


@dataclasses.dataclass
class Run:
    folder: pathlib.Path
    command: str
    metrics: list[dict]  # one a step
    summary: dict        # of --json

    def series(self, key: str) -> list[float]:
        return [line[key] for line in self.metrics]

    def checkpoint(self) -> pathlib.Path:
        """The newest one."""
        return max((self.folder / "checkpoint").glob("step-*"))

    def tensors(self, group: str) -> dict[str, Tensor]:
        """Of the newest checkpoint; group is "model" or "optimizer"."""
        found = {}
        for path in sorted(self.checkpoint().glob(f"{group}-*.safetensors")):
            found.update(read_safetensors(path))
        return found


def train(folder: pathlib.Path, job: pathlib.Path, plan: str, *options, steps: int = 1) -> Run:
    """A run with one thread a rank: a product's bits may depend on the number of its threads."""
    arguments = ["train", job, "--plan", plan, *options, "--steps", steps, "--run-dir", folder,
                 "--threads-per-rank", 1, "--quiet", "--json"]
    done = execute(arguments)
    assert done.returncode == 0, f"{command_line(arguments)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        metrics = [json.loads(line) for line in lines]
    return Run(folder, command_line(arguments), metrics, json.loads(done.stdout.splitlines()[-1]))

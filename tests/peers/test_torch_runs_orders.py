"""PyTorch's pipelines run what `schedule --csv` writes, with and without messages, and give one process's gradients."""

import json
import pathlib
import random
import sys

import pytest

import meshwright

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "equivalence"))

torch = pytest.importorskip("torch", reason="scripts/setup installs torch into build/venv")

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

from torch import multiprocessing  # noqa: E402

import orders  # noqa: E402
import torch_pipeline  # noqa: E402

RANKS, MICROBATCHES = 4, 8
# All but those with what PyTorch lacks: stages on several ranks, slices, several microbatches in one action.
KINDS = ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-h1", "zb-h2", "zb-auto", "zb-v",
         "v-half", "v-min", "hanayo", "dualpipe-v"]
RANDOM = [f"random{i}" for i in range(4)]
FORMATS = {"compute_only": [], "compute_comms": ["--comms"]}
CASES = [(name, form) for name in KINDS + RANDOM for form in FORMATS]
TOLERANCE = 1e-6


def written(name: str, form: str, folder) -> torch_pipeline.Order:
    file = folder / f"{name}.{form}.csv"
    if name in KINDS:
        asked = [name, "--stages", RANKS, "--microbatches", MICROBATCHES]
    else:
        rng = random.Random(f"{meshwright.SEED} {name}")
        rows = orders.random_order(rng, ranks=RANKS, stages=rng.randrange(RANKS, 2 * RANKS + 1), microbatches=MICROBATCHES)
        asked = ["--from", folder / f"{name}.csv"]
        asked[1].write_text("\n".join(rows) + "\n", encoding="utf-8")
    done = meshwright.execute(["schedule", *asked, *FORMATS[form], "--csv", file])
    assert done.returncode == 0, done.stderr
    return torch_pipeline.Order(str(file), form)


@pytest.fixture(scope="module")
def differences(tmp_path_factory) -> dict:
    """[case] what each rank says, of one set of processes for all of them."""
    folder = tmp_path_factory.mktemp("orders")
    all_orders = [written(*case, folder) for case in CASES]
    multiprocessing.spawn(torch_pipeline.run_rank, (RANKS, MICROBATCHES, all_orders, folder), nprocs=RANKS)
    ranks = [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    return dict(zip(CASES, zip(*ranks, strict=True), strict=True))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_gradients_and_losses_are_those_of_one_process(differences, name, form):
    ranks = differences[name, form]
    assert max(rank["gradient"] for rank in ranks) <= TOLERANCE
    assert max(rank["loss"] for rank in ranks) <= TOLERANCE
    assert sum(rank["losses"] for rank in ranks) == MICROBATCHES


def test_the_kinds_that_are_left_out_have_what_pytorch_lacks():
    listed = meshwright.execute(["schedule", "--help"]).stdout
    others = {line.split()[0] for line in listed.partition("Kinds:\n")[2].splitlines() if line} - set(KINDS)
    assert others == {"pipedream-2bw", "chimera", "chimera-doubling", "chimera-halving", "seq-1f1b", "dualpipe"}

"""What a pipeline's ranks hold under PyTorch's profiles, beside PyTorch's own stages, FSDP2 and autograd on the CPU."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import meshwright

pytest.importorskip("torch", reason="scripts/setup installs torch into build/venv")

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

MODEL = {"model_type": "llama", "vocab_size": 2048, "max_position_embeddings": 4096, "hidden_size": 256,
         "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
RANKS, DP, MICROBATCHES, SEQ_LEN = 4, 2, 8, 256
# Schedule and stages a rank.
KINDS = [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2)]
CASES = [("1f1b", 1), ("1f1b", 3), ("interleaved-1f1b", 2), ("zb-h1", 0), ("zb-h1", 3), ("zb-v", 1)]
# A norm's and an activation's gradients take more in between than is counted: 1 to 6 % of so small a rank.
LEAST, MOST = 0.93, 1.01


def run(arguments: list) -> None:
    done = meshwright.execute(arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    """[case] the most bytes that PyTorch's tensors had."""
    folder = tmp_path_factory.mktemp("stages")
    for kind, chunks in KINDS:
        words = ["--stages", RANKS, "--microbatches", MICROBATCHES, *(["--chunks", chunks] if chunks > 1 else [])]
        run(["schedule", kind, *words, "--csv", folder / f"{kind}.csv"])

    def most(case) -> int:
        kind, rank = case
        of = {"model": MODEL, "microbatches": MICROBATCHES, "seq_len": SEQ_LEN, "dp": DP, "rank": rank,
              "order": str(folder / f"{kind}.csv")}
        done = subprocess.run([sys.executable, "-W", "ignore", Path(__file__).with_name("torch_stages.py"),
                               json.dumps(of)], capture_output=True, text=True, timeout=meshwright.RUN_SECONDS)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    with ThreadPoolExecutor(2) as two:
        return dict(zip(CASES, two.map(most, CASES), strict=True))


@pytest.mark.parametrize(("kind", "rank"), CASES)
def test_a_rank_holds_what_pytorchs_tensors_take(measured, tmp_path, kind, rank):
    model = tmp_path / "model.json"
    model.write_text(json.dumps(MODEL), encoding="utf-8")
    chunks = dict(KINDS)[kind]
    plan = f"pp={RANKS},dp={DP},microbatches={MICROBATCHES},zero=1,schedule={kind},chunks={chunks}"
    done = meshwright.execute(["simulate", "--model", model, "--cluster", "dgx-h100", "--profile", "h100-80gb-torch",
                               "--plan", plan, "--global-batch", DP * MICROBATCHES, "--seq-len", SEQ_LEN, "--json"])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["alive_bytes"][rank] / measured[kind, rank]
    assert LEAST <= told <= MOST

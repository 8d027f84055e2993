"""Steps that were measured on an H100, predicted from its kernels alone (data/measured/README.md)."""

import csv
import json
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)
MEASURED = ROOT / "data/measured"
STEPS = list(csv.DictReader((MEASURED / "h100_steps.csv").open()))


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row['model']}-{row['layers']}-{row['seq_len']}-{row['precision']}")
def test_a_step_and_its_memory(row, tmp_path):
    config = json.loads((ROOT / f"models/{row['model']}.json").read_text())
    config["num_hidden_layers"] = int(row["layers"])
    config["max_position_embeddings"] = max(config["max_position_embeddings"], int(row["seq_len"]))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(config))
    words = ["simulate", "--model", str(model), "--cluster", "dgx-h100", "--profile", row["profile"]]
    words += ["--gpus", row["devices"], "--plan", row["plan"], "--global-batch", row["global_batch"]]
    words += ["--seq-len", row["seq_len"], "--precision", row["precision"], "--advice", "options", "--json"]
    done = subprocess.run([BINARY, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["alive_bytes"][0] / 2**30 == pytest.approx(float(row["allocated_GiB"]), rel=0.02)
    assert result["peak_bytes"][0] / 2**30 == pytest.approx(float(row["reserved_GiB"]), rel=0.05)
    if row["compute_s"]:
        assert result["compute_s"] == pytest.approx(float(row["compute_s"]), rel=0.07)


def test_kernels_fit_the_profiles_constants(tmp_path):
    fitted = tmp_path / "fitted.toml"
    table = MEASURED / "h100_kernels.csv"
    words = ["calibrate", "--kernels", str(table), "--profile", "h100-80gb-torch", "-o", str(fitted)]
    done = subprocess.run([BINARY, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "213 measured kernels: mean error 4." in done.stdout
    own = (ROOT / "clusters/profiles/h100-80gb-torch.toml").read_text()
    compared = 0
    for line in fitted.read_text().splitlines():
        if line.endswith('source = "fit" }'):
            name, value = line.split()[0], float(line.split("value = ")[1].split(",")[0])
            kept = float(own.split(f"\n{name} = {{ value = ")[1].split(",")[0])
            assert value == pytest.approx(kept, rel=0.02), name
            compared += 1
    assert compared == 11

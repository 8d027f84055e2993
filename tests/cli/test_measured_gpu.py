"""Steps that were measured on GPUs, predicted from their kernels alone (data/measured/README.md)."""

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
CLUSTERS = {"h100": "dgx-h100", "h200": "h200"}
STEPS = [
    (device, row)
    for device in CLUSTERS
    for row in csv.DictReader((MEASURED / f"{device}_steps.csv").open())
]


def name(step):
    device, row = step
    return "-".join([device, *(row[k] for k in ("profile", "model", "layers", "seq_len", "plan"))])


@pytest.mark.parametrize("device, row", STEPS, ids=[name(step) for step in STEPS])
def test_a_step_and_its_memory(device, row, tmp_path):
    config = json.loads((ROOT / f"models/{row['model']}.json").read_text())
    config["num_hidden_layers"] = int(row["layers"])
    config["max_position_embeddings"] = max(config["max_position_embeddings"], int(row["seq_len"]))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(config))
    words = ["simulate", "--model", str(model), "--cluster", CLUSTERS[device], "--profile", row["profile"]]
    words += ["--gpus", row["devices"], "--plan", row["plan"], "--global-batch", row["global_batch"]]
    words += ["--seq-len", row["seq_len"], "--precision", row["precision"], "--advice", "options", "--json",
              "--slowdown", "1"]  # no collective ran beside computation
    done = subprocess.run([BINARY, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if row["allocated_GiB"]:
        assert result["alive_bytes"][0] / 2**30 == pytest.approx(float(row["allocated_GiB"]), rel=0.04)
        assert result["peak_bytes"][0] / 2**30 == pytest.approx(float(row["reserved_GiB"]), rel=0.05)
    if row["step_s"]:
        # The fake group's copies run beside computation and are no part of what is predicted.
        step, copies = float(row["step_s"]), float(row["group_s"] or 0)
        assert 0.93 * (step - copies) <= result["compute_s"] <= 1.03 * step


@pytest.mark.parametrize(
    "device, profile, kernels, error, constants",
    [("h100", "h100-80gb-torch", 258, "5.0", 12), ("h200", "h200-141gb-torch", 241, "5.3", 11)],
)
def test_kernels_fit_the_profiles_constants(device, profile, kernels, error, constants, tmp_path):
    fitted = tmp_path / "fitted.toml"
    table = MEASURED / f"{device}_kernels.csv"
    words = ["calibrate", "--kernels", str(table), "--profile", profile, "-o", str(fitted)]
    done = subprocess.run([BINARY, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{kernels} measured kernels: mean error {error} %" in done.stdout
    compiled = (ROOT / f"clusters/profiles/{profile}-compiled.toml").read_text()
    own = (ROOT / f"clusters/profiles/{profile}.toml").read_text()
    compared = 0
    for line in fitted.read_text().splitlines():
        if line.endswith('source = "fit" }'):
            name, value = line.split()[0], float(line.split("value = ")[1].split(",")[0])
            kept = float(own.split(f"\n{name} = {{ value = ")[1].split(",")[0])
            assert value == pytest.approx(kept, rel=0.02), name
            assert own.split(f"\n{name} = ")[1].split("\n")[0] in compiled
            compared += 1
    assert compared == constants

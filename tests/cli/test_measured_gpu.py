"""Steps and passes that were measured on GPUs, predicted from their kernels alone
(data/measured/README.md)."""

import csv
import json
import pathlib
import statistics
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
    told = ("profile", "attention", "model", "layers", "seq_len", "plan")
    return "-".join([device, *(row[k] for k in told)])


def simulated(device, row, layers, words, tmp_path):
    """`simulate` of the row's model with so many layers, nothing slowed by collectives."""
    config = json.loads((ROOT / f"models/{row['model']}.json").read_text())
    config["num_hidden_layers"] = layers
    config["max_position_embeddings"] = max(config["max_position_embeddings"], int(row["seq_len"]))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(config))
    words = ["simulate", "--model", str(model), "--cluster", CLUSTERS[device], *words]
    words += ["--seq-len", row["seq_len"], "--advice", "options", "--json", "--slowdown", "1"]
    done = subprocess.run([BINARY, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("device, row", STEPS, ids=[name(step) for step in STEPS])
def test_a_step_and_its_memory(device, row, tmp_path):
    version = ":cudnn" if row["attention"] == "cudnn" else ""
    words = ["--profile", row["profile"] + version, "--gpus", row["devices"], "--plan", row["plan"]]
    words += ["--global-batch", row["global_batch"], "--precision", row["precision"]]
    result = simulated(device, row, int(row["layers"]), words, tmp_path)
    if row["allocated_GiB"]:
        assert result["alive_bytes"][0] / 2**30 == pytest.approx(float(row["allocated_GiB"]), rel=0.04)
        assert result["peak_bytes"][0] / 2**30 == pytest.approx(float(row["reserved_GiB"]), rel=0.05)
    if row["step_s"]:
        # The fake group's copies run beside computation and are no part of what is predicted.
        step, copies = float(row["step_s"]), float(row["group_s"] or 0)
        assert 0.925 * (step - copies) <= result["compute_s"] <= 1.03 * step


PASSES = list(csv.DictReader((MEASURED / "h100_passes.csv").open()))
MICROBATCHES = 12


@pytest.mark.parametrize("row", PASSES, ids=[f"{row['model']}-{row['seq_len']}" for row in PASSES])
def test_the_passes_of_a_stage_and_what_they_hold(row, tmp_path):
    """The middle one of three stages; a mixture in eager mode takes longer than what is counted."""
    profile = tmp_path / "halves.toml"  # gradients were added up in the weights' format
    own = (ROOT / f"clusters/profiles/{row['profile']}.toml").read_text()
    profile.write_text(own.replace("[[versions]]", "gradient_bytes = 2\n\n[[versions]]", 1))
    trace, layers = tmp_path / "trace.json", 3 * int(row["layers"])
    seconds, held = {}, []
    for schedule in ("1f1b", "zb-h1"):
        plan = f"pp=3,microbatches={MICROBATCHES},schedule={schedule}"
        words = ["--profile", str(profile), "--plan", plan, "--trace", str(trace), "--ignore-memory"]
        words += ["--global-batch", str(MICROBATCHES * int(row["samples"]))]
        simulated("h100", row, layers, words, tmp_path)
        events = json.loads(trace.read_text())["traceEvents"]
        middle = sorted((e for e in events if e["pid"] == 2), key=lambda e: e.get("ts", 0))
        calls = [e for e in middle if e.get("cat") == "compute"]
        for kind in "FBIW":
            times = [e["dur"] / 1e6 for e in calls if e["name"][0] == kind]
            if times:
                seconds.setdefault(kind, statistics.median(times))
        activations = [(e["ts"], e["args"]["activations"]) for e in middle if e["name"] == "memory"]

        def alive(call):
            end = call["ts"] + call["dur"] + 0.5
            return [held for at, held in activations if at <= end][-1] / 2**30

        first = alive(calls[0])
        inputs = [call for call in calls if call["name"][0] == "I"]
        if inputs:
            before = sum(call["ts"] < inputs[0]["ts"] for call in calls)
            held = [first, alive(inputs[0]) - (before - 1) * first]
    mixture = row["model"].startswith(("mixtral", "qwen"))
    for kind, column in zip("FBIW", ("forward_s", "backward_s", "input_s", "weight_s")):
        measured = float(row[column])
        assert measured * (0.8 if mixture else 0.97) <= seconds[kind] <= 1.02 * measured, column
    assert held[0] == pytest.approx(float(row["held_GiB"]), rel=0.025)
    assert held[1] == pytest.approx(float(row["held_to_weights_GiB"]), rel=0.025)


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

"""A simulated step and the executed one: the same ops in the same order, the same bytes."""

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
JOB = "examples/gpt-micro.toml"
ALIASES = ("assemble", "view", "reshape", "copy")  # of the time line; where they move nothing they are not drawn


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ops(path, process, category):
    """(command, op) of the rank's ops of this category, in order; messages are no ops."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X" and e["pid"] == process]
    found = [e for e in events if e.get("cat") == category and "command" in e["args"]]
    found = [e for e in found if "flow_out" not in e["args"] and "flow_in" not in e["args"]]
    found = [e for e in found if e["name"] not in ALIASES]
    found.sort(key=lambda e: (e["args"]["command"], e["ts"]))
    return [(e["args"]["command"], e["name"]) for e in found]


@pytest.mark.parametrize(
    "plan",
    [
        "dp=2,tp=2,pp=2,microbatches=4,sp,zero=1",
        "pp=4,microbatches=4,schedule=zb-h1",
        "dp=4,zero=3,microbatches=2,recompute=full",
    ],
)
def test_a_simulated_step_runs_the_ops_of_the_executed_one_and_sends_its_bytes(plan, tmp_path):
    run("train", JOB, "--plan", plan, "--steps", "2", "--run-dir", str(tmp_path / "run"))
    simulated = json.loads(
        run(
            *("simulate", JOB, "--plan", plan, "--cluster", "this-machine", "--precision", "f32"),
            *("--trace", str(tmp_path / "step.json"), "--ops", "--json"),
        )
    )
    executed = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    steps = {e["pid"]: e["args"]["bytes"] for e in executed if e.get("cat") == "step" and e["name"] == "step"}
    processes = sorted({e["pid"] for e in json.loads((tmp_path / "step.json").read_text())["traceEvents"] if e.get("ph") == "X"})
    assert len(processes) == len(simulated["bytes_sent"])
    for process, sent in zip(processes, simulated["bytes_sent"]):
        assert steps[process] == sent
        for category in ("compute", "comm"):
            assert ops(tmp_path / "run" / "trace.json", process, category) == ops(tmp_path / "step.json", process, category)

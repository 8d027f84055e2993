"""A simulated step and the executed one: the same ops in the same order, the same bytes."""

import json
import pathlib
import random
import subprocess
import sys

import pytest

for _folder in ("peers", "equivalence"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / _folder))
import meshwright  # noqa: E402
import orders  # noqa: E402
import plans  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)
JOB = "examples/gpt-micro.toml"
DRAWN = 40 if meshwright.EVERYTHING else 5  # plans
ALIASES = ("assemble", "view", "reshape", "copy")  # of the time line; where they move nothing they are not drawn


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def streams(path, process, category):
    """By stream: (command, op, bytes) of the rank's ops of this category, in order; messages are no ops."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    found = [e for e in events if e.get("ph") == "X" and e["pid"] == process and e.get("cat") == category]
    found = [e for e in found if "command" in e["args"] and e["name"] not in ALIASES]
    found = [e for e in found if "flow_out" not in e["args"] and "flow_in" not in e["args"]]
    # Simulated ops may take no time.
    found.sort(key=lambda e: (e["args"]["command"], e["ts"], e["ts"] + e["dur"]))
    by_stream = {}
    for e in found:
        by_stream.setdefault(names[process, e["tid"]], []).append((e["args"]["command"], e["name"], e["args"].get("bytes")))
    return by_stream


def is_part(some, everything):
    """Whether `some` are among `everything` in their order."""
    left = iter(everything)
    return all(one in left for one in some)


def drawn(number):
    rng = random.Random(f"{meshwright.SEED} {number}")
    while True:
        plan = plans.short_form(plans.any_plan(rng, layers=4, global_batch=16, tp=[1, 2, 4]))
        done = meshwright.execute(["verify", JOB, "--plan", plan])
        if done.returncode == 0:
            return plan
        assert done.returncode == 2, f"{plan}\n{done.stderr}"


def written(folder):
    """Four stages on two ranks, whose microbatches overtake each other."""
    path = folder / "order.csv"
    rows = orders.random_order(random.Random(meshwright.SEED), ranks=2, stages=4, microbatches=4, ascending=False)
    path.write_text("\n".join(rows), encoding="utf-8")
    return f"dp=2,zero=1,schedule={path}"


CHOSEN = [
    "dp=2,tp=2,pp=2,microbatches=4,sp,zero=1",
    "pp=4,microbatches=4,schedule=zb-h1",
    "dp=4,zero=3,microbatches=2,recompute=full",
    "dp=2,cp=2,zero=1,microbatches=2",
]


@pytest.mark.parametrize("plan", [*CHOSEN, "written", *range(DRAWN)])
def test_a_simulated_step_runs_the_ops_of_the_executed_one_and_sends_its_bytes(plan, tmp_path):
    if isinstance(plan, int):
        plan = drawn(plan)
    elif plan == "written":
        plan = written(tmp_path)
    run("train", JOB, "--plan", plan, "--steps", "2", "--run-dir", str(tmp_path / "run"))
    simulated = json.loads(
        run(
            *("simulate", JOB, "--plan", plan, "--cluster", "this-machine", "--precision", "f32"),
            *("--trace", str(tmp_path / "step.json"), "--ops", "--json", "--ignore-memory"),
        )
    )
    executed = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    steps = {e["pid"]: e["args"]["bytes"] for e in executed if e.get("cat") == "step" and e["name"] == "step"}
    processes = sorted({e["pid"] for e in json.loads((tmp_path / "step.json").read_text())["traceEvents"] if e.get("ph") == "X"})
    assert len(processes) == len(simulated["bytes_sent"])
    for process, sent in zip(processes, simulated["bytes_sent"]):
        assert steps[process] == sent, plan
        for category in ("compute", "comm"):
            ran = streams(tmp_path / "run" / "trace.json", process, category)
            told = streams(tmp_path / "step.json", process, category)
            assert sorted(op for stream in ran.values() for op in stream) == sorted(op for stream in told.values() for op in stream), plan
            # A stream of a run may carry several groups' collectives; a simulated one is a group's.
            for name, stream in told.items():
                assert any(is_part(stream, other) for other in ran.values()), f"{plan}: rank {process}, {name}"

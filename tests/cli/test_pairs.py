"""Steps whose schedule lays a forward and a backward together, and stacks and clusters that lack what others have."""

import json

import pytest
from test_plan import ROOT, run
from test_simulate import simulated

COMMON = "--cluster dgx-h100 --seq-len 4096 --ignore-memory --advice none --json"
# Exchanges inside a node, hardly worth the wait for both inputs, and between nodes.
MIXTURES = {"mixtral-8x7b": "--profile none --global-batch 128 --plan dp=8,pp=4,ep=8,microbatches=16,zero=1",
            "deepseek-v3": "--global-batch 4096 --plan dp=128,pp=16,ep=64,microbatches=32,zero=1,recompute=full"}


@pytest.mark.parametrize("kind", ["dualpipe", "dualpipe-v"])
@pytest.mark.parametrize("model", MIXTURES)
def test_pairs_are_never_longer_and_their_messages_follow_each_other(model, kind, tmp_path):
    trace = tmp_path / "step.json"
    steps = {}
    for word in ("pairs", "no-pairs"):
        of = json.loads(simulated(f"--model {model} {COMMON} {MIXTURES[model]},schedule={kind} --overlap {word} --trace {trace}"))
        steps[word] = of["step_s"]
        spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        assert len(spans) > 300
        assert min(e["dur"] for e in spans) >= 0
    assert steps["pairs"] <= steps["no-pairs"]
    if model == "deepseek-v3":
        assert steps["pairs"] < 0.95 * steps["no-pairs"]


def test_slices_of_a_sequence_have_the_programs_memory_under_every_profile():
    plan = "--plan pp=2,schedule=seq-1f1b,microbatches=4,recompute=selective-op --global-batch 8 --seq-len 2048 --ignore-memory --json --advice none"
    assert json.loads(simulated(f"--model llama3-8b --cluster dgx-h100 --profile h100-80gb-torch {plan}"))["step_s"] > 0


def test_one_device_without_links_is_told_that_a_model_does_not_fit(tmp_path):
    text = (ROOT / "clusters/dgx-h100.toml").read_text()
    (tmp_path / "one.toml").write_text(text[:text.index("[[link]]")])
    ran = run(f"plan --model gpt-22b --cluster {tmp_path / 'one.toml'} --profile none --gpus 1 --global-batch 8")
    assert ran.returncode == 2
    assert "does not fit" in ran.stderr

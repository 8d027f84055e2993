"""`meshwright simulate --goodput`: what failures cost, and the options that say how often and how long."""

import json
import re

import pytest
from test_simulate import JOB, PLAN, simulated


def test_goodput_of_llama_3():
    text = simulated("--model llama3-405b --cluster dgx-h100 --global-batch 16 --seq-len 1024 --ignore-memory "
                     "--plan tp=8,pp=2,microbatches=16 --goodput --json --advice none")
    goodput = json.loads(text)["goodput"]
    assert goodput["device_mtbf_h"] == pytest.approx(54 * 24 * 16384 / 419)
    assert goodput["job_mtbf_h"] == pytest.approx(54 * 24 * 16384 / 419 / 16)
    assert goodput["checkpoint_s"] == pytest.approx(405.85e9 * 12 / 2e12, rel=1e-3)
    assert goodput["restart_s"] == 600
    assert goodput["goodput"] == goodput["best_goodput"] > 0.99
    assert goodput["interval_s"] == goodput["best_interval_s"] == goodput["interval_steps"] * json.loads(text)["step_s"]
    assert goodput["tokens_per_s"] == goodput["best_tokens_per_s"] == json.loads(text)["tokens_per_s"] * goodput["goodput"]
    assert sum(goodput[key] for key in ("goodput", "checkpoints", "lost_work", "restarts")) == pytest.approx(1)


def test_goodput_with_figures_of_ones_own():
    common = f"{JOB} --cluster selene --plan {PLAN} --mtbf 1000 --checkpoint-time 30 --restart-time 300"
    text = simulated(f"{common} --checkpoint-interval 3600")
    assert "a device every 1000 h, so one of 8 every 5.2 days; a checkpoint takes 30.0 s, a restart 5 min 00 s" in text
    assert re.search(r"goodput 98\.\d\d % with a checkpoint every 1 h 00 min, \d+ steps, [\d.]+ [kMG]? ?tokens/s; the best interval is 1 h 26 min: 98", text)
    assert "(the best one)" in simulated(common)
    assert ": the job makes no progress, its devices fail too often" in simulated(f"{common} --mtbf 0.001".replace("--mtbf 1000 ", ""))
    two = f"{common} --checkpoint-interval 1 --compare dp=8,microbatches=1 --advice none"
    first = json.loads(simulated(f"{two} --json"))
    goodputs = [one["goodput"]["goodput"] for one in (first, *first["compared"])]
    text = simulated(two)
    table = text[text.index("compared"):].splitlines()
    assert table[0].split()[:3] == ["compared", "goodput", "step"]
    assert [line.split()[1] for line in table[1:]] == [f"{100 * goodput:.2f}" for goodput in goodputs]


@pytest.mark.parametrize("option", ["--mtbf 50677", "--checkpoint-interval auto", "--checkpoint-time 1", "--restart-time 0"])
def test_each_figure_of_failures_asks_for_the_goodput(option):
    goodput = json.loads(simulated(f"{JOB} --cluster selene --plan dp=2 --advice none --json {option}"))["goodput"]
    assert goodput["interval_s"] == goodput["best_interval_s"]
    assert goodput["restart_s"] == (0 if "restart" in option else 600)

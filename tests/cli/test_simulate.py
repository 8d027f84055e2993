"""`meshwright simulate`: the numbers that it prints, its files and its errors."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)
JOB = "examples/gpt-micro.toml"
PLAN = "dp=2,tp=2,pp=2,microbatches=4,sp,zero=1"


def call(arguments):
    return subprocess.run([BINARY, "simulate", *arguments.split()], cwd=ROOT, capture_output=True, text=True)


def simulated(arguments):
    done = call(arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_has_every_number():
    result = json.loads(simulated(f"{JOB} --cluster selene --plan {PLAN} --json"))
    for key in ("step_s", "tokens_per_s", "tflops_per_gpu", "mfu", "hfu", "bubble"):
        assert result[key] > 0
    assert set(result["exposed_comm_s"]) >= {"dp", "tp"}
    assert len(result["peak_bytes"]) == 2
    assert result["tokens_per_s"] == pytest.approx(16 * 64 / result["step_s"])
    assert result["mfu"] == pytest.approx(result["tflops_per_gpu"] / result["peak_tflops"])
    assert result["hfu"] >= result["mfu"] * 0.8


@pytest.mark.parametrize("cluster", sorted(p.stem for p in (ROOT / "clusters").glob("*.toml")))
def test_every_cluster_file_is_read(cluster):
    assert json.loads(simulated(f"{JOB} --cluster {cluster} --plan pp=2,microbatches=4 --json"))["step_s"] > 0


def test_text_names_the_peak_and_the_longest_wait():
    text = simulated(f"{JOB} --cluster selene --plan {PLAN} --precision f32")
    assert "of 19.5 TFLOP/s dense f32" in text
    assert re.search(r"pipeline rank \d waits \S+ \S+ for the input of [FB] of stage \d, microbatch \d from rank \d", text)


def test_the_bytes_are_those_that_verify_proves():
    verified = subprocess.run([BINARY, "verify", JOB, "--plan", PLAN], cwd=ROOT, capture_output=True, text=True)
    assert verified.returncode == 0
    result = json.loads(simulated(f"{JOB} --cluster selene --plan {PLAN} --precision f32 --json"))
    proved = [int(n) for n in re.findall(r"(\d+) instructions", verified.stdout)]
    assert result["instructions"] == proved


def test_the_largest_model_of_the_literature_takes_seconds():
    result = json.loads(simulated("--model gpt-1t --cluster selene --gpus 3072 --global-batch 384 --json "
                                  "--plan tp=8,pp=64,dp=6,microbatches=64,recompute=full"))
    assert 1.00e12 < result["parameters"] < 1.02e12
    assert 0.45 < result["bubble"] < 0.60  # 63 / (64 + 63) = 0.496 and waits for messages
    assert result["fits"]


def test_trace_opens_as_chrome_events(tmp_path):
    simulated(f"{JOB} --cluster selene --plan {PLAN} --trace {tmp_path}/t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} >= {"M", "X", "C", "s", "f"}
    simulated(f"{JOB} --cluster selene --plan {PLAN} --trace {tmp_path}/ops.json --ops")
    names = {e["name"] for e in json.loads((tmp_path / "ops.json").read_text())["traceEvents"]}
    assert {"dot", "attention", "all_gather"} <= names


@pytest.mark.parametrize("arguments, message", [
    ("", "--plan: is missing; give a plan such as tp=8,pp=8,dp=16\n"
         "--model: is missing; give a name or a config.json\n"
         "--global-batch: is missing; give the sequences of a step"),
    (f"{JOB}", "--cluster: is missing; give a cluster of clusters/ such as selene, or x.toml"),
    (f"{JOB} --cluster selena", "--cluster: there is no cluster 'selena', did you mean 'selene'?"),
    ("--model gpt3-175 --plan tp=8 --global-batch 8 --cluster selene",
     "--model: there is no model 'gpt3-175', did you mean 'gpt3-175b'?"),
    (f"{JOB} --cluster selene --plan dp=2,pp=2,microbatches=2 --gpus 8 --overlap grad_redcue",
     "--overlap: unknown word 'grad_redcue', did you mean 'grad_reduce'?; known are messages, no-messages, "
     "collectives, grad_reduce, param_gather, none\n"
     "--gpus: is 8, but the plan has dp*tp*pp=2*1*2=4 ranks; use dp=4"),
    (f"{JOB} --cluster selene --plan pp=2,microbatches=4 --trace nowhere/t.json", "nowhere/t.json: "),
    ("--model gpt3-175b --cluster selene --global-batch 8 --plan tp=8,microbatches=8 --seq-len 128",
     "memory: pipeline rank 0 needs "),
])
def test_errors_say_what_would_be_right(arguments, message):
    done = call(arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_help_explains_every_option():
    lines = simulated("--help").splitlines()
    known = set(re.findall(r"--[a-z0-9-]+", " ".join(line[:28] for line in lines))) - {"--help", "--help-all"}
    assert known == {"--model", "--cluster", "--plan", "--gpus", "--global-batch", "--seq-len", "--precision",
                     "--overlap", "--slowdown", "--scatter-gather", "--tf32", "--trace", "--ops", "--ignore-memory",
                     "--json"}

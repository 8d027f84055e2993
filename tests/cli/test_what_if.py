"""`meshwright what-if`: a table over figures of the cluster and keys of the plan."""

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

BASE = "examples/gpt-micro.toml --cluster selene --precision f32 --plan dp=2,tp=2,pp=2,microbatches=4"


def call(command, arguments):
    return subprocess.run([str(meshwright.BINARY), command, *arguments.split()], cwd=meshwright.ROOT, capture_output=True,
                          text=True)


def rows_of(arguments):
    done = call("what-if", f"{arguments} --json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_row_is_what_simulate_says_of_the_changed_plan():
    result = rows_of(f"{BASE} --vary link_bandwidth=0.5,1,2 --vary microbatches=2,4")
    assert [row["values"] for row in result["rows"]] == [
        {"link_bandwidth": b, "microbatches": m} for b in (0.5, 1, 2) for m in (2, 4)]
    simulated = json.loads(call("simulate", f"{BASE} --json --advice none").stdout)
    assert result["rows"][3]["step_s"] == result["base"]["step_s"] == simulated["step_s"]
    other = json.loads(call("simulate", f"{BASE.replace('microbatches=4', 'microbatches=2')} --json --advice none").stdout)
    assert result["rows"][2]["step_s"] == other["step_s"]
    steps = [row["step_s"] for row in result["rows"]]
    assert steps[0] > steps[2] > steps[4]
    assert result["rows"][5]["speedup"] == pytest.approx(simulated["step_s"] / steps[5])


def test_the_table_has_a_line_a_combination_and_reasons():
    done = call("what-if", f"{BASE} --vary microbatches=3,8 --vary memory_size=1,0.00001")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["microbatches", "memory_size", "step", "change", "tokens/s", "MFU", "bubble", "exposed", "memory"]
    assert len(lines) == 7 and "as it is" in lines[1] and "+- 8 %" in lines[1]
    assert lines[6].startswith("outside of what the profile 'megatron' was measured on: hidden 64")
    assert "global_batch=16 is not divisible by dp*microbatches=2*3=6" in lines[2]
    assert re.search(r"8 +1 .*[+-]\d+\.\d %", lines[4])
    assert lines[5].endswith("does not fit")


@pytest.mark.parametrize("arguments, messages", [
    (BASE, ["--vary: is missing; give KEY=VALUE,VALUE… such as link_bandwidth=0.5,1,2"]),
    (f"{BASE} --vary link_bandwith=2 --vary matrix_peak=-1 --vary microbatches=0 --vary zero=9",
     ["--vary: unknown key 'link_bandwith', did you mean 'link_bandwidth'?",
      "--vary matrix_peak: must be a factor above 0 such as 0.5, is '-1'",
      "--vary microbatches: must be a whole number from 1 on, is '0'", "zero: must be"]),
    (f"{BASE.replace('selene', 'selena')} --vary dp --vary =2",
     ["--vary: must be KEY=VALUE,VALUE… such as link_bandwidth=0.5,1,2, is 'dp'", "is '=2'",
      "there is no cluster 'selena', did you mean 'selene'?"]),
    (f"{BASE} --vary regather=true,maybe --vary post_validation=x --vary memory_limit=x --vary costs=1:x --vary layers=a:8 --vary order=pp-dp",
     ["regather: must be true or false", "post_validation: must be true or false", "memory_limit: must be a number of at least 0",
      "costs[1]: must be a number", "layers[0]: must be an integer", "order: must name pp, dp and tp once each, is pp-dp"]),
    (f"{BASE} --vary link_bandwidth.nvlnk=2", ["unknown key 'link_bandwidth.nvlnk', did you mean 'link_bandwidth.nvlink'?"]),
])
def test_errors_are_told_together(arguments, messages):
    done = call("what-if", arguments)
    assert done.returncode == 2
    for message in messages:
        assert message in done.stderr


def test_help_explains_every_option():
    lines = call("what-if", "--help").stdout.splitlines()
    known = set(re.findall(r"--[a-z0-9-]+", " ".join(line[:28] for line in lines))) - {"--help", "--help-all"}
    assert known == {"--model", "--cluster", "--profile", "--plan", "--gpus", "--global-batch", "--seq-len", "--precision", "--overlap",
                     "--slowdown", "--scatter-gather", "--no-scatter-gather", "--tf32", "--vary", "--json"}


def test_with_gpus_the_devices_stay_and_without_they_are_told():
    step = "--model gpt-1.7b --cluster selene --plan tp=2,microbatches=4 --global-batch 32 --vary pp=1,2,3"
    rows = rows_of(f"{step} --gpus 16")["rows"]
    assert [row.get("devices") for row in rows] == [16, 16, None]
    assert [row["values"] for row in rows] == [{"pp": 1}, {"pp": 2}, {"pp": 3}]
    assert "--gpus: is 16, no multiple of the 6 devices of a replica" in rows[2]["reason"]
    table = call("what-if", step).stdout.splitlines()
    assert table[0].split()[:3] == ["pp", "devices", "step"] and table[3].split()[:2] == ["2", "4"]


def test_every_key_of_a_plan_can_be_varied():
    step = "--model mixtral-8x7b --cluster selene --plan tp=4,dp=8,sp,microbatches=4 --global-batch 32"
    rows = rows_of(f"{step} --vary ep=1,8")["rows"]
    assert rows[0]["plan"] != rows[1]["plan"] and "ep=8" in rows[1]["plan"]
    costs = "--model gpt-1.7b --cluster selene --plan pp=4,microbatches=8,schedule=zb-auto --global-batch 8"
    assert "costs=1:2:1" in rows_of(f"{costs} --vary costs=1:2:1")["rows"][0]["plan"]


def test_where_no_row_can_be_simulated_the_reasons_are_the_error():
    done = call("what-if", f"{BASE} --vary microbatches=3,5 --json")
    assert done.returncode == 2 and done.stdout == ""
    assert [line.removeprefix("meshwright: ").split(":")[0] for line in done.stderr.splitlines()] == [
        "--vary microbatches=3", "--vary microbatches=5"]


def test_small_shares_of_the_peak_have_their_digits():
    line = call("what-if", f"{BASE} --vary microbatches=4").stdout.splitlines()[2]
    assert re.search(r" 0\.0*[1-9]\d? % ", line), line


def test_a_plan_file_is_varied_as_its_short_form_is(tmp_path):
    """What follows from `zero` in the short form follows it in the file that `plan -o` writes."""
    step = "--model gpt-1.7b --cluster dgx-h100 --global-batch 64"
    file = tmp_path / "plan.json"
    done = call("plan", f"{step} --gpus 8 --only zero=1 --only tp=2 -o {file}")
    assert done.returncode == 0, done.stderr
    short = json.loads(call("simulate", f"{file} --json --advice none").stdout)["plan"]
    assert short["zero"] == 1 and "grad_reduce" not in short
    written = rows_of(f"{file} --vary zero=0,1,2,3")
    by_hand = rows_of(f"{step} --plan {written['base']['plan']} --vary zero=0,1,2,3")
    assert written["rows"] == by_hand["rows"]
    needed = [row["memory_needed_bytes"] for row in written["rows"]]
    assert needed[0] > needed[1] > needed[2] > needed[3]


def test_the_plans_own_schedule_is_its_own_row_and_others_say_what_follows():
    plan = "tp=8,pp=8,microbatches=32,schedule=interleaved-1f1b,chunks=4,group=16"
    result = rows_of(f"--model gpt3-175b --cluster selene --global-batch 32 --plan {plan} "
                     "--vary schedule=interleaved-1f1b,looped-bfs,1f1b,zb-v")
    own, looped, flat, wave = result["rows"]
    assert own["step_s"] == result["base"]["step_s"] and "follows" not in own
    assert looped["follows"] == "without group" and "chunks=4" in looped["plan"]
    assert flat["follows"] == "with chunks=1, without group"
    assert wave["follows"] == "with chunks=2, without group"
    text = call("what-if", f"--model gpt3-175b --cluster selene --global-batch 32 --plan {plan} --vary schedule=1f1b").stdout
    assert "with chunks=1, without group" in text

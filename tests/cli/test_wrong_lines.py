"""What is wrong with a command line is told at once: words that the parser does not take, files, plans and their sizes."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)


def refused(line):
    """The findings of a line that is refused, without the hint at their end."""
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, (line, done.stdout, done.stderr)
    assert not done.stdout
    *findings, hint = done.stderr.removeprefix("meshwright: ").splitlines()
    assert hint == f"(meshwright {line.split()[0]} --help explains all)"
    return findings


# What --help shows as one word takes one; what follows is the job or the plan.
@pytest.mark.parametrize("line, findings", [
    ("simulate --model gpt-7.5b --cluster selene --global-batch 64 --plan tp=8,microbatches=64 --compare tp=4,pp=2 pp=8",
     ["--plan: there are two plans, pp=8 and tp=8,microbatches=64; give one, or for another --compare write --compare pp=8"]),
    ("simulate examples/gpt-micro.toml --cluster selene --compare dp=1 dp=2",
     ["'dp=2' is one argument too many; for another --compare write --compare dp=2"]),
    ("what-if examples/gpt-micro.toml --cluster selene --vary dp=1 tp=2",
     ["'tp=2' is one argument too many; for another --vary write --vary tp=2"]),
    ("simulate examples/gpt-micro.toml --cluster selene dp=2", ["'dp=2' is one argument too many"]),
])
def test_a_second_word_of_an_option_that_takes_one_is_told_with_the_option(line, findings):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.removeprefix("meshwright: ").splitlines()[:len(findings)] == findings


@pytest.mark.parametrize("line", [
    "simulate --overlap collectives examples/gpt-micro.toml --cluster selene --plan dp=2",
    "simulate --slowdown 1.2 examples/gpt-micro.toml --cluster selene --plan dp=2",
    "what-if --vary dp=1,2 examples/gpt-micro.toml --cluster selene",
    "schedule --stages 2 --microbatches 2 --compare 1f1b gpipe",
])
def test_an_option_of_one_word_leaves_the_next_to_the_job(line):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ["simulate --gpus --help", "plan --help --gpus", "schedule 1f1b --stages --help"])
def test_help_behind_a_missing_value_is_no_finding(line):
    assert [finding.split(":")[0] for finding in refused(line)] == ["--stages" if "--stages" in line else "--gpus"]


def test_help_says_several_words_only_where_there_may_be():
    words = {command: [line.split()[0] for line in subprocess.run([BINARY, command, "--help"], capture_output=True, text=True)
                       .stdout.splitlines() if " TEXT ... " in line] for command in ("simulate", "what-if", "calibrate", "schedule")}
    assert words == {"simulate": [], "what-if": [], "calibrate": ["runs"], "schedule": ["--compare"]}


@pytest.mark.parametrize("line, findings", [
    # A wrong value, an unknown option and what is wrong with the plan, the cluster and a path.
    ("plan --model gpt-7.5b --cluster selena --gpus 64 --global-batch x --top 0 --topp 3 -o nowhere/p.json",
     ["--global-batch: must be a whole number, is 'x'", "--top: must be at least 1, is 0",
      "--topp: unknown option, did you mean '--top'?",
      "there is no cluster 'selena', did you mean 'selene'?", "nowhere/p.json: "]),
    ("simulate --model gpt-7.5b --cluster selene --plan tp=8,pp=2,microbatches=3 --gpus 1.5 --global-batch 64 --trace no/t.json "
     "--precision bf17 --mtbf -1",
     ["--gpus: must be a whole number, is '1.5'", "--precision: must be one of ",
      "plan: global_batch=64 is not divisible by dp*microbatches=1*3", "--mtbf: must be above 0 hours, is '-1'",
      "no/t.json: "]),
    ("what-if --model gpt-7.5b --cluster selene --plan tp=8 --gpus 8 --global-batch 0 --vary link_bandwith=2",
     ["--global-batch: must be at least 1, is 0"]),
    ("what-if --model gpt-7.5b --cluster selene --plan tp=8 --gpus 8 --global-batch 8 --seq-len 0 --vary link_bandwith=2",
     ["--seq-len: must be at least 1, is 0", "--vary: unknown key 'link_bandwith', did you mean 'link_bandwidth'?"]),
    ("schedule foo --stages 0 --microbatches 8 --costs f=-1,g=2,b=1,b=2 --sync soon",
     ["--stages: must be at least 1, is 0", "--sync: must be one of end, eager, eager-opt, is 'soon'",
      "schedule 'foo' is unknown", "--costs: b is there twice", "--costs: 'g=2' is not of the form key=number", "costs: f=-1 must be"]),
    ("schedule foo --stages 4 --microbatches 8 --chunks 0 --costs f=-1 --memory mb=-1 --memory-limit 0 --csv no/s.csv",
     ["--chunks: must be at least 1, is 0", "--memory-limit: must be above 0, is 0", "schedule 'foo' is unknown",
      "costs: f=-1 must be", "memory: mb=-1 must be", "no/s.csv: "]),
    ("validate --threads 0 --summary --orderings --ablate --runs nowhere.csv",
     ["--threads: must be at least 1, is 0", "--ablate: is of errors, and --orderings prints pairs of rows; leave one out",
      "--summary: is of errors, and --orderings prints pairs of rows; leave one out", "nowhere.csv"]),
    ("calibrate --split-at -1 --kernels nowhere.csv --cluster selene",
     ["--split-at: must be above 0, is -1", "nowhere.csv"]),
    ("calibrate --iterations x --profile a100-80gb-megatron --cluster dgx-h100 --kernels data/published/collectives.csv",
     ["--iterations: must be a whole number, is 'x'",
      "--cluster: DGX H100 is of H100-SXM-80GB, and clusters/profiles/a100-80gb-megatron.toml of A100-SXM-80GB"]),
    ("train nowhere.toml --steps 0", ["--steps: must be at least 1, is 0", "nowhere.toml"]),
    ("verify nowhere.toml --seed x", ["--seed: must be a whole number, is 'x'", "nowhere.toml"]),
    ("schedule chimera --stages 3 --microbatches 0 --compare dualpipe --bogus 1",
     ["--microbatches: must be at least 1, is 0", "--bogus: unknown option", "schedule chimera: ranks=3 must be even",
      "schedule dualpipe: ranks=3 must be even"]),
    # An option without its value, at the end and before another one.
    ("simulate --model nope --cluster selena --plan tp=8 --global-batch x --gpus",
     ["--gpus: a value is missing", "--global-batch: must be a whole number, is 'x'", "there is no cluster 'selena'", "there is no model 'nope'"]),
    ("plan --gpus --model gpt-7.5b --cluster selena --topp 3 --global-batch",
     ["--gpus: a value is missing", "--global-batch: a value is missing", "--topp: unknown option", "there is no cluster 'selena'"]),
    ("inspect graf nowhere.toml --rank -1", ["--rank: must be at least 0, is -1", "what: must be one of graph, fragments, program, memory, is 'graf'",
                                             "nowhere.toml"]),
    ("train --steps 0 --plan dp=2,foo=1", ["--steps: must be at least 1, is 0", "job: is missing; give a TOML file", "--plan: foo: unknown key"]),
    ("inspect graph nowhere.toml --rank -1", ["--rank: must be at least 0, is -1", "nowhere.toml"]),
    # What stands behind "--" is no option.
    ("train --steps 0 -- -nowhere.toml", ["--steps: must be at least 1, is 0", "-nowhere.toml: does not exist"]),
    ("inspect graf -- -nowhere.toml --rank", ["'--rank' is one argument too many", "what: must be one of graph, ", "-nowhere.toml: does not exist"]),
    ("generate nowhere --prompt a --tokens 0", ["--tokens: must be at least 1, is 0", "nowhere"]),
    ("profile --batch 0 --model nowhere.json -o no/p.toml",
     ["--batch: must be at least 1, is 0", "nowhere.json", "no/p.toml"]),
    ("plan --model gpt-7.5b --cluster selene --gpus 8 --global-batch 8 --scatter-gather --no-scatter-gather -o no/p.json",
     ["--scatter-gather excludes --no-scatter-gather", "no/p.json"]),
])
def test_wrong_words_come_with_what_else_is_wrong(line, findings):
    told = refused(line)
    for finding in findings:
        assert any(finding in one for one in told), (finding, told)
    options = [one.split(":")[0] for one in told if one.startswith("--") and ": is missing" in one]
    assert not options, told  # an option that is there is not missing
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("line, findings", [
    # A variation whose key is a level's, of a cluster that is not known.
    ("what-if --model gpt-7.5b --cluster selena --plan tp=8 --global-batch 8 --overlap x --vary link_bandwidth.nvlink=2 --vary dp=0",
     ["there is no cluster 'selena'", "--overlap: unknown word 'x'", "--vary dp: must be a whole number from 1 on, is '0'"]),
    *((f"{command} examples/gpt-micro.toml --model nope --plan dpp=2 --data nowhere.txt",
       ["--model: there is no model 'nope'", "--plan: dpp: unknown key, did you mean 'dp'?", "nowhere.txt: "])
      for command in ("verify", "train", "inspect memory")),
    ("simulate examples/gpt-micro.toml --cluster selene --plan dp=2,tp=2,pp=4,microbatches=8 --gpus 17",
     ["--gpus: is 17, no multiple of the plan's tp*pp=2*4=8; use dp*tp*pp=2*2*4=16"]),
])
def test_what_is_wrong_of_sound_words_is_told_at_once(line, findings):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    told = done.stderr.removeprefix("meshwright: ").splitlines()
    assert done.returncode == 2 and len(told) == len(findings), done.stderr
    assert all(finding in one for finding, one in zip(findings, told)), told


def test_several_wrong_values_of_one_option_are_told_each():
    told = refused("simulate --gpus 0 --gpus x --model gpt-7.5b --plan tp=8 --global-batch 8")
    assert told == ["--gpus: is there 2 times; give it once", "--gpus: must be at least 1, is 0",
                    "--gpus: must be a whole number, is 'x'",
                    "--cluster: is missing; give a cluster of clusters/ such as selene, or x.toml"]


def test_a_value_that_is_missing_or_too_much_is_told():
    told = refused("plan --model gpt-7.5b --gpus")
    assert told[0] == "--gpus: a value is missing" and [one.split(":")[0] for one in told[1:]] == ["--cluster", "--global-batch"]
    told = refused("plan --model gpt-7.5b --gpus 8 --global-batch 8 --json=maybe")
    assert told[0] == "--json: takes no value, is 'maybe'" and told[1].startswith("--cluster: is missing")


@pytest.mark.parametrize("line, told", [
    ("data build a.txt --bogus=3 -z", "--bogus: unknown option\n-z: unknown option\n"
                                      "--output: is missing; give a PREFIX of PREFIX.bin and PREFIX.idx\n(meshwright data build"),
    ("checkpoint info a b", "'b' is one argument too many\n(meshwright checkpoint info"),
    ("plan --topp=3", "--topp: unknown option, did you mean '--top'?\n{any}\n(meshwright plan")])
def test_the_words_and_the_help_are_those_of_the_innermost_subcommand(line, told):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    begin, _, end = f"meshwright: {told} --help explains all)\n".partition("{any}")
    assert done.returncode == 2 and done.stderr.startswith(begin) and done.stderr.endswith(end), done.stderr


def test_names_that_are_known_are_told_once():
    told = refused("plan --model gpt-nano --gpus x")
    names = next(one for one in told if one.startswith("--model")).split("known are ")[1].split("; ")[0].split(", ")
    assert "gpt-micro" in names and names == sorted(set(names))


def test_the_value_of_an_unknown_option_is_no_plan():
    assert refused("simulate --modle gpt-7.5b --cluster selene --plan tp=8 --global-batch 8") == [
        "--modle: unknown option, did you mean '--model'?", "--model: is missing; give a name or a config.json"]
    assert refused("train --bogus 3 nowhere.toml --steps 0")[:2] == ["--steps: must be at least 1, is 0", "--bogus: unknown option"]


def test_what_is_missing_is_all_that_is_told():
    done = subprocess.run([BINARY, "plan"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.removeprefix("meshwright: ").splitlines()] == [
        "--model", "--cluster", "--gpus", "--global-batch"]


def test_an_unknown_key_hides_what_it_was_meant_for_alone():
    told = subprocess.run([BINARY, *"simulate --model gpt-7.5b --cluster selene --plan tp=4,pp=3,zz=1,microbatches=4 --gpus 100 "
                           "--global-batch 64".split()], cwd=ROOT, capture_output=True, text=True).stderr
    assert "--plan: zz: unknown key" in told
    assert "--gpus: is 100, no multiple of the plan's tp*pp=4*3=12; use 96 or 108" in told


@pytest.mark.parametrize("line, finding", [
    ("validate --json --summary --ablate", "--json: prints one list, of --summary or of --ablate; leave one out"),
    ("calibrate --kernels data/published/collectives.csv --cluster selene --split-at 10",
     "--split-at: divides runs, and there are none; leave it out"),
    ("calibrate data/published/runs.csv --profile a100-80gb-megatron:2021",
     "--profile: 'a100-80gb-megatron:2021' is a version; a profile is fitted, its versions take over what they do not say; use a100-80gb-megatron"),
    ("plan --gpus 9999 --cluster piz-daint --model gpt-7.5b --global-batch 7", "--gpus: is 9999, but "),
])
def test_options_that_would_be_dropped_are_refused(line, finding):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert finding in done.stderr
    assert "8064" not in done.stderr  # more than the cluster has


@pytest.mark.parametrize("line, findings", [
    ("inspect", ["what: is missing; give graph, fragments, program or memory", "job: is missing; give a TOML file such as examples/gpt-tiny.toml"]),
    ("inspect graf nope.toml --plan tpp=2", ["what: must be one of graph, fragments, program, memory, is 'graf'", "nope.toml: does not exist",
                                             "--plan: tpp: unknown key, did you mean 'tp'?"]),
    ("verify nope.toml --plan dp=0 --model nope.json", ["nope.toml: does not exist", "nope.json: does not exist",
                                                        "--plan: dp: must be an integer of at least 1, is 0"]),
    ("data build", ["file: is missing; give a text", "--output: is missing; give a PREFIX of PREFIX.bin and PREFIX.idx"]),
    ("data info", ["prefix: is missing; give the PREFIX of PREFIX.bin and PREFIX.idx"]),
    ("generate", ["run: is missing; give a run folder", "--prompt: is missing; give a text to continue"]),
    ("checkpoint info", ["run: is missing; give a run folder"]),
])
def test_words_that_are_missing_do_not_hide_other_findings(line, findings):
    done = subprocess.run([BINARY, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "meshwright: " + "\n".join(findings) + "\n"


def test_a_schedule_that_cannot_run_is_told_with_what_else_is_wrong():
    told = subprocess.run([BINARY, *"verify examples/gpt-tiny.toml --plan schedule=pipedream-2bw,pp=2,dp=3".split()], cwd=ROOT,
                          capture_output=True, text=True).stderr.splitlines()
    assert len(told) == 3
    assert "microbatches=1 must be at least ranks=2" in told[0] and "but not run" in told[1] and "global_batch=16 is not divisible" in told[2]


def test_a_replica_without_a_microbatch_is_told_with_what_else_is_wrong():
    told = subprocess.run([BINARY, *"verify examples/gpt-tiny.toml --plan schedule=chimera,pp=2,microbatches=1,dp=3".split()], cwd=ROOT,
                          capture_output=True, text=True).stderr.splitlines()
    assert len(told) == 2
    assert "replica 1 of the stages has none of the 1 microbatches" in told[0] and "global_batch=16 is not divisible" in told[1]


@pytest.mark.parametrize("plan", ["[" * 190 + "]" * 190, '{"' + "a" * 900 + '": 1}', "schedule=" + "a" * 900, "layers=" + "a" * 900])
def test_a_long_odd_plan_is_not_told_whole(plan):
    done = subprocess.run([BINARY, "simulate", "--model", "gpt-7.5b", "--cluster", "selene", "--global-batch", "8", "--plan", plan],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "…" in done.stderr and len(max(done.stderr.splitlines(), key=len)) < 400, done.stderr


SIMULATE = "simulate --model gpt-tiny --cluster selene --plan dp=2 --global-batch 4"


@pytest.mark.parametrize("line, finding", [
    (SIMULATE + " --trace {0}/x --report {0}/../{1}/x", "--report: {0}/../{1}/x is what --trace writes, too; write another file"),
    ("schedule 1f1b --stages 2 --microbatches 2 --csv {0}/x --svg {0}/x", "--svg: {0}/x is what --csv writes, too"),
    ("schedule --from {0}/s.csv --csv {0}/s.csv --exact", "--csv: {0}/s.csv is read by the command, and would be lost"),
    ("simulate {0}/p.json --cluster selene --model gpt-tiny --global-batch 0 --report {0}/p.json", "--report: {0}/p.json is read"),
    ("simulate {0}/j.toml --cluster selene --report {0}/c.json", "--report: {0}/c.json is read"),  # the job's model
    ("simulate {0}/p.json --report {0}/c.json", "--report: {0}/c.json is read"),  # the plan file's model
    ("simulate --model {0}/c.json --cluster {0}/x.toml --compare {0}/p.json --trace {0}/p.json", "--trace: {0}/p.json is read"),
    ("plan --model {0}/c.json --cluster {0}/x.toml -o {0}/link", "--output: {0}/link is read"),
    ("plan --model {0}/c.json --profile {0}/x.toml -o {0}/x.toml", "--output: {0}/x.toml is read"),
    ("plan --cluster {0}/x.toml -o {0}/hard", "--output: {0}/hard is read"),
    ("plan --cluster {0}/x.toml -o {0}/x.toml", "--output: {0}/x.toml is read"),
    ("profile --model {0}/c.json -o {0}/c.json", "--output: {0}/c.json is read"),
    ("calibrate {0}/r.csv -o {0}/r.csv", "--output: {0}/r.csv is read"),
    ("calibrate --kernels {0}/r.csv -o {0}/r.csv", "--output: {0}/r.csv is read"),
    ("calibrate --profile {0}/x.toml -o {0}/x.toml", "--output: {0}/x.toml is read"),
    ("calibrate {0}/none.csv --profile a100-80gb-megatron -o clusters/profiles/a100-80gb-megatron.toml", "--output: clusters/profiles/"),
])
def test_no_output_overwrites_an_input_or_another_output(tmp_path, line, finding):
    files = {"s.csv": "0F0,0B0\n", "c.json": (ROOT / "models/gpt-tiny.json").read_text(), "x.toml": "name = 1\n", "r.csv": "a,b\n",
             "j.toml": (ROOT / "examples/gpt-tiny.toml").read_text().replace('"../models/gpt-tiny.json"', '"c.json"'),
             "p.json": '{"dp": 2, "for": {"model": "c.json", "cluster": "selene", "global_batch": 4}}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("c.json")
    (tmp_path / "hard").hardlink_to(tmp_path / "x.toml")
    done = subprocess.run([BINARY, *line.format(tmp_path, tmp_path.name).split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout
    assert finding.format(tmp_path, tmp_path.name) in done.stderr
    assert {name: (tmp_path / name).read_text() for name in files} == files and not (tmp_path / "x").exists()


def test_two_outputs_may_go_nowhere():
    done = subprocess.run([BINARY, *SIMULATE.split(), "--trace", "/dev/null", "--report", "/dev/null"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

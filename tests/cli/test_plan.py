"""`meshwright plan`: what it finds, the files that it writes and its errors."""

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
SMALL = "plan --model gpt-tiny --cluster selene --gpus 8 --global-batch 16"


def run(arguments):
    return subprocess.run([BINARY, *arguments.split()], cwd=ROOT, capture_output=True, text=True)


def done(arguments):
    ran = run(arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_json_has_the_plan_and_its_figures():
    found = json.loads(done(f"{SMALL} --json --top 4"))
    assert {"plan", "step_s", "tokens_per_s", "mfu", "peak_bytes", "search_s", "candidates", "alternatives"} <= set(found)
    plan = found["plan"]
    assert plan["dp"] * plan["tp"] * plan["pp"] == 8
    assert len(found["peak_bytes"]) == plan["pp"]
    assert len(found["alternatives"]) == 3
    for other in found["alternatives"] + found["front"]:
        assert len(other["peak_bytes"]) == other["plan"]["pp"]
        assert other["memory_needed_bytes"] == max(other["peak_bytes"])
    assert found["notes"] == []
    steps = [found["step_s"]] + [other["step_s"] for other in found["alternatives"]]
    assert steps == sorted(steps)
    assert found["candidates"] > 500
    assert found["profile"] == "megatron" and 0.08 < found["step_error"] < 0.1
    assert "hidden 320 (measured 1024 to 12288)" in found["outside_profile"]


def test_the_best_step_has_the_error_of_the_clusters_profile():
    text = done(f"{SMALL} --planner ptdp")
    assert re.search(r"^step  .* \+- 8 % or more   ", text, re.MULTILINE) and "outside of what the profile 'megatron'" in text
    text = done(f"{SMALL} --planner ptdp --profile none")
    assert "+-" not in text and "outside of what was measured: everything (no profile)" in text


def test_without_a_profile_no_error_is_stated():
    assert json.loads(done(f"{SMALL} --planner ptdp --profile none --json"))["step_error"] is None


def test_the_written_plan_is_taken_by_simulate_and_has_its_step(tmp_path):
    found = json.loads(done(f"{SMALL} --json -o {tmp_path}/plan.json"))
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written.pop("for") == {"model": "gpt-tiny", "cluster": "selene", "global_batch": 16, "seq_len": 256, "precision": "bf16"}
    assert written == found["plan"]
    again = json.loads(done(f"simulate --model gpt-tiny --cluster selene --gpus 8 --global-batch 16 --plan {tmp_path}/plan.json --json"))
    assert again["step_s"] == found["step_s"]


def test_the_written_plan_says_its_step_to_simulate_and_what_if(tmp_path):
    file = f"{tmp_path}/plan.json"
    found = json.loads(done(f"{SMALL} --precision f16 --seq-len 128 --profile none --no-scatter-gather --json -o {file}"))
    again = json.loads(done(f"simulate {file} --json"))
    assert again["step_s"] == found["step_s"] and again["seq_len"] == 128 and again["step_error"] is None
    table = json.loads(done(f"what-if {file} --vary link_bandwidth=1 --json"))
    assert table["base"]["step_s"] == found["step_s"]
    # An option replaces it; another cluster has its own profile, another model its own sequences.
    other = json.loads(done(f"simulate {file} --cluster dgx-h100 --model gpt-7.5b --global-batch 32 --ignore-memory --advice none --json"))
    assert (other["cluster"], other["seq_len"], other["global_batch"]) == ("DGX H100", 2048, 32)
    assert other["profile"] != ""


def test_tf32_and_scatter_gather_are_of_the_search_and_of_the_written_step(tmp_path):
    line = ("plan --model gpt-7.5b --cluster selene --gpus 32 --global-batch 16 --only tp=8 --only pp=4 --only sp=off --only schedule=1f1b "
            f"--only recompute=none --json -o {tmp_path}/p.json ")
    steps = {}
    for options, step in (("", {}), ("--no-scatter-gather", {"scatter_gather": False}), ("--precision f32 --tf32", {"precision": "f32", "tf32": True})):
        steps[options] = json.loads(done(line + options))["step_s"]
        written = json.loads((tmp_path / "p.json").read_text())["for"]
        assert written == {"model": "gpt-7.5b", "cluster": "selene", "global_batch": 16, "seq_len": 2048, "precision": "bf16"} | step
        again = json.loads(done(f"simulate {tmp_path}/p.json --advice none --json"))
        assert again["step_s"] == steps[options] and again["peak_format"] == ("tf32" if "tf32" in options else "bf16")
    assert len(set(steps.values())) == 3


def test_as_many_plans_are_listed_as_are_asked_for():
    few = f"{SMALL} --only tp=2 --only pp=1 --only microbatches=1 --only recompute=none"
    listed = done(f"{few} --top 3").split("what the others lose and gain:\n")[1].split("\n\n")[0]
    assert len(re.findall(r"  dp=4,tp=2,pp=1", listed)) == 3
    assert "what the others lose and gain" not in done(f"{few} --top 1")


def test_a_plan_file_whose_step_is_wrong(tmp_path):
    (tmp_path / "plan.json").write_text('{"dp": 8, "for": {"model": "gpt-tiny", "global_batch": 0, "cluste": "selene"}}')
    ran = run(f"simulate {tmp_path}/plan.json")
    assert ran.returncode == 2
    for part in ("for.global_batch: must be an integer of at least 1, is 0", "for.cluste: unknown key, did you mean 'cluster'?", "--cluster: is missing", "--global-batch: is missing"):
        assert part in ran.stderr, ran.stderr


def test_a_plan_file_that_cannot_be_read_may_name_what_the_options_do_not(tmp_path):
    (tmp_path / "plan.json").write_text('{"dp": 8,')
    for line in (f"{tmp_path}/plan.json", f"--plan {tmp_path}/plan.json", f"{tmp_path}/none.json"):
        ran = run(f"simulate {line}")
        assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1, ran.stderr
    ran = run(f"simulate {tmp_path}/plan.json --model gpt-tinny --global-batch 8")
    assert "did you mean 'gpt-tiny'?" in ran.stderr and "--cluster" not in ran.stderr
    for key in ("foo", "for"):  # a short form names no step
        ran = run(f"simulate --model gpt-tiny --cluster selene --global-batch 8 --plan tp=2,{key}=1")
        assert ran.stderr.startswith(f"meshwright: --plan: {key}: unknown key\n--plan: a plan's keys are dp, tp, pp, cp, ep, ")


def test_a_mixture_of_experts_has_sequence_parallelism_where_it_has_tp():
    found = json.loads(done("plan --model deepseek-v3 --cluster dgx-h100 --gpus 512 --global-batch 512 --seq-len 4096 --only ep=8,32 --only zero=1 "
                            "--only microbatches=1,2,4,8,16,32 --json --top 20"))
    plans = [found["plan"]] + [other["plan"] for other in found["alternatives"]]
    assert any(plan["tp"] > 1 for plan in plans)
    assert all(plan.get("sp", False) for plan in plans if plan["tp"] > 1)
    assert max(found["peak_bytes"]) <= 80 * 2**30


def test_experts_are_divided_and_where_not_it_is_said():
    mixture = "plan --model mixtral-8x7b --cluster dgx-h100 --global-batch 64 --seq-len 4096"
    best = json.loads(done(f"{mixture} --gpus 16 --json"))
    assert best["plan"]["ep"] > 1 and best["notes"] == []
    again = json.loads(done(f"simulate --model mixtral-8x7b --cluster dgx-h100 --global-batch 64 --seq-len 4096 --plan {best['short']} --json"))
    assert again["step_s"] == best["step_s"]
    note = "the rules of ptdp know no ep: every device of a stage holds all of its experts (or their parts); use --planner exhaustive"
    assert json.loads(done(f"{mixture.replace('dgx-h100', 'h200')} --gpus 64 --planner ptdp --json"))["notes"] == [note]
    refused = run(f"{mixture} --gpus 8 --planner ptdp")
    assert refused.returncode == 2 and "does not fit on 8 devices" in refused.stderr and note in refused.stderr


def test_only_what_a_stack_can_run():
    found = json.loads(done(f"{SMALL} --only tp=2,4 --only zero=0,1 --only schedule=1f1b,interleaved-1f1b --json"))
    assert found["only"] == "tp=2,4 zero=0,1 schedule=1f1b,interleaved-1f1b"
    for one in [found, *found["alternatives"], *found["front"]]:
        assert one["plan"]["tp"] in (2, 4) and one["plan"].get("zero", 0) < 2
        assert one["plan"].get("schedule", "1f1b") in ("1f1b", "interleaved-1f1b")
    refused = run(f"{SMALL} --planner ptdp --only tp=2 --only zero=4 --only spam=1")
    assert refused.returncode == 2 and refused.stderr.count("--only") == 3


def test_selective_op_is_searched_where_it_is_named():
    named, plain = (json.loads(done(f"{SMALL} --json {only}")) for only in ("--only recompute=selective-op", ""))
    assert {one["plan"]["recompute"] for one in (named, *named["alternatives"])} == {"selective-op"}
    assert "selective-op" not in {one["plan"]["recompute"] for one in (plain, *plain["alternatives"], *plain["front"])}


def test_long_sequences_are_not_divided_and_that_is_said():
    found = json.loads(done("plan --model mixtral-8x7b --cluster h200 --gpus 64 --global-batch 64 --planner ptdp --json"))
    assert found["notes"][-1] == "cp is not searched: no plan divides sequences; simulate --plan takes cp=…"


def test_a_small_share_of_the_peak_has_its_digits():
    table = done(f"{SMALL.replace('gpt-tiny', 'gpt-micro')} --planner ptdp")
    assert re.search(r"MFU 0\.0*[1-9]\d? %", table)


def test_where_no_plan_by_the_rules_fits_the_exhaustive_planner_is_named():
    ran = run("plan --model mixtral-8x7b --cluster dgx-h100 --gpus 16 --global-batch 64 --seq-len 4096 --planner ptdp")
    assert ran.returncode == 2
    assert ran.stderr == ("meshwright: models/mixtral-8x7b.json: no plan by the rules of ptdp fits on 16 devices of DGX H100, but others do; "
                          "use --planner exhaustive\n")


TORCH = "plan --cluster dgx-h100 --profile h100-80gb-torch"


def test_what_an_allocator_of_its_own_makes_of_estimates_is_simulated():
    fuller = json.loads(done(f"{TORCH} --model gpt-3.6b --gpus 1 --global-batch 64 --seq-len 128 --json"))
    assert (fuller["plan"]["microbatches"], fuller["plan"]["recompute"]) == (1, "none")  # whose estimate is too full
    large = f"{TORCH} --model gpt-18b --global-batch 16 --seq-len 256 --gpus"
    refused = run(f"{large} 1")
    assert refused.returncode == 2 and "the least that would do is 4 devices, with dp=1,tp=2,pp=2," in refused.stderr
    assert run(f"{large} 4").returncode == 0 and run(f"{large} 3").returncode == 2
    assert run(f"{large} 4 --planner ptdp").stderr == ("meshwright: models/gpt-18b.json: no plan by the rules of ptdp fits on 4 "
                                                       "devices of DGX H100, but others do; use --planner exhaustive\n")


@pytest.mark.parametrize("planner", ["exhaustive", "ptdp"])
def test_what_is_needed_at_the_least_is_more_than_there_is(planner):
    refused = run("plan --model llama3-8b --cluster h200 --gpus 1 --profile h200-141gb-torch --seq-len 256 --global-batch 8 "
                  f"--planner {planner}")
    needs, has = re.search(r"the fullest rank needs at least (\d+) GiB, H200-SXM has (\d+) GiB", refused.stderr).groups()
    assert refused.returncode == 2 and int(needs) > int(has) and "does not fit on 1 device of" in refused.stderr


def test_a_mixtures_sequence_gives_each_expert_whole_rows():
    ran = run("plan --model mixtral-8x7b --cluster dgx-h100 --gpus 8 --global-batch 64 --seq-len 4095")
    assert ran.returncode == 2
    assert ran.stderr == ("meshwright: --seq-len: 4095 tokens, each for 2 of 8 experts, give no whole number of rows an expert; "
                          "use a multiple of 4\n")


def test_the_written_plan_is_taken_by_verify(tmp_path):
    done(f"plan --model gpt-micro --cluster this-machine --gpus 2 --global-batch 16 --precision f32 -o {tmp_path}/plan.json")
    assert run(f"verify examples/gpt-micro.toml --plan {tmp_path}/plan.json").returncode == 0


def test_rules_are_named():
    text = done(f"{SMALL} --planner ptdp")
    for rule in ("takeaway 1", "takeaway 2", "takeaway 3"):
        assert rule in text


def test_all_that_is_missing_is_said_at_once():
    ran = run("plan")
    assert ran.returncode == 2
    for option in ("--model", "--cluster", "--gpus", "--global-batch"):
        assert f"{option}: is missing" in ran.stderr


def test_devices_that_no_plan_has():
    ran = run("plan --model gpt3-175b --cluster selene --gpus 101 --global-batch 7")
    assert ran.returncode == 2
    assert "--gpus: no plan has 101 ranks: tp must divide the 96 heads, pp the 96 layers or up to a quarter more" in ran.stderr


def test_devices_that_fill_no_whole_number_of_nodes():
    """Three and a half nodes of eight."""
    step = "--model gpt-1.7b --cluster selene --gpus 28 --global-batch 28"
    best = json.loads(done(f"plan {step} --top 1 --json"))
    again = json.loads(done(f"simulate {step} --plan {best['short']} --json --advice none"))
    assert again["step_s"] == best["step_s"] and again["devices"] == 28


def test_a_model_that_does_not_fit_is_told_how_many_devices_would_do():
    ran = run("plan --model gpt3-175b --cluster selene --gpus 8 --global-batch 64")
    assert ran.returncode == 2
    assert "gpt3-175b.json: does not fit on 8 devices of Selene" in ran.stderr
    assert "the least that would do in whole nodes of 8 is " in ran.stderr


def test_train_takes_auto(tmp_path):
    text = done(f"train examples/gpt-micro.toml --plan auto --steps 2 --run-dir {tmp_path}/r")
    plan, outside = text.splitlines()[:2]
    assert plan.startswith("plan dp=") and outside.startswith("outside of what was measured: hidden 64 (measured ")
    assert (tmp_path / "r" / "plan.json").exists()


def test_findings_about_the_request_come_together():
    ran = run("plan --model gpt3-175b --cluster selene --gpus 101 --seq-len 100000 --global-batch 7")
    assert ran.returncode == 2
    for finding in ("--gpus: no plan has 101 ranks", "--seq-len: is 100000"):
        assert finding in ran.stderr, ran.stderr


def test_options_that_are_wrong_are_said_at_once():
    refused = run("plan --gpus 0 --global-batch 0 --top 0 --planner foo --topp 3")
    assert refused.returncode == 2
    for name in ("--gpus: must be at least 1", "--global-batch: must be at least 1", "--top: must be at least 1",
                 "--planner: must be one of", "--topp: unknown option, did you mean '--top'?"):
        assert name in refused.stderr, refused.stderr


# Rotary positions are no weights: a longer sequence needs only another number in the file.
def test_a_sequence_beyond_rotary_positions_is_refused_with_the_key_to_change(tmp_path):
    longer = "use at most 8192, or a copy of the file with a larger max_position_embeddings\n"
    line = "--model llama3-8b --cluster dgx-h100 --global-batch 16 --seq-len 131072"
    assert run(f"plan --gpus 16 {line}").stderr.endswith(f"llama3-8b.json has 8192 positions; {longer}")
    assert run(f"simulate --plan tp=8,dp=2,microbatches=8 {line}").stderr.endswith(f"llama3-8b.json has 8192 positions; {longer}")
    config = json.loads((meshwright.ROOT / "models/llama3-8b.json").read_text())
    (tmp_path / "long.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
    done(f"simulate --plan tp=8,dp=2,microbatches=8 {line} --ignore-memory --model {tmp_path}/long.json".replace("--model llama3-8b ", ""))


def test_findings_and_a_path_that_cannot_be_written_come_together(tmp_path):
    refused = run("plan --model gpt-tiny --cluster selene --gpus 7 --global-batch 5 --seq-len 99999 -o /nowhere/p.json")
    assert refused.returncode == 2
    for part in ("--seq-len: is 99999", "--gpus: no plan has 7 ranks", "/nowhere/p.json: does not exist"):
        assert part in refused.stderr


def test_no_plan_of_the_front_is_beaten_by_zero_3():
    found = json.loads(done("plan --model gpt-7.5b --cluster selene --gpus 64 --global-batch 512 --json"))
    front = [(one["step_s"], one["memory_needed_bytes"]) for one in found["front"]]
    assert front == sorted(front) and len(front) > 4
    for plan in ("dp=64,microbatches=8,zero=3", "dp=64,microbatches=4,zero=3,recompute=selective"):
        other = json.loads(done("simulate --model gpt-7.5b --cluster selene --global-batch 512 --json --advice none --plan "
                                + plan))
        step, peak = other["step_s"], max(other["peak_bytes"])
        assert any(s <= 1.03 * step and b <= 1.03 / 0.9 * peak for s, b in front), plan
        assert not any(step < 0.97 * s and peak < 0.97 * b for s, b in front), plan


def test_ranks_that_share_a_memory_fit_together():
    refused = run("plan --model gpt-1.7b --cluster this-machine --gpus 2 --global-batch 2 --precision f32")
    assert refused.returncode == 2 and "the ranks need at least " in refused.stderr and "and share" in refused.stderr
    text = done("plan --model gpt-tiny --cluster this-machine --gpus 2 --global-batch 8 --precision f32")
    assert "that all ranks share" in text


def test_a_precision_that_the_devices_lack_is_told_with_the_rest():
    refused = run("plan --model gpt-tiny --cluster selene --gpus 7 --global-batch 5 --precision fp8 --tf32")
    assert refused.returncode == 2
    for part in ("--tf32: is of f32 products, and the precision is fp8", "has no fp8 products", "--gpus: no plan has 7 ranks"):
        assert part in refused.stderr


def test_batches_beyond_all_sizes_are_refused():
    refused = run("plan --model gpt-tiny --cluster selene --gpus 8 --global-batch 1000000000")
    assert refused.returncode == 2
    assert "--global-batch: is 1000000000, must be at most 1048576 sequences" in refused.stderr


def test_a_plan_file_names_its_files_from_its_own_folder(tmp_path):
    for name in ("here/deep", "there", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "there/m.json").write_text((ROOT / "models/gpt-tiny.json").read_text())
    (tmp_path / "there/c.toml").write_text((ROOT / "clusters/selene.toml").read_text())
    (tmp_path / "there/p.toml").write_text((ROOT / "clusters/profiles/a100-80gb-megatron.toml").read_text())

    def at(folder, *arguments):
        ran = subprocess.run([BINARY, *arguments], cwd=tmp_path / folder, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    at("there", *f"plan --model m.json --cluster {tmp_path}/there/c.toml --profile p.toml --gpus 8 --global-batch 16 -o ../here/deep/plan.json".split())
    written = json.loads((tmp_path / "here/deep/plan.json").read_text())["for"]
    assert (written["model"], written["cluster"], written["profile"]) == ("../../there/m.json", f"{tmp_path}/there/c.toml", "../../there/p.toml")
    steps = {json.loads(at(folder, "simulate", file, "--advice", "none", "--json"))["step_s"] for folder, file in
             (("elsewhere", "../here/deep/plan.json"), ("here/deep", "plan.json"), (".", f"{tmp_path}/here/deep/plan.json"))}
    assert len(steps) == 1
    # What is not beside the plan file is of the working directory.
    (tmp_path / "here/plan.json").write_text('{"dp": 2, "for": {"model": "m.json", "cluster": "c.toml", "global_batch": 4}}')
    at("there", "simulate", "../here/plan.json", "--advice", "none")
    (tmp_path / "here/m.json").write_text((ROOT / "models/gpt-7.5b.json").read_text())
    assert "../here/m.json: 7." in at("there", "simulate", "../here/plan.json", "--advice", "none", "--ignore-memory")
    assert "m.json: 10.0 M" in at("there", "simulate", "../here/plan.json", "--advice", "none", "--model", "m.json")
    refused = subprocess.run([BINARY, "simulate", "here/plan.json"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and "c.toml: does not exist" in refused.stderr


def test_a_plan_file_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "p.json").write_text('{"dp": 2}', encoding="utf-8-sig")
    for line in (f"simulate {tmp_path}/p.json --model gpt-tiny --cluster selene --global-batch 4 --advice none",
                 f"verify examples/gpt-tiny.toml --plan {tmp_path}/p.json"):
        done(line)

"""The command lines that the documentation promises, in these exact forms; help; and the README's own commands.

Runs are those of examples/gpt-micro.toml unless MESHWRIGHT_TEST_ALL=1: then examples/gpt-tiny.toml where a text names it.
"""

import importlib.util
import json
import os
import pathlib
import re
import resource
import shlex
import struct
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)
if not meshwright.TEXT.exists():
    pytest.skip(f"no {meshwright.TEXT.name} here: scripts/setup writes it", allow_module_level=True)

ROOT = meshwright.ROOT
JOB = "examples/gpt-tiny.toml" if meshwright.EVERYTHING else "examples/gpt-micro.toml"
LLAMA = "models/llama-tiny.json" if meshwright.EVERYTHING else "models/llama-micro.json"
PLAN = "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=8,sp,zero=1,recompute=selective"
STEP_KEYS = {"step", "loss", "grad_norm", "lr", "step_s", "tokens_per_s"}
RESULT_KEYS = {"plan", "final_loss", "tokens_per_s", "peak_bytes_per_rank", "bytes_sent_per_step"}


def run(line: str, expect: int = 0) -> str:
    """Standard output of `meshwright <line>`."""
    done = meshwright.execute(shlex.split(line))
    assert done.returncode == expect, f"meshwright {line}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 4 steps with 8 ranks, under the plan of the documentation, with a batch that 8 microbatches divide."""
    d = tmp_path_factory.mktemp("cli")
    run(f"train {JOB} --plan {PLAN} --steps 4 --seed 7 --run-dir {d}/R")
    return d / "R"


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_has_plan_metrics_trace_and_checkpoint(trained):
    assert {path.name for path in trained.iterdir()} == {
        "plan.json", "job.json", "config.json", "metrics.jsonl", "trace.json", "checkpoint"}
    plan = json.loads((trained / "plan.json").read_text())
    assert (plan["dp"], plan["tp"], plan["pp"], plan["chunks"], plan["zero"], plan["sp"]) == (2, 2, 2, 2, 1, True)
    lines = metrics(trained)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(STEP_KEYS <= set(line) for line in lines)
    events = json.loads((trained / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M"}
    assert [path.name for path in (trained / "checkpoint").iterdir()] == ["step-000004"]


@pytest.mark.parametrize("step", [1, 3])
def test_the_trace_shows_the_step_that_was_asked_for(tmp_path, step):
    run(f"train {JOB} --plan dp=1 --steps 3 --trace-step {step} --run-dir {tmp_path}/R")
    trace = json.loads((tmp_path / "R" / "trace.json").read_text())
    assert trace["otherData"]["step"] == step
    longest = max(event["dur"] for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "step")
    assert longest * 1e-6 <= metrics(tmp_path / "R")[step - 1]["step_s"]


def test_a_trace_of_a_step_that_does_not_run_is_refused(tmp_path):
    done = meshwright.execute(shlex.split(f"train {JOB} --plan dp=1 --steps 3 --trace-step 4 --run-dir {tmp_path}/R"))
    assert done.returncode == 2
    assert "--trace-step: 4 is none of this run's steps, 1 to 3" in done.stderr
    assert not (tmp_path / "R").exists()


def test_the_version_is_the_projects():
    version = re.search(r"project\(meshwright VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert run("--version") == f"meshwright {version}\n"


def test_a_plan_in_place_of_a_job_is_told(trained):
    done = meshwright.execute(["verify", trained / "plan.json"])
    assert (done.returncode, done.stderr) == (2, f"meshwright: {trained}/plan.json: is JSON; a job is a TOML file such as "
                                                 "examples/gpt-tiny.toml, and a plan goes with --plan\n")


def test_runs_that_begin_at_once_have_a_folder_each(tmp_path):
    begun = [subprocess.Popen([str(meshwright.BINARY), "train", str(ROOT / JOB), "--plan", "dp=1", "--steps", "1", "--quiet"],
                              cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = sorted(one.communicate(timeout=300)[0] for one in begun)
    assert [one.returncode for one in begun] == [0, 0, 0]
    name = pathlib.Path(JOB).stem
    assert told == [f"run folder runs/{name}{n}\n" for n in ("", "-2", "-3")]
    for path in (tmp_path / "runs").iterdir():
        assert len(metrics(path)) == 1


def test_a_system_without_further_threads_is_told(tmp_path):
    """A stack of 8 TiB: an address space has room for some of the sixteen ranks' threads, not for all."""
    def large_stacks():
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 43, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard != resource.RLIM_INFINITY and hard < 1 << 43:
        pytest.skip("stacks are limited here")
    done = subprocess.run([str(meshwright.BINARY), "train", JOB, "--plan", "dp=16,microbatches=1", "--steps", "1", "--run-dir",
                           f"{tmp_path}/R"], cwd=ROOT, capture_output=True, text=True, timeout=300, preexec_fn=large_stacks)
    assert (done.returncode, done.stderr) == (1, "meshwright: no further thread can be started: Resource temporarily unavailable\n")


def test_losses_in_the_file_have_full_float_precision(trained):
    for text in re.findall(r'"loss":([0-9.e+-]+)', (trained / "metrics.jsonl").read_text()):
        value = float(text)
        assert struct.unpack("f", struct.pack("f", value))[0] == value


def test_resume_under_another_plan_goes_on_where_the_unbroken_run_does(trained, tmp_path):
    run(f"train {JOB} --resume {trained} --plan pp=4,schedule=1f1b,microbatches=8 --steps 6 --run-dir {tmp_path}/R2")
    run(f"train {JOB} --seed 7 --plan dp=2,microbatches=8 --steps 6 --run-dir {tmp_path}/unbroken")
    went_on, unbroken = metrics(tmp_path / "R2"), metrics(tmp_path / "unbroken")
    assert [line["step"] for line in went_on] == [5, 6]
    for line in went_on:
        same = unbroken[line["step"] - 1]
        assert line["loss"] == pytest.approx(same["loss"], rel=1e-5)
        assert line["lr"] == same["lr"]


def test_a_llama_starts_from_its_own_weights(tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(meshwright.TEXT.read_bytes()[:300_000])
    options = f"--model {LLAMA} --data {text}"
    run(f"train {JOB} {options} --plan dp=1,microbatches=4 --steps 1 --run-dir {tmp_path}/R")
    weights = next((tmp_path / "R/checkpoint/step-000001").glob("model-*.safetensors"))
    out = run(f"train {JOB} {options} --init {weights} --plan dp=2,tp=2,microbatches=2 --steps 1 --run-dir {tmp_path}/R2 --json")
    loss = json.loads(out.splitlines()[-1])["final_loss"]
    assert loss < metrics(tmp_path / "R")[0]["loss"] + 0.5
    # A folder, and an index whose tensors lie in two files.
    safetensors = pytest.importorskip("safetensors.numpy", reason="scripts/setup --test installs it")
    tensors, parts = safetensors.load_file(weights), [{}, {}]
    for i, (name, tensor) in enumerate(tensors.items()):
        parts[i % 2][name] = tensor
    (tmp_path / "two").mkdir()
    for i, part in enumerate(parts):
        safetensors.save_file(part, tmp_path / f"two/model-0000{i + 1}-of-00002.safetensors")
    index = tmp_path / "two/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(tensors)}}))
    for n, source in enumerate((weights.parent, index.parent, index)):
        out = run(f"train {JOB} {options} --init {source} --plan dp=2,tp=2,microbatches=2 --steps 1 --run-dir {tmp_path}/S{n} --json")
        assert json.loads(out.splitlines()[-1])["final_loss"] == loss


def test_the_last_line_of_json_output_is_the_result(tmp_path):
    out = run(f"train {JOB} --plan dp=2,microbatches=4 --steps 2 --run-dir {tmp_path}/R --json")
    result = json.loads(out)
    assert RESULT_KEYS <= set(result)
    assert (result["run_dir"], result["steps"]) == (f"{tmp_path}/R", 2) and result["plan"].startswith("dp=2,")
    assert result["held_out_loss"] == json.loads((tmp_path / "R/metrics.jsonl").read_text().splitlines()[-1])["held_out_loss"]
    assert result["final_loss"] == metrics(tmp_path / "R")[-1]["loss"]
    assert result["bytes_sent_per_step"] > 0 and result["peak_bytes_per_rank"] > 0


def test_progress_lines_have_step_loss_speed_and_time_left(tmp_path):
    lines = run(f"train {JOB} --steps 2 --run-dir {tmp_path}/R").splitlines()
    assert re.fullmatch(r"step +1/2  loss \d\.\d{4}  grad norm [\d.]+  lr \S+  \d+ tokens/s  ETA .+", lines[0])
    assert lines[-1] == f"run folder {tmp_path}/R"
    assert run(f"train {JOB} --steps 1 --quiet --run-dir {tmp_path}/R2") == f"run folder {tmp_path}/R2\n"


def test_verify_prints_memory_by_rank_and_category_and_runs_nothing(tmp_path):
    out = run(f"verify {JOB} --plan {PLAN} --data {tmp_path}/nothing")
    assert out.startswith(f"plan {PLAN}: 8 ranks on {{pp:2, dp:2, tp:2}}\n")
    assert re.search(r"^program [0-9a-f]{32} \(\d+ fragments, \d+ channels\): sound$", out, re.MULTILINE)
    for rank in (0, 1):
        assert re.search(rf"^pipeline rank {rank}: \S+ \S+: states \S+ \S+, step arena \S+ \S+, slots ", out, re.MULTILINE)
    for category in ("weights", "gradients", "optimizer", "activations", "communication buffers", "temporaries"):
        assert len(re.findall(rf"^  {category} +\S+ \S+$", out, re.MULTILINE)) == 2


def test_verify_as_json_has_the_exact_figures_of_every_rank(tmp_path):
    result = json.loads(run(f"verify {JOB} --plan {PLAN} --json"))
    assert result["plan"] == PLAN
    assert [rank["rank"] for rank in result["ranks"]] == list(range(8))
    for rank in result["ranks"]:
        assert sum(rank["peak_bytes_by_category"].values()) <= rank["peak_bytes"]
        assert rank["peak_bytes"] == rank["state_bytes"] + rank["step_arena_bytes"] + rank["slot_bytes"]
        assert sum(rank["bytes_sent_by_group"].values()) == rank["bytes_sent"] > 0
        assert rank["instructions"] > sum(rank["collectives_by_group"].values()) > 0
        assert rank["pipeline_rank"] == rank["rank"] // 4
    trained = json.loads(run(f"train {JOB} --plan {PLAN} --steps 1 --run-dir {tmp_path}/R --json").splitlines()[-1])
    assert trained["bytes_sent_per_step"] == sum(rank["bytes_sent"] for rank in result["ranks"])
    assert trained["peak_bytes_per_rank"] == max(rank["peak_bytes"] for rank in result["ranks"])


@pytest.mark.parametrize("what, first", [("graph", "graph microbatch {"), ("fragments", "fragment 'F stages 1, 2'"),
                                         ("program", "pipeline rank 1"), ("memory", "pipeline rank 1\nstates ")])
def test_inspect(what, first):
    rank = " --rank 7" if what in ("program", "memory") else ""
    out = run(f"inspect {what} {JOB} --plan {PLAN}{rank}")
    assert first in out
    assert "pipeline rank 0" not in out


def test_verify_says_in_words_what_it_says_as_json():
    def size(text):  # three digits and a unit
        number, unit = text.split()
        return pytest.approx(float(number) * 1024 ** ["B", "KiB", "MiB"].index(unit), rel=0.006)

    text = run(f"verify {JOB} --plan {PLAN}")
    result = json.loads(run(f"verify {JOB} --plan {PLAN} --json"))
    assert f" ({result['fragments']} fragments, {result['channels']} channels)" in text
    assert len({rank["order_hash"] for rank in result["ranks"]}) == 2
    for block, rank in zip(text.split("\npipeline rank ")[1:], result["ranks"][::4], strict=True):
        head, *lines = block.splitlines()
        figures = re.fullmatch(r"\d: (.*): states (.*), step arena (.*), slots (.*); (\d+) instructions and (.*) sent a step", head).groups()
        for told, key in zip(figures, ("peak_bytes", "state_bytes", "step_arena_bytes", "slot_bytes", "", "bytes_sent"), strict=True):
            assert int(told) == rank["instructions"] if not key else rank[key] == size(told), key
        sent = {group: (bytes_, how) for group, bytes_, how in re.findall(r"^  sent over (.*?) +(\S+ [KM]?i?B) in (.*)$", "\n".join(lines), re.MULTILINE)}
        assert set(sent) == set(rank["bytes_sent_by_group"])
        for group, (bytes_, how) in sent.items():
            count = rank["collectives_by_group"].get(group, 0)
            assert rank["bytes_sent_by_group"][group] == size(bytes_)
            assert how == ("messages" if group == "pp" else "1 collective" if count == 1 else f"{count} collectives")


def test_inspected_memory_is_what_verify_counts():
    rank = json.loads(run(f"verify {JOB} --plan {PLAN} --json"))["ranks"][7]
    _, sizes, *buffers = run(f"inspect memory {JOB} --plan {PLAN} --rank 7").splitlines()
    states, arena = re.fullmatch(r"states (\S+) KiB, step arena (\S+) KiB", sizes).groups()
    assert float(states) == pytest.approx(rank["state_bytes"] / 1024, rel=0.01) != pytest.approx(float(arena), rel=0.01)
    assert float(arena) == pytest.approx(rank["step_arena_bytes"] / 1024, rel=0.01)
    places = {"state": [], "arena": []}
    for kind, offset, size in re.findall(r"^  (state|arena) +(\d+) \+(\d+) ", "\n".join(buffers), re.MULTILINE):
        places[kind].append((int(offset), int(offset) + int(size)))
    states = sorted(places["state"])
    assert states[0][0] == 0 and all(begin >= end for (_, end), (begin, _) in zip(states, states[1:]))
    assert rank["state_bytes"] - 64 < states[-1][1] <= rank["state_bytes"]
    assert 0 < max(end for _, end in places["arena"]) <= rank["step_arena_bytes"]  # the rest is of calls' temporaries


def test_an_inspected_program_has_its_operands_and_global_shapes():
    fragments = run(f"inspect fragments {JOB} --plan {PLAN}")
    assert re.search(r"^  tokens : \[\{\"dp\"\}, \{\}\] of i32\[2,\d+\]$", fragments, re.MULTILINE)
    program = run(f"inspect program {JOB} --plan {PLAN}")
    workspaces = [int(size) for size in re.findall(r"^fragment \d+ .* workspace (\d+)$", program, re.MULTILINE)]
    told = re.findall(r"^fragment '.*', workspace (\S+) KiB$", fragments, re.MULTILINE)
    assert [float(size) for size in told] == pytest.approx([size / 1024 for size in workspaces], rel=0.01) and min(workspaces) > 0
    assert "F stages 1, 2: h.0.mlp.residual#0 transformer.h.1.ln_1.weight " in run(f"inspect program {JOB} --plan {PLAN} --rank 7")


def test_generate_is_the_same_for_the_same_seed(trained):
    def text(options):
        return meshwright.generated(["generate", trained, "--prompt", "In the beginning", "--tokens", 12, *options])
    assert text([]).startswith(b"In the beginning")
    assert len(text([])) == len(b"In the beginning") + 12 + 1
    assert text(["--seed", 3]) == text(["--seed", 3]) != text(["--seed", 4])
    assert text(["--temperature", 0]) == text(["--temperature", 0, "--seed", 5])


def test_data_build_and_info(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("In the beginning\nGod created\n\nthe heaven\n")
    expected = f"{tmp_path}/set: 41 tokens of type u16 in 1 sequence and 1 document, the longest of 41 tokens; "
    assert run(f"data build {text} -o {tmp_path}/set").startswith(expected)
    assert run(f"data info {tmp_path}/set").startswith(expected)
    assert run(f"data info {tmp_path}/set").endswith("; tokens from 10 to 118\n")
    assert "in 2 sequences and 2 documents" in run(f"data build {text} -o {tmp_path}/two --documents paragraphs")
    assert "in 4 sequences and 4 documents, the longest of 17 tokens" in run(f"data build {text} -o {tmp_path}/three --documents lines")
    # A document of two sequences.
    (tmp_path / "joined.bin").write_bytes(struct.pack("<5i", *range(7, 12)))
    (tmp_path / "joined.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ2i2q2q", 1, 4, 2, 2, 2, 3, 0, 8, 0, 2))
    assert run(f"data info {tmp_path}/joined") == (f"{tmp_path}/joined: 5 tokens of type i32 in 2 sequences and 1 document, the longest of 5 "
                                                   "tokens; tokens from 7 to 11\n")


def test_checkpoint_info_and_verify(trained):
    info = run(f"checkpoint info {trained}")
    assert info.startswith(f"{trained}/checkpoint/step-000004: step 4\n")
    assert re.search(r"^model +f32 +\[256, \d+\] +transformer\.wte\.weight$", info, re.MULTILINE)
    assert re.search(r"^optimizer +f32 +\[256, \d+\] +exp_avg_sq\.transformer\.wte\.weight$", info, re.MULTILINE)
    assert run(f"checkpoint verify {trained}") == (
        f"{trained}/checkpoint/step-000004: complete, every checksum is right\n")


OPTIONS = {
    "train": "job --plan --model --data --seed --steps --trace-step --run-dir --resume --init --threads-per-rank --json --quiet",
    "verify": "job --plan --model --data --seed --json",
    "inspect": "what job --plan --model --data --seed --rank",
    "generate": "run --prompt --tokens --temperature --seed",
    "data": "build info",
    "data build": "file --output --documents",
    "data info": "prefix",
    "checkpoint": "info verify",
    "checkpoint info": "run",
    "checkpoint verify": "run",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_explains_every_option(command):
    lines = run(f"{command} --help").splitlines()
    for option in OPTIONS[command].split():
        explained = [line for line in lines if re.search(rf"(^|[ ,]){re.escape(option)}( |$)", line[:28] + " ")]
        assert any(len(line) > 30 for line in explained), f"{command} {option}"
    known = set(re.findall(r"--[a-z-]+", " ".join(line[:28] for line in lines)))
    assert known - {"--help", "--help-all"} == {o for o in OPTIONS[command].split() if o.startswith("--")}


def test_help_names_every_subcommand():
    text = run("--help")
    for command in ("train", "verify", "inspect", "generate", "data", "checkpoint"):
        assert re.search(rf"^  {command} +\S", text, re.MULTILINE)
    assert "--threads-per-rank" in run("--help-all")


# --- the README ------------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")


def fenced(tag: str) -> list[str]:
    return re.findall(rf"^```{tag}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readmes_commands_run(tmp_path):
    """All but the demo, which has a test of its own. Replaced: the binary, the folders that are written, the numbers of
    steps (60 and 80 by 2 and 3), and, unless MESHWRIGHT_TEST_ALL=1, gpt-tiny by gpt-micro."""
    replaced = [("runs/", f"{tmp_path}/"), ("-o build/data/kjv", f"-o {tmp_path}/kjv"), ("step.html", f"{tmp_path}/step.html"),
                ("--steps 60", "--steps 2"), ("--steps 80", "--steps 3"), ("--tokens 100", "--tokens 10"), ("examples/gpt-tiny.toml", JOB)]
    commands = [line for block in fenced("sh") for line in block.splitlines() if line != "scripts/demo"]
    assert len(commands) >= 7
    for command in commands:
        for old, new in replaced:
            command = command.replace(old, new)
        name, *arguments = shlex.split(command)
        assert name == "build/meshwright"
        done = subprocess.run([meshwright.BINARY, *arguments], cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=meshwright.RUN_SECONDS)
        assert done.returncode == 0, f"{command}\n{done.stderr.decode()}"


def demo(*options) -> str:
    done = subprocess.run([ROOT / "scripts/demo", *options], cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=1200, env={**os.environ, "MESHWRIGHT_BIN": str(meshwright.BINARY)})
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")


def demo_table():
    spec = importlib.util.spec_from_file_location("demo_table", ROOT / "scripts/demo_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(text: str) -> dict[str, list[float]]:
    """The demo's rows: name, the two numbers."""
    rows = re.findall(r"^(loss, step \d+|held-out loss|peak memory a rank|sent a step, all ranks) +([\d.,]+)(?: MiB)? +([\d.,]+)",
                      text, re.MULTILINE)
    return {name: [float(number.replace(",", "")) for number in numbers] for name, *numbers in rows}


def test_the_demo_trains_8_ranks_beside_one():
    text = demo("--steps", "3", "--job", "examples/gpt-micro.toml")
    rows = table(text)
    assert {"loss, step 1", "loss, step 3", "held-out loss"} <= set(rows)
    for name in ("loss, step 1", "loss, step 3", "held-out loss"):
        assert rows[name][0] == pytest.approx(rows[name][1], rel=1e-5)
    assert "In the beginning" in text
    for ranks in (8, 1):
        assert (ROOT / f"build/demo/ranks-{ranks}/checkpoint").is_dir()


def test_the_readmes_table_is_a_table_of_the_demo():
    """Its rows are those that a demo of as many steps prints, in their order; 8 ranks and one rank agree in it."""
    text = fenced("demo")[0]
    shown = table(text)
    last = max(int(name.removeprefix("loss, step ")) for name in shown if name.startswith("loss, step "))
    assert list(shown) == [*(f"loss, step {step}" for step in demo_table().shown_steps(last)), "held-out loss",
                           "peak memory a rank", "sent a step, all ranks"]
    assert text.splitlines()[0].split() == ["ranks-8", "ranks-1", "relative", "difference"]
    for name, (ranks8, ranks1) in shown.items():
        if "loss" in name:
            assert ranks8 == pytest.approx(ranks1, rel=1e-5), name
            difference = re.search(rf"^{name} +\S+ +\S+ +(\S+)$", text, re.MULTILINE).group(1)
            assert difference == "equal" or float(difference) < 1e-5
    assert shown["held-out loss"][0] < shown["loss, step 1"][0]
    assert shown["peak memory a rank"][0] < shown["peak memory a rank"][1]
    assert shown["sent a step, all ranks"][1] == 0


@pytest.mark.skipif(not meshwright.EVERYTHING, reason="2 steps of gpt-tiny on one rank and on 8: MESHWRIGHT_TEST_ALL=1")
def test_the_readmes_numbers_are_what_the_demo_prints():
    """Times and later losses would take the whole demo; the first loss, memory and bytes do not depend on its length."""
    shown, printed = table(fenced("demo")[0]), table(demo("--steps", "2"))
    for name in ("loss, step 1", "peak memory a rank", "sent a step, all ranks"):
        assert shown[name] == pytest.approx(printed[name], rel=2e-5 if "loss" in name else 2e-3), name


def test_the_picture_is_of_the_compiled_programs():
    drawn = subprocess.run([sys.executable, ROOT / "scripts/schedules_svg.py", meshwright.BINARY], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout
    assert drawn == (ROOT / "docs/schedules.svg").read_text(encoding="utf-8")


def test_links_of_the_documentation_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"

"""What others do to a command's files and outputs: closed outputs, two writers of one file, folders that are moved, and
checkpoints of other runs."""

import json
import shutil
import subprocess
import sys
import time
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

VERSE = "In the beginning God created the heaven and the earth. And the earth was without form, and void.\n"


def shell(redirection, *arguments):
    line = f'"$0" "$@" {redirection}'
    return subprocess.run(["sh", "-c", line, meshwright.BINARY, *map(str, arguments)], cwd=meshwright.ROOT,
                          capture_output=True, text=True, timeout=120)


def refused(*arguments):
    done = meshwright.execute(arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    return done.stderr


@pytest.fixture
def job(tmp_path):
    (tmp_path / "text.txt").write_text(VERSE * 300)
    shutil.copy(meshwright.ROOT / "models/gpt-micro.json", tmp_path / "model.json")
    return meshwright.write_job(tmp_path / "job.toml", model="model.json", data="text.txt", seq_len=64, global_batch=16,
                                checkpoint_every=1)


@pytest.fixture
def run(job, tmp_path):
    """Of three steps."""
    meshwright.train(tmp_path / "run", job, "dp=1", steps=3)
    return tmp_path / "run"


@pytest.mark.parametrize("redirection, code", [("2>&-", 0), ("2>/dev/full", 0), (">&-", 1), (">&- 2>&-", 1)])
def test_what_cannot_be_told_is_written_nowhere_else(job, tmp_path, redirection, code):
    done = shell(redirection, "train", job, "--plan", "dp=1", "--steps", 3, "--run-dir", tmp_path / "run", "--json")
    assert done.returncode == code, done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert meshwright.execute(["checkpoint", "verify", tmp_path / "run"]).returncode == 0


@pytest.mark.parametrize("line", [("train", "nosuch.toml"), ("schedule", "1f1b", "--stagess", "4")])
def test_an_error_that_cannot_be_told_has_its_exit_code(line):
    assert shell("2>/dev/full", *line).returncode == 2


def test_of_two_datasets_built_at_once_one_is_there(tmp_path):
    """Whole, whoever ends first; the other is refused, or begins when the first has ended."""
    texts = [VERSE * 40000, VERSE.upper() * 40000]
    tokens = [text.encode("utf-16-le") for text in texts]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    met = 0
    for attempt in range(4):
        prefix = tmp_path / f"set-{attempt}"
        both = [subprocess.Popen([meshwright.BINARY, "data", "build", tmp_path / f"{i}.txt", "-o", prefix, "--documents", "lines"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for i in range(2)]
        told = [process.communicate(timeout=120)[1] for process in both]
        ends = [process.returncode for process in both]
        assert 0 in ends and set(ends) <= {0, 2}, (ends, told)
        if 2 in ends:
            met += 1
            says = [f"meshwright: {prefix}{end}: another process writes it; wait until it has ended\n"
                    for end in (".bin.tmp", ".idx.tmp")]
            assert told[ends.index(2)] in says
            assert prefix.with_suffix(".bin").read_bytes() == tokens[ends.index(0)]
        assert prefix.with_suffix(".bin").read_bytes() in tokens
        assert meshwright.execute(["data", "info", prefix]).returncode == 0
        assert not list(tmp_path.glob("*.tmp"))
    assert met > 0, "no two builds met"


@pytest.mark.parametrize("end", [".bin", ".idx", ".bin.tmp", ".idx.tmp"])
def test_a_text_is_not_lost_to_its_dataset(tmp_path, end):
    text = tmp_path / f"set{end}"
    text.write_text(VERSE)
    assert f"{tmp_path}/set would write over the text {text}" in refused("data", "build", text, "-o", tmp_path / "set")
    assert text.read_text() == VERSE


@pytest.mark.parametrize("name", ["plan.json", "job.json", "config.json", "trace.json"])
def test_a_run_writes_over_nobodys_file(job, tmp_path, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("{}")
    told = refused("train", job, "--steps", 1, "--run-dir", folder)
    assert told == f"meshwright: --run-dir: {folder} holds {name}, which a run writes; choose another folder\n"
    assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_text() == "{}"


def test_a_folder_in_a_file_is_none(job, tmp_path):
    told = refused("train", job, "--steps", 1, "--run-dir", tmp_path / "text.txt/run")
    assert told == f"meshwright: --run-dir: {tmp_path}/text.txt is a file, must be a folder\n"


def test_a_link_to_nothing_is_no_folder(job, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    told = refused("train", job, "--steps", 1, "--run-dir", tmp_path / "link")
    assert told == f"meshwright: {tmp_path}/link: is a link to what does not exist\n"


def test_a_run_whose_folder_is_moved_ends(job, tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen([meshwright.BINARY, "train", job, "--plan", "dp=1", "--steps", "100000", "--run-dir", folder,
                                "--quiet"], cwd=meshwright.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    latest = time.monotonic() + 60
    while not list((folder / "checkpoint").glob("step-??????")):
        assert process.poll() is None and time.monotonic() < latest
        time.sleep(0.001)
    folder.rename(tmp_path / "moved")
    told = process.communicate(timeout=60)[1]
    assert not folder.exists(), told
    # Where the move meets a save, that ends the run.
    gone = f"meshwright: {folder}: is gone; was the run folder moved or removed?\n"
    assert (process.returncode, told) == (1, gone) or f"{folder}/checkpoint" in told
    assert meshwright.execute(["checkpoint", "verify", tmp_path / "moved"]).returncode == 0


def test_a_checkpoint_that_is_pruned_while_it_is_verified_is_whole(job, tmp_path):
    """A writer that keeps one, and a reader beside it."""
    job.write_text(job.read_text().replace("keep = 9", "keep = 1"))
    folder = tmp_path / "run"
    writer = subprocess.Popen([meshwright.BINARY, "train", job, "--plan", "dp=1", "--steps", "100000", "--run-dir", folder,
                               "--quiet"], cwd=meshwright.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        latest = time.monotonic() + 60
        while not list((folder / "checkpoint").glob("step-??????")):
            assert writer.poll() is None and time.monotonic() < latest
            time.sleep(0.001)
        for _ in range(60):
            done = meshwright.execute(["checkpoint", "verify", folder])
            assert done.returncode == 0, done.stderr
    finally:
        writer.kill()
        writer.wait()


def test_a_resumed_run_needs_no_model_of_its_job(job, run, tmp_path):
    (tmp_path / "model.json").unlink()
    on = meshwright.train(tmp_path / "on", job, "pp=2,microbatches=2", "--resume", run, steps=4)
    assert [line["step"] for line in on.metrics] == [4]


def test_a_run_is_resumed_with_its_own_checkpoints(job, run, tmp_path):
    other = meshwright.train(tmp_path / "other", job, "dp=1", "--seed", 2, steps=4)
    shutil.copytree(other.checkpoint(), run / "checkpoint/step-000004")
    told = refused("train", job, "--resume", run, "--steps", 6, "--run-dir", tmp_path / "on")
    assert told == (f"meshwright: {run}/checkpoint/step-000004: is of a run with seed 2, but {run} has seed 1\n")
    shutil.rmtree(run / "checkpoint/step-000004")
    config = json.loads((run / "config.json").read_text())
    config["n_head"] = 8  # the same shapes
    (run / "config.json").write_text(json.dumps(config))
    told = refused("train", job, "--resume", run, "--steps", 6, "--run-dir", tmp_path / "on")
    assert told == (f"meshwright: {run}/checkpoint/step-000003: is of another model than {run}: their config.json differ\n")


def test_where_a_run_is_meant_or_a_checkpoint(job, run, tmp_path):
    step = run / "checkpoint/step-000003"
    assert (refused("train", job, "--resume", step, "--steps", 6, "--run-dir", tmp_path / "on") ==
            f"meshwright: --resume: {step} is a checkpoint; give its run, {run}\n")
    assert (refused("train", job, "--init", run, "--steps", 6, "--run-dir", tmp_path / "on") ==
            f"meshwright: --init: {run} is a run; its checkpoints are folders such as {step}\n")
    shutil.copytree(step, tmp_path / "alone")
    assert (refused("train", job, "--resume", tmp_path / "alone", "--steps", 6, "--run-dir", tmp_path / "on") ==
            f"meshwright: --resume: {tmp_path}/alone is a checkpoint; give its run\n")
    shutil.rmtree(run / "checkpoint")
    (run / "checkpoint").mkdir()
    assert (refused("train", job, "--steps", 6, "--run-dir", run) ==
            f"meshwright: --run-dir: {run} already holds a run; choose another folder\n")


def test_an_epsilon_that_no_float_holds(job, tmp_path):
    job.write_text(job.read_text().replace("warmup", "epsilon = 1e-46\nwarmup"))
    told = refused("train", job, "--steps", 1, "--run-dir", tmp_path / "run")
    assert "train.epsilon: must be above 0: a weight without gradients would become 0/0" in told

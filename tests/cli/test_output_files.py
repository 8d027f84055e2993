"""Files that a command writes at its end: whole, or as they were."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)
STEP = ["simulate", "examples/gpt-micro.toml", "--cluster", "selene", "--plan", "dp=2,pp=2,microbatches=4", "--advice", "none"]


def call(*arguments, **options):
    return subprocess.run([BINARY, *map(str, arguments)], cwd=ROOT, text=True, stderr=subprocess.PIPE, **options)


def four_kib():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_standard_output_that_is_a_file_holds_all_that_is_written_to_it(tmp_path, mode):
    alone = tmp_path / "t.json"
    assert call(*STEP, "--trace", alone, stdout=subprocess.DEVNULL).returncode == 0
    both = tmp_path / "both.txt"
    both.write_text("before\n")
    with open(both, mode) as out:
        done = call(*STEP, "--trace", "/dev/stdout", stdout=out)
    assert (done.returncode, done.stderr) == (0, "")
    text = both.read_text()
    assert text.startswith("before\n") == (mode == "a")
    told = call(*STEP, stdout=subprocess.PIPE).stdout.splitlines()[0]
    assert alone.read_text() in text and text.index(alone.read_text()[:100]) < text.index("\n" + told)


def test_a_drawing_and_its_csv_go_to_one_file(tmp_path):
    with open(tmp_path / "o.txt", "w") as out:
        assert call("schedule", "zb-h1", "--stages", 2, "--microbatches", 2, "--csv", "/dev/stdout", stdout=out).returncode == 0
    text = (tmp_path / "o.txt").read_text()
    assert text.startswith("0F0,") and "zb-h1: 2 ranks, 2 microbatches" in text and "makespan" in text


def test_what_cannot_be_written_whole_leaves_the_old_file_and_no_new_one(tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("old\n")
    for path in (old, new):
        done = call(*STEP, "--report", path, stdout=subprocess.DEVNULL, preexec_fn=four_kib)
        assert (done.returncode, done.stderr) == (2, f"meshwright: {path}: cannot write: File too large\n")
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"] and old.read_text() == "old\n"


def test_a_new_text_keeps_the_files_rights_and_a_link(tmp_path):
    held, link = tmp_path / "held.json", tmp_path / "link.json"
    held.write_text("old")
    held.chmod(0o640)
    link.symlink_to(held)
    for path in (held, link):
        assert call(*STEP, "--trace", path, stdout=subprocess.DEVNULL).returncode == 0
        assert held.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
        assert json.loads(held.read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.json", "link.json"]


def test_a_text_is_written_in_place_where_its_file_has_another_name_or_the_new_ones_place_is_taken(tmp_path):
    held, hard, part = tmp_path / "held.json", tmp_path / "hard.json", tmp_path / "held.json.part"
    held.write_text("old")
    hard.hardlink_to(held)
    assert call(*STEP, "--trace", held, stdout=subprocess.DEVNULL).returncode == 0
    assert json.loads(hard.read_text())["traceEvents"]
    hard.unlink()
    part.write_text("another's")
    assert call(*STEP, "--trace", held, stdout=subprocess.DEVNULL).returncode == 0
    assert part.read_text() == "another's"


def test_standard_error_that_is_a_file_keeps_what_was_written_before(tmp_path):
    told = tmp_path / "told.txt"
    with open(told, "w") as err:
        err.write("before\n")
        err.flush()
        done = subprocess.run([BINARY, *STEP, "--trace", "/dev/stderr"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=err)
    assert done.returncode == 0
    text = told.read_text()
    assert text.startswith("before\n") and json.loads(text.removeprefix("before\n"))["traceEvents"]


def test_a_named_pipe_is_opened_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert call(*STEP, "--trace", pipe, stdout=subprocess.DEVNULL, timeout=60).returncode == 0
        assert json.loads(reader.communicate(timeout=60)[0])["traceEvents"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("line", [["--help"], ["simulate", "--help"], [*STEP], [*STEP, "--json"]])
def test_output_that_is_full_is_told(line):
    with open("/dev/full", "w") as full:
        done = call(*line, stdout=full)
    assert (done.returncode, done.stderr) == (1, "meshwright: standard output: cannot be written: No space left on device\n")


@pytest.mark.parametrize("text", ["", "null", "dp=2"])
@pytest.mark.parametrize("command", [["verify", "examples/gpt-micro.toml"], ["simulate", "examples/gpt-micro.toml", "--cluster", "selene"]])
def test_a_plan_file_that_holds_no_plan_is_refused(tmp_path, command, text):
    (tmp_path / "p.json").write_text(text)
    done = call(*command, "--plan", tmp_path / "p.json", stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (2, f"meshwright: {tmp_path}/p.json: must be a JSON object, a plan\n")

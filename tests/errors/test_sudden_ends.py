"""What ends a command from outside: no memory, and a file that is cut short while it is read. A word and exit code 1."""

import os
import pathlib
import resource
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

VERSE = "In the beginning God created the heaven and the earth. And the earth was without form, and void.\n"


def begin(*arguments, mebibytes=None):
    """A process that has so much address space."""
    most = resource.RLIM_INFINITY if mebibytes is None else mebibytes << 20
    return subprocess.Popen([meshwright.BINARY, *map(str, arguments)], cwd=meshwright.ROOT, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))


def end(process):
    told = process.communicate(timeout=120)[1]
    return process.returncode, told


@pytest.fixture
def job(tmp_path):
    (tmp_path / "text.txt").write_text(VERSE * 700)
    return meshwright.write_job(tmp_path / "job.toml", model=meshwright.ROOT / "models/gpt-micro.json", data=tmp_path / "text.txt",
                                seq_len=64, global_batch=16, checkpoint_every=1)


def test_a_run_without_memory_says_so(job, tmp_path):
    """Wherever it ends: in the compiler, in a rank's arenas, in a thread's stack. The first sizes are too small, the last is not."""
    told = []
    for mebibytes in range(80, 2000, 20):
        code, text = end(begin("train", job, "--plan", "dp=1", "--steps", 1, "--run-dir", tmp_path / f"run-{mebibytes}",
                               "--threads-per-rank", 1, "--quiet", mebibytes=mebibytes))
        if code == 0:
            break
        told.append(text)
        assert code in (1, 2), (mebibytes, code, text)
        assert any(words in text for words in ("out of memory", "cannot allocate", "no further thread")), (mebibytes, text)
    assert code == 0 and told


def test_a_schedule_without_memory_says_so():
    line = ("schedule", "1f1b", "--stages", 256, "--microbatches", 4096, "--json")
    assert end(begin(*line, mebibytes=96)) == (1, "meshwright: out of memory\n")


def test_a_text_that_is_cut_short_ends_the_run_with_a_word(job, tmp_path):
    run = tmp_path / "run"
    process = begin("train", job, "--plan", "dp=1", "--steps", 100000, "--run-dir", run, "--quiet")
    latest = time.monotonic() + 60
    while not list((run / "checkpoint").glob("step-??????")):
        assert process.poll() is None and time.monotonic() < latest
        time.sleep(0.001)
    os.truncate(tmp_path / "text.txt", 10)
    assert end(process) == (1, "meshwright: a file was cut short, or could not be read, while it was in use\n")
    assert meshwright.execute(["checkpoint", "verify", run]).returncode == 0

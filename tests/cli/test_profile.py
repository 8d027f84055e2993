"""`meshwright profile`: what it refuses before it allocates anything."""

import pathlib
import re
import resource
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

GIB = 2**30


def refused(*arguments, most=2 * GIB):
    """The message of a profile that has so much address space."""
    done = subprocess.run([str(meshwright.BINARY), "profile", *arguments], cwd=meshwright.ROOT, capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
    assert done.returncode == 2, done.stderr
    return done.stderr.removeprefix("meshwright: ").rstrip("\n")


def test_a_step_that_the_memory_has_no_room_for_is_refused_with_what_fits():
    message = refused("--model", "gpt-1.7b", "--batch", "64", most=96 * GIB)
    assert message.startswith("models/gpt-1.7b.json: a step of 64 sequences of 2048 needs ") and " are available" in message
    message = refused("--model", "gpt-7.5b")
    assert "models/gpt-7.5b.json: a step of 8 sequences of 2048 needs " in message
    assert " are available; one sequence needs " in message and message.endswith("so give a shorter --seq-len or a smaller model")


def test_the_batch_that_is_offered_has_room():
    message = refused("--model", "gpt-tiny", "--batch", "512")
    batch = message.split("--batch ")[1].split(" ")[0]
    assert message.endswith(f"--batch {batch} fits") and 8 <= int(batch) < 512
    done = subprocess.run([str(meshwright.BINARY), "profile", "--batch", "2", "--seq-len", "32"], cwd=meshwright.ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0 and "gpt-tiny.json with 2 sequences of 32" in done.stdout
    cores = re.search(r"^cores = (\d+)", done.stdout, re.MULTILINE).group(1)
    assert ("\n[measured]\nhidden = [320, 320]\nsequence = [32, 32]\nmicrobatch = [1, 2]\n"
            f'devices = [1, {cores}]\nprecision = ["f32"]\n') in done.stdout


def test_models_without_kernels_and_sequences_that_are_too_long_are_refused():
    assert refused("--model", "models/mixtral-8x7b.json") == ("models/mixtral-8x7b.json: has a mixture of experts, which has no kernels to "
                                                              "measure yet; give a model without")
    assert refused("--seq-len", "1000") == "--seq-len: is 1000, but models/gpt-tiny.json has 256 positions; use at most 256"

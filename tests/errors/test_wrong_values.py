"""Wrong values in bulk: every key of a job, of a plan and of a model's config, misspelt, missing, of a wrong type or out of
range. Each must be refused with exit code 2 in a message that names the file and the key. The literal texts of the kinds of
messages are in test_errors.py. A seeded sample, all of them with MESHWRIGHT_TEST_ALL=1.
"""

import json
import pathlib
import random
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

SAMPLE = 40
JOB = {
    "": {"model": '"model.json"', "seed": "1", "plan": '"dp=1"'},
    "data": {"file": '"text.txt"', "seq_len": "64", "valid_fraction": "0.2"},
    "train": {"global_batch": "16", "steps": "200", "lr": "3e-4", "min_lr": "3e-5", "warmup": "50", "weight_decay": "0.1",
              "beta1": "0.9", "beta2": "0.95", "epsilon": "1e-8", "clip": "1.0"},
    "eval": {"every": "50", "batches": "2"},
    "checkpoint": {"every": "50", "keep": "2"},
}
REQUIRED = {"model", "data.file", "data.seq_len", "train.global_batch", "train.steps", "train.lr"}
PLAN = {"dp": "1", "tp": "1", "pp": "1", "chunks": "1", "microbatches": "1", "zero": "0"}
CONFIG = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")


def job_text(wrong: dict) -> str:
    """A job with some (section, key) replaced: by (key, value), or by None, left out."""
    lines = []
    for section, keys in JOB.items():
        if section:
            lines.append(f"[{section}]")
        for key, value in keys.items():
            name, text = wrong.get((section, key), (key, value)) or (None, None)
            if name:
                lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"


def misspelt(key: str) -> str:
    return key[:-1] + "x" if len(key) > 3 else key + "x"


def job_cases():
    for section, keys in JOB.items():
        for key, value in keys.items():
            path = f"{section}.{key}" if section else key
            wrong_path = f"{section}.{misspelt(key)}" if section else misspelt(key)
            yield f"{path} misspelt", job_text({(section, key): (misspelt(key), value)}), f"{wrong_path}: unknown key"
            if path in REQUIRED:
                yield f"{path} missing", job_text({(section, key): None}), f"{path}: is missing; must be "
            bad = ["true", "[1]"] + (["1", '""'] if value.startswith('"') else ['"x"', "nan"] + ["-1"] * (key != "seed"))
            for text in bad:
                if (key, text) != ("plan", '""'):
                    yield f"{path}={text}", job_text({(section, key): (key, text)}), f"{path}: must be "


JOB_CASES = list(job_cases())
PLAN_CASES = [(key, value) for key in PLAN for value in ("0", "-1", "x", "1.5", "", "99999999999999999999")
              if (key, value) != ("zero", "0")]
CONFIG_CASES = [(key, value) for key in CONFIG for value in (0, -1, "x", 1.5, [1])]  # null is the default


def sampled(cases: list) -> list:
    return cases if meshwright.EVERYTHING else random.Random(meshwright.SEED).sample(cases, min(len(cases), SAMPLE // 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("wrong")
    shutil.copy(meshwright.ROOT / "models/gpt-micro.json", d / "model.json")
    (d / "text.txt").write_bytes(b"In the beginning God created the heaven and the earth.\n" * 500)
    return d


def refused(folder, arguments, *parts):
    before = sorted(folder.iterdir())
    done = meshwright.execute(["train", *arguments, "--steps", 1, "--run-dir", folder / "run"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("meshwright: ") and done.stderr.endswith("\n")
    for part in parts:
        assert part in done.stderr, f"{done.stderr}\nmust have\n{part}"
    assert "internal error" not in done.stderr and "rror while" not in done.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name, text, part", sampled(JOB_CASES), ids=lambda value: None)
def test_a_wrong_job(folder, name, text, part):
    job = folder / "job.toml"
    job.write_text(text)
    refused(folder, [job], f"{job}:" if "missing" not in name else str(job), part)


@pytest.mark.parametrize("key, value", sampled(PLAN_CASES))
def test_a_wrong_plan(folder, key, value):
    job = folder / "job.toml"
    job.write_text(job_text({}))
    refused(folder, [job, "--plan", f"{key}={value}"], f"--plan: {key}: must be an integer ")


@pytest.mark.parametrize("key, value", sampled(CONFIG_CASES))
def test_a_wrong_config(folder, key, value):
    job, config = folder / "job.toml", folder / "wrong.json"
    job.write_text(job_text({}))
    values = json.loads((folder / "model.json").read_text())
    values[key] = value
    config.write_text(json.dumps(values))
    refused(folder, [job, "--model", config], f"{config}: {key}: must be ")


def test_the_job_that_all_of_them_spoil_is_right(folder):
    job = folder / "job.toml"
    job.write_text(job_text({}))
    assert meshwright.execute(["verify", job]).returncode == 0

"""The published runs, and the program on them."""

import csv
import pathlib
import subprocess

import meshwright

RUNS = (meshwright.ROOT / "data" / "published" / "runs.csv").read_text().splitlines()
FIRST = next(r for r in RUNS if "2205.05198 Table 5" in r and "GPT-22B" in r)


def call(*arguments):
    return subprocess.run([str(meshwright.BINARY), *map(str, arguments)], cwd=meshwright.ROOT, capture_output=True, text=True)


def write_few(path: pathlib.Path) -> pathlib.Path:
    """The SP paper's runs of 22B and 175B, and one mixture of experts in an unknown form."""
    rows = [r for r in RUNS if "2205.05198 Table 5" in r and ("GPT-22B" in r or "GPT-175B" in r)]
    mixture = next(r for r in RUNS if "Qwen3-30B" in r).replace("E128k8s0f768", "E128")
    path.write_text("\n".join([RUNS[0], *rows, mixture]) + "\n")
    return path


def written(path, *changes):
    """A file of the SP paper's first row, once with each of the changes."""
    head, row = RUNS[0].split(","), dict(zip(RUNS[0].split(","), next(csv.reader([FIRST]))))
    with open(path, "w", newline="") as text:
        writer = csv.DictWriter(text, head)
        writer.writeheader()
        writer.writerows({**row, **change} for change in changes)
    return path

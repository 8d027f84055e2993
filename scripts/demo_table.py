#!/usr/bin/env python3
"""Two runs side by side: demo_table.py RUN BASE, where RUN.json and BASE.json hold `train --json`'s line."""

import json
import pathlib
import sys

ROWS = 8


def read(folder: pathlib.Path) -> tuple[dict, dict[int, dict]]:
    """The run's results and its metrics by step."""
    results = json.loads(folder.with_name(folder.name + ".json").read_text().splitlines()[-1])
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return results, {line["step"]: line for line in lines}


def shown_steps(last: int) -> list[int]:
    """About ROWS steps from 1 to the last, evenly."""
    return sorted({1 + round(i * (last - 1) / (ROWS - 1)) for i in range(ROWS)})


def relative(a: float, b: float) -> str:
    return f"{abs(a - b) / abs(b):.1e}" if a != b else "equal"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    names = [pathlib.Path(argument) for argument in sys.argv[1:]]
    (run, run_steps), (base, base_steps) = (read(name) for name in names)
    print(f"{'':24}{names[0].name:>16}{names[1].name:>16}   relative difference")
    for step in shown_steps(run["steps"]):
        a, b = run_steps[step]["loss"], base_steps[step]["loss"]
        print(f"{f'loss, step {step}':24}{a:16.6f}{b:16.6f}   {relative(a, b)}")
    if "held_out_loss" in run:
        a, b = run["held_out_loss"], base["held_out_loss"]
        print(f"{'held-out loss':24}{a:16.6f}{b:16.6f}   {relative(a, b)}")
    print(f"{'tokens/s, median':24}{run['tokens_per_s']:16,.0f}{base['tokens_per_s']:16,.0f}")
    for name, key in (("peak memory a rank", "peak_bytes_per_rank"), ("sent a step, all ranks", "bytes_sent_per_step")):
        print(f"{name:24}" + "".join(f"{result[key] / 2**20:12,.1f} MiB" for result in (run, base)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

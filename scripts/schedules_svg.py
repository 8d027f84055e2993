#!/usr/bin/env python3
"""Draws one pipeline under three schedules at one scale: schedules_svg.py BINARY > docs/schedules.svg

The order of work comes from the compiled rank programs (`BINARY inspect program`), 4 pipeline ranks and 8 microbatches of
examples/gpt-tiny.toml. Times are those of a model: a forward of a quarter of the layers takes 2 units, a backward 4, a
chunk of an eighth half of that, messages nothing; work begins when its rank is free and what it needs is there.
"""

import re
import subprocess
import sys

JOB = "examples/gpt-tiny.toml"
RANKS, MICROBATCHES = 4, 8
PLANS = [("GPipe", "gpipe", 1), ("1F1B", "1f1b", 1), ("interleaved 1F1B, 2 chunks", "interleaved-1f1b", 2)]
UNIT, ROW, LEFT, GAP, MARGIN = 11, 20, 52, 18, 10
FORWARD, BACKWARD = ("#9ecae9", "#3f8fcf"), ("#f9c78b", "#e5832a")  # first chunk, second chunk
LEGEND = [("forward", FORWARD[0]), ("forward, second chunk", FORWARD[1]), ("backward", BACKWARD[0]),
          ("backward, second chunk", BACKWARD[1]), ("idle", "#eee")]


def actions(binary: str, schedule: str, chunks: int) -> list[list[tuple[str, int, int]]]:
    """[rank] (F or B, stage, microbatch) in order."""
    plan = f"pp={RANKS},schedule={schedule},chunks={chunks},microbatches={MICROBATCHES}"
    ranks = []
    for rank in range(RANKS):
        text = subprocess.run([binary, "inspect", "program", JOB, "--plan", plan, "--rank", str(rank)], check=True,
                              capture_output=True, text=True).stdout
        calls = re.findall(r"^ *\d+ call +(\d+)([FB])(\d+) ", text, re.MULTILINE)
        ranks.append([(kind, int(stage), int(microbatch)) for stage, kind, microbatch in calls])
    return ranks


def times(ranks: list[list[tuple[str, int, int]]], chunks: int) -> dict[tuple[str, int, int], tuple[int, int]]:
    """When every piece of work begins and ends."""
    last = RANKS * chunks - 1
    done: dict[tuple[str, int, int], tuple[int, int]] = {}
    free, at = [0] * RANKS, [0] * RANKS
    while any(at[r] < len(ranks[r]) for r in range(RANKS)):
        moved = False
        for r in range(RANKS):
            while at[r] < len(ranks[r]):
                kind, stage, microbatch = ranks[r][at[r]]
                if kind == "F":
                    needs = [("F", stage - 1, microbatch)] if stage > 0 else []
                else:
                    needs = [("B", stage + 1, microbatch)] if stage < last else [("F", stage, microbatch)]
                if any(need not in done for need in needs):
                    break
                begin = max([free[r]] + [done[need][1] for need in needs])
                free[r] = begin + (2 if kind == "F" else 4) // chunks
                done[kind, stage, microbatch] = (begin, free[r])
                at[r] += 1
                moved = True
        if not moved:
            raise ValueError("the schedule does not run")
    return done


def alive(ranks: list[list[tuple[str, int, int]]]) -> int:
    """The most forwards on rank 0 whose backward has not begun."""
    count = most = 0
    for kind, _, _ in ranks[0]:
        count += 1 if kind == "F" else -1
        most = max(most, count)
    return most


def panel(name: str, ranks, chunks: int, top: int) -> tuple[list[str], int]:
    done = times(ranks, chunks)
    span = max(end for _, end in done.values())
    idle = 1 - MICROBATCHES * 6 / span
    share = alive(ranks) / chunks
    lines = [f'<text x="0" y="{top + 12}"><tspan class="name">{name}</tspan> {span} units, {idle:.0%} idle; '
             f"rank 0 keeps the activations of {share:g} microbatches</text>"]
    for rank in range(RANKS):
        y = top + 20 + rank * ROW
        lines.append(f'<text x="0" y="{y + 13}">rank {rank}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{span * UNIT}" height="{ROW - 2}" fill="{LEGEND[-1][1]}"/>')
        for kind, stage, microbatch in ranks[rank]:
            begin, end = done[kind, stage, microbatch]
            color = (FORWARD if kind == "F" else BACKWARD)[stage // RANKS]
            x, width = LEFT + begin * UNIT, (end - begin) * UNIT
            lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 2}" fill="{color}" stroke="#fff"/>')
            lines.append(f'<text x="{x + width / 2:g}" y="{y + 13}" text-anchor="middle" class="n">{microbatch}</text>')
    return lines, span


def legend(top: int) -> list[str]:
    lines, x = [], LEFT
    for name, color in LEGEND:
        lines.append(f'<rect x="{x}" y="{top + 1}" width="14" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 19}" y="{top + 11}" class="n">{name}</text>')
        x += 38 + 6 * len(name)
    return lines


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    lines, spans, top = [], [], 0
    for name, schedule, chunks in PLANS:
        made, span = panel(name, actions(sys.argv[1], schedule, chunks), chunks, top)
        lines += made
        spans.append(span)
        top += 20 + RANKS * ROW + GAP
    lines += legend(top)
    top += 14
    width, height = LEFT + max(spans) * UNIT + 2 * MARGIN, top + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {width} {height}" width="{width}" '
          f'height="{height}">')
    print("<style>text{font:12px sans-serif;fill:#444}.name{font-weight:bold;fill:#111}.n{font-size:10px;fill:#222}</style>")
    print(f'<rect x="{-MARGIN}" y="{-MARGIN}" width="{width}" height="{height}" fill="#fff"/>')
    print("\n".join(lines))
    print("</svg>")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""meshwright schedule: figures, drawings, files and errors of the command."""

import csv
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

GOLDEN = meshwright.ROOT / "tests" / "golden" / "schedules"
KINDS = ("gpipe 1f1b interleaved-1f1b looped-bfs chimera chimera-doubling chimera-halving zb-h1 zb-h2 zb-v zb-auto "
         "interleaved-zb v-half v-min hanayo dualpipe dualpipe-v seq-1f1b pipedream-2bw").split()


def schedule(*arguments, expect: int = 0) -> str:
    """Standard output, or standard error where the command fails."""
    done = meshwright.execute(["schedule", *arguments])
    assert done.returncode == expect, f"{arguments}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr if expect else done.stdout


def figures(kind, stages, microbatches, *more):
    return json.loads(schedule(kind, "--stages", stages, "--microbatches", microbatches, "--json", *more))


@pytest.mark.parametrize("kind, stages, microbatches, makespan, bubble, span_bubble, peak, copies", [
    ("1f1b", 4, 8, 33, 9 / 33, 9 / 33, 4, 1),
    ("zb-h2", 4, 8, 27, 3 / 27, 0, 7, 1),
    ("zb-v", 8, 16, 103, 7 / 103, 0, 8, 1),
    ("interleaved-1f1b", 8, 16, 117, 21 / 117, 21 / 117, 11.5, 1),
    ("chimera", 4, 16, 58, 10 / 58, 10 / 58, 4, 2),
    ("dualpipe", 8, 20, 66, 6 / 66, 6 / 66, 9, 2),
    ("v-half", 4, 8, 53, 5 / 53, 5 / 53, 3, 1),
    ("v-min", 4, 8, 59, 11 / 59, None, 2, 1),
])
def test_figures_are_those_of_the_papers(kind, stages, microbatches, makespan, bubble, span_bubble, peak, copies):
    got = figures(kind, stages, microbatches)
    assert got["makespan"] == makespan
    assert got["bubble"] == pytest.approx(bubble)
    if span_bubble is not None:
        assert got["span_bubble"] == pytest.approx(span_bubble, abs=1e-12)
    assert len(got["peak_activations"]) == stages and max(got["peak_activations"]) == peak
    assert got["weight_copies"] == copies


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_written_and_read_again(kind, tmp_path):
    text = schedule(kind, "--stages", 4, "--microbatches", 8, "--csv", tmp_path / "s.csv", "--svg", tmp_path / "s.svg")
    rows = [line for line in text.splitlines() if line.startswith("rank ")]
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1
    assert "\x1b" not in text, "no colour when not on a terminal"
    xml.etree.ElementTree.parse(tmp_path / "s.svg")
    made, read = figures(kind, 4, 8), json.loads(schedule("--from", tmp_path / "s.csv", "--json"))
    if kind not in ("chimera-halving", "pipedream-2bw"):  # parts and stale weights are no part of the format
        assert read["makespan"] == pytest.approx(made["makespan"])
        assert read["peak_activations"] == pytest.approx(made["peak_activations"])


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_csv_with_messages_is_torchs(name, tmp_path):
    kind = {"1F1B": "1f1b", "ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipe-v"}[name]
    schedule(kind, "--stages", 4, "--microbatches", 8, "--csv", tmp_path / "s.csv", "--comms")
    assert (tmp_path / "s.csv").read_text().split() == (GOLDEN / f"{name}_pp4_m8_comms.csv").read_text().split()
    schedule("--from", GOLDEN / f"{name}_pp4_m8_comms.csv")


def test_an_order_with_reductions_and_no_messages_is_compute_alone(tmp_path):
    """What torch 2.13's ScheduleGPipe._get_pipeline_order() gives for 2 ranks and 3 microbatches."""
    (tmp_path / "s.csv").write_text("0F0,0F1,0F2,,,0B0,0B1,0B2,0REDUCE_GRAD\n,1F0,1F1,1F2,1B0,1B1,1B2,1REDUCE_GRAD\n")
    got = json.loads(schedule("--from", tmp_path / "s.csv", "--csv", tmp_path / "t.csv", "--comms", "--json"))
    assert got["makespan"] == figures("gpipe", 2, 3)["makespan"]
    schedule("gpipe", "--stages", 2, "--microbatches", 3, "--csv", tmp_path / "u.csv", "--comms")
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "u.csv").read_text()


def test_zero_bubble_rates_of_the_heuristic():
    h, a, s = 2304, 24, 1024
    costs = "f=18.522,b=18.086,w=9.337,comm=0.601"
    memory = f"mb={34 * h + 5 * a * s},mw={32 * h}"
    for limit, rate in ((8, 0.1585), (16, 0.0433)):
        got = figures("zb-auto", 8, 24, "--costs", costs, "--memory", memory, "--memory-limit", limit)
        assert round(got["span_bubble"], 4) == rate
        assert max(got["peak_activations"]) <= limit + 1e-6


def interleaved_span(p: int, m: int, chunks: int, f: float, b: float, comm: float, *, waits: str) -> float:
    """Interleaved 1F1B in Megatron-LM's order. `waits`: which microbatches of a round of p wait on the first (last) rank for the
    message of the last (first) rank: "all" or the "first" alone."""
    def unit(i: int) -> tuple[int, int]:
        return i // (p * chunks) * p + i % p, i % (p * chunks) // p

    orders = []
    for r in range(p):
        warm_up = min(2 * (p - r - 1) + (chunks - 1) * p, m * chunks)
        steady = m * chunks - warm_up
        orders.append("F" * warm_up + "FB" * steady + "B" * warm_up)
    ends, now, at, count = {}, [0.0] * p, [0] * p, [{"F": 0, "B": 0} for _ in range(p)]
    moved = True
    while moved:
        moved = False
        for r in range(p):
            while at[r] < len(orders[r]):
                kind = orders[r][at[r]]
                k, chunk = unit(count[r][kind])
                step, end = (-1, 0) if kind == "F" else (1, p - 1)
                needs = [(kind, r + step, k, chunk, comm)] if r != end else []
                if r == end and chunk > 0 and (waits == "all" or k % p == 0):
                    needs = [(kind, p - 1 - r, k, chunk - 1, comm)]
                if kind == "B" and waits == "all":
                    needs.append(("F", r, k, chunks - 1 - chunk, 0.0))
                if any(need[:4] not in ends for need in needs):
                    break
                begin = max([now[r], *(ends[need[:4]] + need[4] for need in needs)])
                now[r] = ends[kind, r, k, chunk] = begin + (f if kind == "F" else b)
                count[r][kind] += 1
                at[r] += 1
                moved = True
    assert all(at[r] == len(orders[r]) for r in range(p))
    return max(now)


def test_zero_bubbles_interleaved_rates_are_of_rounds_whose_first_microbatch_alone_waits():
    """The column's four decimals are those of a simulation that leaves out what the others of a round wait for [as the authors'
    sail-sg/zero-bubble-pipeline-parallelism@f68d3879 megatron/core/pipeline_parallel/interleave.py]; with it they are higher."""
    with (GOLDEN / "zero_bubble.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for row in rows:
        p, m, chunks = int(row["p"]), int(row["m"]), (int(row["layers"]) + 2) // int(row["p"])
        f, b, w, comm = (float(row[key]) for key in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms"))

        def span(waits: str) -> float:
            return interleaved_span(p, m, chunks, f / chunks, (b + w) / chunks, comm, waits=waits)
        assert round(1 - m * (f + b + w) / span("first"), 4) == float(row["rate_interleaved_1_layer_per_chunk"])
        got = figures("interleaved-1f1b", p, m, "--chunks", chunks,
                      "--costs", f"f={f / chunks},b={b / chunks},w={w / chunks},comm={comm}")
        assert got["makespan"] == pytest.approx(span("all"), rel=1e-9)
        assert got["makespan"] - span("first") == pytest.approx(p * comm, rel=1e-6)


@pytest.mark.parametrize("kind, stages, microbatches, work", [
    ("zb-h2", 4, 8, 24), ("zb-h2", 8, 16, 48), ("zb-v", 4, 8, 48), ("zb-v", 8, 16, 96),
])
def test_with_post_validation_steps_follow_each_other_without_a_bubble(kind, stages, microbatches, work):
    synchronous = figures(kind, stages, microbatches)
    assert synchronous["period"] == synchronous["makespan"] > work
    got = figures(kind, stages, microbatches, "--post-validation")
    assert got["makespan"] == synchronous["makespan"]
    assert got["period"] == pytest.approx(work)
    assert got["period_bubble"] == pytest.approx(0, abs=1e-12) == synchronous["span_bubble"]
    assert f"a step every {work} (bubble 0.0000)" in schedule(
        kind, "--stages", stages, "--microbatches", microbatches, "--post-validation")
    assert "pipedream-2bw: has no post-validation" in schedule(
        "pipedream-2bw", "--stages", 2, "--microbatches", 2, "--post-validation", expect=2)


def test_replicas_that_are_summed_early_are_hidden_in_the_bubbles():
    def makespan(*more):
        return figures("chimera", 8, 8, "--costs", "sync=2", *more)["makespan"]

    alone = figures("chimera", 8, 8)["makespan"]
    assert alone + 2 <= makespan() <= alone + 4, "two stages a rank, one sum after the other"
    assert alone + 2 <= makespan("--sync", "eager") <= makespan("--sync", "eager-opt") < makespan()
    assert "schedule 1f1b: has no gradient synchronisation to choose, an option of chimera" in schedule(
        "1f1b", "--stages", 2, "--microbatches", 2, "--sync", "eager", expect=2)


def test_one_rank_and_one_microbatch():
    text = schedule("1f1b", "--stages", 1, "--microbatches", 1)
    assert text.startswith("1f1b: 1 rank, 1 microbatch\nrank 0 |")
    assert "makespan 3, bubble 0.0000 (without a flush 0.0000)" in text


def test_a_large_v_half_is_drawn_in_no_time():
    """64 ranks and 512 microbatches: 196,608 actions."""
    begin = time.perf_counter()
    got = figures("v-half", 64, 512)
    assert got["makespan"] == 6 * 512 + 3 * 64 - 7
    assert time.perf_counter() - begin < 5, "2.7 s of it was the generator's once; the bound is for slow machines"


def test_compare_has_one_time_scale():
    got = figures("1f1b", 4, 8, "--compare", "zb-v,interleaved-1f1b")
    assert [one["schedule"] for one in got] == ["1f1b", "zb-v", "interleaved-1f1b"]
    assert [one["makespan"] for one in got] == [33, 25.5, 28.5]
    assert figures("1f1b", 4, 8, "--compare", "zb-v", "--compare", "interleaved-1f1b") == got
    alone = json.loads(schedule("--compare", "1f1b,zb-v,interleaved-1f1b", "--stages", 4, "--microbatches", 8, "--json"))
    assert alone == got


def test_errors_come_together_with_exit_code_2(tmp_path):
    text = schedule("chimera", "--stages", 5, "--microbatches", 8, "--memory-limit", 2, "--compare", "dualpipe",
                    expect=2)
    assert "schedule chimera: has no memory limit, an option of zb-auto" in text
    assert "schedule chimera: ranks=5 must be even; use 4 or 6" in text
    assert "schedule dualpipe: ranks=5 must be even; use 4 or 6" in text
    assert "did you mean 'zb-h1'" in schedule("zb-h3", "--stages", 2, "--microbatches", 2, expect=2)
    assert "--stages: is missing" in schedule("1f1b", expect=2)
    (tmp_path / "bad.csv").write_text("0F0,0B0\n1F0,1X0\n")
    assert "bad.csv:2: cell 2 is '1X0'" in schedule("--from", tmp_path / "bad.csv", expect=2)
    (tmp_path / "late.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    assert "rank 1 waits forever at action 0 (1F1) for 0F1 of rank 0" in schedule(
        "--from", tmp_path / "late.csv", expect=2)


@pytest.mark.parametrize("kind, microbatches, lost", [
    ("chimera-halving", 2, "parts of microbatches are microbatches there"),
    ("pipedream-2bw", 2, "older weights, without which the order ends in a flush"),
    ("chimera-doubling", 1, "replicas that have no work"), ("chimera-doubling", 2, ""), ("chimera", 2, ""), ("seq-1f1b", 2, "")])
def test_what_the_file_has_no_word_for_is_said(kind, microbatches, lost, tmp_path):
    done = meshwright.execute(["schedule", kind, "--stages", 2, "--microbatches", microbatches, "--csv", tmp_path / "s.csv"])
    assert done.returncode == 0
    assert done.stderr == (f"meshwright: {tmp_path}/s.csv: --from reads another schedule than {kind}: {lost}\n"
                           if lost else "")


# The figures of docs/schedules.md.
def test_an_order_without_a_flush_is_read_as_one_with_it(tmp_path):
    assert figures("pipedream-2bw", 4, 8, "--csv", tmp_path / "s.csv")["makespan"] == 24
    assert json.loads(schedule("--from", tmp_path / "s.csv", "--json"))["makespan"] == figures("1f1b", 4, 8)["makespan"] == 33


def test_costs_sizes_and_paths_that_are_wrong_are_said_at_once():
    text = schedule("chimera", "--stages", 5, "--microbatches", 4, "--costs", "f=x", "--svg", "/nowhere/a.svg", "--csv",
                    "/", expect=2)
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "meshwright", "schedule chimera", "/", "/nowhere/a.svg"]
    assert "--costs: 'x' is no number" in text and "ranks=5 must be even; use 4 or 6" in text


NO_KEY = "'{}' is not of the form key=number; keys are f, b, w, comm, pair, sync"


@pytest.mark.parametrize("option, value, told", [
    ("--costs", "f", "f has no value; give it one, as in f=1"),
    ("--costs", "comm=", "comm has no value; give it one, as in comm=1"),
    ("--costs", "ff=1", NO_KEY.format("ff=1") + ", did you mean 'f'?"),
    ("--costs", "f=1,", NO_KEY.format("")),
    ("--costs", "f=nan", "'nan' is no number; it must be as in 1.5, or 1:1:2:1 with one for each stage"),
    ("--costs", "f=1:inf:1:1", "'inf' is no number; it must be as in 1.5, or 1:1:2:1 with one for each stage"),
    ("--costs", "comm=nan", "'nan' is no number; it must be as in 1.5"),
    ("--memory", "mb=nan", "'nan' is no number; it must be as in 1.5"),
    ("--memory", "mb=1:2:1:1", "mb is one number, not one a stage"),
    ("--costs", "", "must not be empty"),
    ("--memory", "", "must not be empty"),
    ("--compare", "", "a name is empty; names are as in zb-h1,zb-v"),
    ("--compare", "zb-h1,,zb-v", "a name is empty; names are as in zb-h1,zb-v"),
    ("--compare", "zb-h1,", "a name is empty; names are as in zb-h1,zb-v"),
    ("--stages", "99999999999999999999", "must be at most 1048576, is 99999999999999999999"),
    ("--stages", "-99999999999999999999", "must be at least 1, is -99999999999999999999"),
    ("--stages", "9e9", "must be a whole number, is '9e9'"),
    ("--chunks", "99999999999999999999", "must be at most 2147483647, is 99999999999999999999"),
    ("--chunks", "2147483648", "must be at most 2147483647, is 2147483648"),
])
def test_a_fault_of_the_line_is_one_message(option, value, told):
    stages = [] if option == "--stages" else ["--stages", 4]
    error = schedule("1f1b", *stages, "--microbatches", 4, option, value, expect=2)
    assert error.replace("(meshwright schedule --help explains all)\n", "") == f"meshwright: {option}: {told}\n"


def test_files_beyond_all_sizes_are_refused_in_a_line(tmp_path):
    for text in ("1000000F1000000", "0F1000000,0B1000000"):
        (tmp_path / "s.csv").write_text(text)
        refused = schedule("--from", tmp_path / "s.csv", expect=2)
        assert len(refused.splitlines()) == 1 and "s.csv: rank 0" in refused


def test_costs_that_do_not_fit_one_of_several_kinds_name_it():
    done = subprocess.run([meshwright.BINARY, "schedule", "zb-h1", "--compare", "zb-v", "--stages", "4", "--microbatches", "8", "--costs",
                           "f=1:1:2:1:1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2, "meshwright: zb-h1: costs: f has 5 values; with --compare it must have one, or one for each of the 4 ranks\n")


def test_compared_costs_are_none_of_stages():
    """Those would not be the other kinds' stages, nor parts of a rank's share."""
    step = ("zb-v", "--stages", 2, "--microbatches", 4, "--costs", "f=1:2:3:4")
    assert json.loads(schedule(*step, "--json"))["makespan"] == 39
    assert schedule(*step, "--compare", "v-half", expect=2) == (
        "meshwright: zb-v: costs: f has 4 values; with --compare it must have one, or one for each of the 2 ranks\n")


def test_usual_chunks_count_for_what_is_drawn(tmp_path):
    for more in ((), ("--chunks", 2), ("--csv", tmp_path / "order.csv")):
        told = schedule("zb-v", "--stages", 1024, "--microbatches", 1024, *more, expect=2)
        assert told == "meshwright: --stages, --microbatches, --chunks: 1024 x 1024 x 2 is more than the 1048576 that are drawn\n"
    assert not (tmp_path / "order.csv").exists()


def test_compared_kinds_share_costs_of_ranks():
    step = ["--stages", 4, "--microbatches", 8, "--costs", "f=1:1:2:1,b=1,w=1:3:1:1,comm=0.25", "--json"]
    kinds = json.loads(schedule("--compare", "1f1b,zb-v,interleaved-1f1b", *step))
    assert kinds[0] == json.loads(schedule("1f1b", *step))
    # A stage of half its rank's share: zb-v is folded, interleaved-1f1b goes round.
    for kind, stages in (("zb-v", [0, 1, 2, 3, 3, 2, 1, 0]), ("interleaved-1f1b", [0, 1, 2, 3] * 2)):
        halves = [":".join(str(values[rank] / 2) for rank in stages) for values in ((1, 1, 2, 1), (1, 3, 1, 1))]
        chunks = ["--chunks", 2] if kind == "interleaved-1f1b" else []
        alone = json.loads(schedule(kind, *chunks, "--stages", 4, "--microbatches", 8, "--costs",
                                    f"f={halves[0]},b=0.5,w={halves[1]},comm=0.25", "--json"))
        assert next(one for one in kinds if one["schedule"] == kind)["makespan"] == alone["makespan"]
    for kind in ("chimera", "dualpipe"):
        assert f"--costs: {kind} has every stage on 2 ranks" in schedule("--compare", f"1f1b,{kind}", *step, expect=2)


def test_figures_say_what_the_drawing_does_not_show():
    step = ("--stages", 4, "--microbatches", 4)
    assert "; behind what is drawn the sums of replicas, to 22\n" in schedule("chimera", *step, "--costs", "sync=3")
    assert "drawn" not in schedule("chimera", *step)
    assert "; drawn with a flush, which it has not\n" in schedule("pipedream-2bw", *step)


def test_what_slipped_into_another_ranks_row_is_told_there(tmp_path):
    path = tmp_path / "order.csv"
    schedule("1f1b", "--stages", 3, "--microbatches", 3, "--csv", path)
    rows = [row.split(",") for row in path.read_text().splitlines()]
    rows[2].remove("2B1")
    rows[0].insert(2, "2B1")
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    text = schedule("--from", path, expect=2)
    assert "rank 0 action 2 is 2B1, but stage 2 is on rank 2\n" in text and "but stage 2 is on rank 0" not in text
    # A W without its I or B is told at the W alone.
    path.write_text("0F0,0W0\n")
    assert schedule("--from", path, expect=2) == f"meshwright: {path}: rank 0 action 1 (0W0) has no I before it on this rank\n"


def test_compared_kinds_take_the_options_that_they_have():
    step = ("--stages", 4, "--microbatches", 8, "--json")
    kinds = json.loads(schedule("interleaved-1f1b", "--compare", "looped-bfs,hanayo,1f1b", "--chunks", 4, *step))
    assert [kind["chunks"] for kind in kinds] == [4, 4, 4, 1]
    plain, limited = json.loads(schedule("--compare", "1f1b,zb-auto", "--memory-limit", 8, *step))
    assert max(plain["peak_activations"]) == 4 and max(limited["peak_activations"]) == 8
    pairs = json.loads(schedule("chimera", "--compare", "chimera-doubling", "--pairs", 2, "--stages", 8, "--microbatches", 16, "--json"))
    assert [kind["weight_copies"] for kind in pairs] == [4, 4]
    assert "has no memory limit" in schedule("--compare", "1f1b,gpipe", "--memory-limit", 8, *step, expect=2)


@pytest.mark.parametrize("option, kind, other, name", [
    (("--group", 2), "interleaved-1f1b", "gpipe", "group"), (("--slices", 2), "seq-1f1b", "gpipe", "slices"),
    (("--pairs", 1), "chimera", "gpipe", "pairs"), (("--exact",), "zb-auto", "gpipe", "exact order"),
    (("--memory-limit", 4), "zb-auto", "gpipe", "memory limit"),
    (("--sync", "eager"), "chimera", "gpipe", "gradient synchronisation to choose")])
def test_an_option_is_of_a_compared_kind_or_refused(option, kind, other, name):
    step = ("1f1b", "--stages", 2, "--microbatches", 4, *option, "--compare")
    assert len(json.loads(schedule(*step, kind, "--json"))) == 2
    assert f"schedule 1f1b: has no {name}, an option of " in schedule(*step, other, expect=2)


def test_compared_costs_are_those_of_a_ranks_whole_share():
    step = ("--stages", 2, "--microbatches", 4, "--json")
    _, got = json.loads(schedule("1f1b", "--compare", "dualpipe-v", "--costs", "f=2,b=4,w=6,pair=8", *step))
    assert got["makespan"] == figures("dualpipe-v", 2, 4, "--costs", "f=1,b=2,w=3,pair=4")["makespan"]
    assert got["makespan"] != figures("dualpipe-v", 2, 4, "--costs", "f=1,b=2,w=3,pair=8")["makespan"]


def test_compared_drawings_have_one_time_scale():
    """A forward of zb-v's two stages a rank takes half of a forward of gpipe's one."""
    text = schedule("gpipe", "--compare", "zb-v", "--stages", 2, "--microbatches", 4)
    whole, half = [line for line in text.splitlines() if line.startswith("rank 0 |")]
    begin = len("rank 0 |")
    assert len(whole) == len(half) and whole.index("F1") - begin == 2 * (half.index("F1") - begin) > 0


def test_figures_are_of_whole_microbatches_and_of_ranks():
    halved = figures("chimera-halving", 2, 2)
    assert (halved["stages"], halved["chunks"], halved["microbatches"]) == (2, 1, 2)
    assert schedule("chimera-halving", "--stages", 2, "--microbatches", 2).startswith("chimera-halving: 2 ranks, 2 microbatches\n")
    folded = figures("zb-v", 4, 8)
    assert (folded["stages"], folded["chunks"]) == (4, 2)
    assert folded["needs"] == ["input and weight gradients apart", "a folded placement"]
    assert figures("zb-h1", 4, 8, "--memory", "mb=3") == figures("zb-h1", 4, 8, "--memory", "mb=3,mw=3")
    assert figures("zb-h1", 4, 8, "--memory", "mb=3") != figures("zb-h1", 4, 8, "--memory", "mb=3,mw=1")


def test_a_file_has_the_options_of_its_steps_and_is_compared_at_its_size(tmp_path):
    file = tmp_path / "s.csv"
    schedule("zb-h2", "--stages", 4, "--microbatches", 8, "--csv", file)
    assert json.loads(schedule("--from", file, "--post-validation", "--json"))["period"] == 24
    both = json.loads(schedule("--from", file, "--compare", "gpipe", "--json"))
    assert [(one["stages"], one["microbatches"]) for one in both] == [(4, 8), (4, 8)]
    assert "--from: stages, microbatches and chunks are those of the file" in schedule("--from", file, "--chunks", 2, expect=2)
    schedule("chimera", "--stages", 8, "--microbatches", 8, "--csv", file)
    for sync in ("end", "eager", "eager-opt"):
        options = ("--costs", "sync=2", "--sync", sync)
        assert json.loads(schedule("--from", file, *options, "--json"))["makespan"] == figures("chimera", 8, 8, *options)["makespan"]


@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal_a_drawing_has_its_width_and_its_colours(no_color):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | ({"NO_COLOR": "1"} if no_color else {})
    line = [str(meshwright.BINARY), *"schedule 1f1b --stages 2 --microbatches 16".split()]
    done = subprocess.run(line, cwd=meshwright.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=follower, timeout=60)
    os.close(follower)
    text = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 0 and ("\x1b[" in text) != no_color
    rows = [re.sub(r"\x1b\[[\d;]*m", "", row) for row in text.splitlines() if row.startswith("rank ")]
    assert len(rows) == 2 and all(30 <= len(row) <= 40 for row in rows)


def test_options_that_would_do_nothing_are_refused(tmp_path):
    error = schedule("1f1b", "--stages", 4, "--microbatches", 8, "--costs", "pair=2,sync=1", "--comms", expect=2)
    for finding in ("--comms: says how --csv writes", "--costs: pair is of F and B at the same time, which 1f1b has not",
                    "--costs: sync is of stages on several ranks, which 1f1b has not"):
        assert finding in error
    for pair, finding in (("-1", "--costs: pair=-1 must be at least 0; without it F beside B takes f + b + w"),
                          ("1e13", "costs: pair=10000000000000 must be a number of at least 0 and at most 1000000000000")):
        assert finding in schedule("dualpipe", "--stages", 2, "--microbatches", 4, "--costs", f"pair={pair}", expect=2)
    file = tmp_path / "s.csv"
    schedule("1f1b", "--stages", 2, "--microbatches", 2, "--csv", file)
    error = schedule("--from", file, "--group", 2, "--slices", 2, "--pairs", 1, "--memory-limit", 3, "--exact", expect=2)
    for option in ("--group", "--slices", "--pairs", "--memory-limit", "--exact"):
        assert f"{option}: the order is that of the file; leave it out" in error


def test_stages_on_several_ranks_of_a_file_are_said_to_be_replicas(tmp_path):
    file = tmp_path / "s.csv"
    for rows, told in (("0F0,0B0\n0F1,0B1\n", "stage 0 is on ranks 0 and 1; as no cell has a replica tag, as in 0F1^1, they are "
                        "taken as replicas of the weights"), ("0F0,0B0\n0F1^1,0B1^1\n", "")):
        file.write_text(rows)
        done = meshwright.execute(["schedule", "--from", file, "--json"])
        assert done.returncode == 0 and json.loads(done.stdout)["weight_copies"] == 2
        assert done.stderr == (f"meshwright: {file}: {told}\n" if told else "")


def test_sums_of_a_file_are_chosen_where_it_has_replicas(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("0F0,0B0\n1F0,1B0\n")
    schedule("chimera", "--stages", 4, "--microbatches", 4, "--csv", two)
    assert schedule("--from", one, "--sync", "eager", expect=2) == (
        "meshwright: --sync: the file has no gradient synchronisation to choose, as every stage is on one rank; leave it out\n")
    assert "schedule 1f1b: has no gradient synchronisation to choose" in schedule(
        "--from", one, "--compare", "1f1b", "--sync", "eager", expect=2)
    for more in ([], ["--compare", "1f1b"]):
        schedule("--from", two, "--sync", "eager", *more)
    schedule("--from", one, "--sync", "end", "--compare", "chimera")
    schedule("--from", one, "--sync", "eager", "--compare", "chimera")


@pytest.mark.parametrize("rows, peaks", [
    ("0F0,0B0\n0F1^1,0B1^1\n", [1, 1]),       # one stage on two ranks
    ("0F0,1F0,1B0,0B0\n2F0,2B0\n", [1, 1]),    # two stages and one
])
def test_activations_are_in_microbatches_of_each_ranks_share(rows, peaks, tmp_path):
    file = tmp_path / "s.csv"
    file.write_text(rows)
    assert json.loads(schedule("--from", file, "--json"))["peak_activations"] == peaks


def test_sizes_beyond_all_memory_are_refused(tmp_path):
    error = schedule("--stages", 1 << 20, "--microbatches", 1 << 20, "--jsn", "1f1b", expect=2)
    assert "--jsn: unknown option" in error and "is more than the 1048576 that are drawn" in error
    error = schedule("looped-bfs", "--stages", 1000, "--microbatches", 1000, "--chunks", 2000000000, expect=2)
    assert "--stages, --microbatches, --chunks: 1000 x 1000 x 2000000000 is more than the 1048576 that are drawn" in error
    error = schedule("seq-1f1b", "--stages", 1000, "--microbatches", 1000, "--slices", 2, expect=2)
    assert "--stages, --microbatches, --slices: 1000 x 1000 x 2 is more than the 1048576 that are drawn" in error
    file = tmp_path / "big.csv"
    file.write_text("".join(f"0F{m}^{r},0B{m}^{r}\n" for r, m in [(r, r if r < 3999 else 1048574) for r in range(4000)]))
    assert "1048575 microbatches and 1 slices in 4000 replicas" in schedule("--from", file, expect=2)


def test_a_byte_order_mark_and_long_cells_of_a_file(tmp_path):
    file = tmp_path / "s.csv"
    schedule("1f1b", "--stages", 2, "--microbatches", 2, "--csv", file)
    text = file.read_text()
    file.write_text(text, encoding="utf-8-sig")
    assert schedule("--from", file).startswith(f"{file}: 2 ranks, 2 microbatches")
    file.write_text(text.replace("0F0", "x" * 5000))
    assert f"{file}:1: cell 1 is '{'x' * 60}…'; it must be" in schedule("--from", file, expect=2)


def test_control_characters_of_a_file_are_shown_not_obeyed(tmp_path):
    file = tmp_path / "s.csv"
    for character, shown in (("\0", "\\x00"), ("\x1b[31m", "\\x1b[31m")):
        file.write_text(f"0F0,{character}0B0\n")
        assert f"{file}:1: cell 2 is '{shown}0B0'; it must be empty, stage" in schedule("--from", file, expect=2)


def test_a_file_whose_name_is_no_utf_8_is_drawn_in_files_that_are(tmp_path):
    file, svg = tmp_path / os.fsdecode(b"caf\xe9.csv"), tmp_path / "s.svg"
    file.write_text("0F0,0B0\n")
    done = subprocess.run([str(meshwright.BINARY), "schedule", "--from", file, "--svg", svg, "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    heading = next(e for e in xml.etree.ElementTree.parse(svg).iter() if e.get("class") == "name")
    assert "caf\\xe9.csv: makespan 3" in "".join(heading.itertext())
    assert json.loads(done.stdout.decode())["schedule"].endswith("caf\ufffd.csv")


def test_a_step_without_any_time_is_refused():
    for kind in ("1f1b", "zb-auto"):
        error = schedule(kind, "--stages", 2, "--microbatches", 2, "--costs", "f=0,b=0:0,w=0,comm=1", expect=2)
        assert error == "meshwright: costs: f, b and w are 0; one of them must be above, for a step takes some time\n"
    assert figures("1f1b", 2, 2, "--costs", "f=0,b=0,w=0:1")["makespan"] == 2


def test_fewer_microbatches_than_ranks_take_one_round(tmp_path):
    for kind in ("interleaved-1f1b", "interleaved-zb"):
        got = figures(kind, 4, 3, "--group", 3)
        assert max(got["peak_activations"]) <= 3
        assert "use microbatches=4, or rounds of group=3" in schedule(kind, "--stages", 4, "--microbatches", 3, expect=2)
        assert "group=5 must be microbatches=3, which are fewer than ranks=4" in schedule(
            kind, "--stages", 4, "--microbatches", 3, "--group", 5, expect=2)

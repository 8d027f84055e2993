"""trace.json of a run against the Chrome trace event format as Perfetto reads it."""

import collections
import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)
if not meshwright.TEXT.exists():
    pytest.skip(f"no {meshwright.TEXT.name} here: scripts/setup writes it", allow_module_level=True)

PLAN = "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,zero=1"
# Phase: the fields that an event must have, and those that it may have beside them.
FIELDS = {
    "X": ({"ph", "pid", "tid", "ts", "dur", "cat", "name", "args"}, set()),
    "M": ({"ph", "pid", "name", "args"}, {"tid"}),
    "s": ({"ph", "pid", "tid", "ts", "cat", "name", "id"}, set()),
    "f": ({"ph", "pid", "tid", "ts", "cat", "name", "id", "bp"}, set()),
    "C": ({"ph", "pid", "ts", "name", "args"}, set()),
}
ARGS = {"bytes", "flops", "microbatch", "stage", "command", "flow_out", "flow_in"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    run = tmp_path_factory.mktemp("trace") / "run"
    meshwright.train(run, meshwright.ROOT / "examples/gpt-micro.toml", PLAN, steps=2)
    return json.loads((run / "trace.json").read_text())


def track(event):
    return event["pid"], event["tid"]


def ns(event, key="ts"):
    """Times have three decimals of a microsecond."""
    value = round(event[key] * 1000)
    assert abs(event[key] * 1000 - value) < 1e-3
    return value


def test_every_event_has_the_fields_of_its_phase(trace):
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert set(trace["otherData"]) == {"schema", "program_hash", "producer", "dropped", "step"}
    assert trace["otherData"]["step"] == 2
    assert trace["otherData"]["dropped"] == 0
    for event in trace["traceEvents"]:
        required, optional = FIELDS[event["ph"]]
        assert required <= set(event) <= required | optional, event
        assert isinstance(event["pid"], int) and event["pid"] > 0 and event["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0 and set(event["args"]) <= ARGS, event
            assert event["cat"] in ("compute", "comm", "copy", "wait", "step", "io", "call")


def test_ranks_and_streams_have_names_and_an_order(trace):
    names = {(e["name"], e["pid"], e.get("tid")): e["args"] for e in trace["traceEvents"] if e["ph"] == "M"}
    for rank in range(8):
        assert names["process_name", rank + 1, None] == {"name": f"rank {rank}"}
        assert names["process_sort_index", rank + 1, None] == {"sort_index": rank}
    for pid, tid in {track(e) for e in trace["traceEvents"] if "tid" in e}:
        assert names["thread_name", pid, tid]["name"]
        assert "sort_index" in names["thread_sort_index", pid, tid]


def test_spans_of_a_track_nest_or_follow_each_other(trace):
    """A viewer cannot draw two spans of one track that overlap otherwise."""
    tracks = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[track(event)].append((ns(event), ns(event) + ns(event, "dur"), event["name"]))
    assert len({pid for pid, _ in tracks}) == 8
    for spans in tracks.values():
        assert [s[0] for s in spans] == sorted(s[0] for s in spans)
        open_ends = []
        for start, end, name in spans:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (name, start, end)
            open_ends.append(end)


def test_a_message_is_one_arrow_forward_in_time_from_a_span_to_a_span(trace):
    arrows = collections.defaultdict(dict)
    spans = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            assert event["ph"] not in arrows[event["id"]]
            arrows[event["id"]][event["ph"]] = event
        elif event["ph"] == "X":
            spans[track(event)].append((ns(event), ns(event) + ns(event, "dur")))
    # 2 replicas x 2 shards of 3 boundaries, forward and back, 4 microbatches.
    assert len(arrows) >= 2 * 2 * 3 * 2 * 4
    assert max(arrows) < 2 ** 53  # a viewer's numbers are doubles
    for pair in arrows.values():
        assert ns(pair["s"]) <= ns(pair["f"]) and pair["s"]["pid"] != pair["f"]["pid"]
        assert pair["f"]["bp"] == "e"
        for event in pair.values():
            assert any(start <= ns(event) <= end for start, end in spans[track(event)])


def test_the_steps_and_the_bytes_are_those_of_the_run(trace):
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "step"]
    assert len(steps) == 8
    for step in steps:
        own = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == step["pid"] and e is not step]
        assert step["args"]["bytes"] == sum(e["args"].get("bytes", 0) for e in own)
        assert len(own) > 100
        assert {e["cat"] for e in own} >= {"compute", "comm", "wait", "io"}
        assert all(ns(step) <= ns(e) and ns(e) + ns(e, "dur") <= ns(step) + ns(step, "dur") for e in own)


def test_every_call_of_a_fragment_has_a_span_around_its_ops(trace):
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    ops = collections.defaultdict(list)
    for event in spans:
        if event["cat"] in ("compute", "comm"):
            ops[event["pid"], event["args"]["command"]].append(event)
    calls = [e for e in spans if e["cat"] == "call"]
    # Forward and backward of 2 chunks and 4 microbatches, and the update, on 8 ranks.
    assert len(calls) == 8 * (2 * 2 * 4 + 1)
    assert {e["name"].split()[0] for e in calls} == {"F", "B", "UPDATE"}
    for call in calls:
        own = ops.pop((call["pid"], call["args"]["command"]))
        assert min(ns(e) for e in own) >= ns(call)
        assert max(ns(e) + ns(e, "dur") for e in own) <= ns(call) + ns(call, "dur")
    assert not ops


def test_the_memory_curve_is_that_of_the_verified_program(trace):
    done = meshwright.execute(["verify", meshwright.ROOT / "examples/gpt-micro.toml", "--plan", PLAN, "--json"])
    ranks = {rank["rank"]: rank for rank in json.loads(done.stdout)["ranks"]}
    for rank in range(8):
        points = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["pid"] == rank + 1 and e["name"] == "memory"]
        totals = [sum(e["args"].values()) for e in points]
        assert [ns(e) for e in points] == sorted(ns(e) for e in points)
        assert set(points[0]["args"]) == {"weights", "gradients", "optimizer", "activations", "communication buffers", "temporaries", "other"}
        # Activations and temporaries come and go, the states stay.
        assert points[0]["args"]["activations"] == points[-1]["args"]["activations"] == points[-1]["args"]["temporaries"] == 0
        assert max(e["args"]["activations"] for e in points) > 0 and max(e["args"]["temporaries"] for e in points) > 0
        verified = ranks[rank]["peak_bytes_by_category"]
        assert {e["args"]["weights"] for e in points} == {verified["weights"]}
        assert {e["args"]["communication buffers"] for e in points} == {verified["communication buffers"]}
        assert max(totals) <= ranks[rank]["peak_bytes"]

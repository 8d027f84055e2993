"""`meshwright simulate --trace`: tracks, names and the memory curve of a simulated step."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)


def test_collectives_of_an_update_that_is_under_way_have_tracks_of_their_own(tmp_path):
    """The update's all-reduces over ep begin beside the last backward's all-to-alls."""
    meshwright.execute(["simulate", *"--model mixtral-8x7b --cluster dgx-h100 --global-batch 64 --plan dp=8,ep=8,pp=4,microbatches=8".split(),
                        "--ignore-memory", "--trace", tmp_path / "t.json", "--ops", "--advice", "none"])
    ends = {}
    for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]:
        if e["ph"] != "X" or e["cat"] != "comm" or e["name"].startswith(("send", "receive")):
            continue
        track, start = (e["pid"], e["tid"]), round(e["ts"] * 1000)
        assert start >= ends.get(track, 0), e
        ends[track] = start + round(e["dur"] * 1000)


@pytest.mark.parametrize("profile", ["h100-80gb-torch", "h100-80gb-megatron"])
def test_the_memory_curve_is_highest_where_the_text_says(profile, tmp_path):
    """PyTorch keeps temporaries from one call to another, such as the logits in f32."""
    trace = tmp_path / "trace.json"
    done = meshwright.execute(["simulate", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "16", "--plan",
                               "zero=3,recompute=full", "--profile", profile, "--ignore-memory", "--trace", trace, "--json"])
    points = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "C" and e["name"] == "memory"]
    assert max(sum(e["args"].values()) for e in points) == json.loads(done.stdout)["alive_bytes"][0]


def test_calls_are_called_by_their_stage_and_replica(tmp_path):
    """Stages that are alike share a fragment."""
    names = {}
    for schedule in ("1f1b", "chimera", "seq-1f1b"):
        trace = tmp_path / f"{schedule}.json"
        meshwright.execute(["simulate", "--model", "gpt-1.7b", "--cluster", "selene", "--gpus", "4", "--global-batch", "8", "--plan",
                            f"pp=4,microbatches=8,schedule={schedule}", "--trace", trace])
        names[schedule] = {e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["cat"] == "compute"}
    assert names["1f1b"] == {f"{kind} stage {s}" for kind in "FB" for s in range(4)}
    assert names["chimera"] == names["1f1b"] | {f"{name}^1" for name in names["1f1b"]}
    assert names["seq-1f1b"] == {f"{name}/{i}" for name in names["1f1b"] for i in range(2)}

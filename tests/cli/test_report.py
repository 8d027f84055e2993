"""`meshwright simulate --report`: the page in a browser shows what the trace holds."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import browser  # noqa: E402
import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT, BINARY = meshwright.ROOT, str(meshwright.BINARY)
JOB = ["examples/gpt-micro.toml", "--cluster", "selene", "--precision", "f32"]
PLAN = "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,zero=1"
OTHER = "dp=2,pp=4,microbatches=4"
COMPUTE, COMM, WAIT = 0, 1, 3
in_browser = pytest.mark.skipif(browser.program() is None, reason="no Chromium here; scripts/setup --test installs it")


def simulate(*arguments):
    return subprocess.run([BINARY, "simulate", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    done = simulate(*JOB, "--plan", PLAN, "--compare", OTHER, "--report", folder / "r.html", "--trace", folder / "t.json",
                    "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), json.loads((folder / "t.json").read_text())["traceEvents"]


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.dark(False)
        opened.open(made[0] / "r.html")
        yield opened
        assert opened.troubles() == []


def test_the_page_is_one_file_that_asks_for_no_other(made):
    text = (made[0] / "r.html").read_text()
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert "http" not in text.replace("http-equiv", "")
    assert 50_000 < len(text) < 400_000


def test_the_page_has_the_error_bar_and_what_lies_outside_the_profile(made):
    text = (made[0] / "r.html").read_text()
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)[1])
    for run in figures["runs"]:
        step = next(figure for figure in run["figures"] if figure["name"] == "step")
        assert step["value"].endswith("+- 8 % or more") and "'megatron'" in step["note"]
        assert run["note"].startswith("outside of what the profile 'megatron' was measured on: hidden 64")


@in_browser
def test_what_lies_outside_the_profile_is_read_on_the_page(page):
    assert "outside of what the profile 'megatron' was measured on" in page.run("document.getElementById('comparison').innerText")


@in_browser
def test_the_bars_are_the_traces(made, page):
    _, result, events = made
    ranks = sorted({e["pid"] for e in events if e["ph"] == "X"})
    assert len(ranks) == len(result["peak_bytes"]) == page.run("meshwright.page.runs[0].ranks.length")
    for row, pid in enumerate(ranks):
        wanted = sorted((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000), e["name"], e["args"].get("microbatch", -1),
                         e["args"].get("bytes", 0), e["args"].get("flops", 0)) for e in events
                        if e["ph"] == "X" and e["pid"] == pid and e["cat"] != "step" and "flow_in" not in e["args"])
        drawn = sorted((b["start"], b["end"], b["name"], b["microbatch"], b["bytes"], b["flops"])
                       for b in page.run(f"meshwright.bars(0, {row})"))
        assert len(drawn) > 20
        assert drawn == wanted


@in_browser
def test_a_bar_lies_where_its_times_say_in_its_colour(page):
    page.run("meshwright.view.fit()")
    page.frame()
    for run in (0, 1):
        # The middle pixel of every bar that is wide enough is of its kind's colour.
        wrong = page.run(f"""(() => {{
          const timeline = meshwright.timelines[{run}], context = timeline.canvas.getContext('2d'), wrong = [];
          let seen = 0;
          timeline.run.ranks.forEach((rank, r) => rank.lanes.forEach((lane, l) => {{
            for (let i = 0; i < lane.n; ++i) {{
              const box = timeline.box({{rank: r, lane: l, index: i}});
              const share = (box.left - 58) / (timeline.width - 58), time = lane.start[i] / meshwright.view.length;
              if (Math.abs(share - time) > 1e-9) wrong.push(['place', r, l, i, share, time]);
              if (box.right - box.left < 6 || lane.category[i] === 3 || l > 0) continue;
              const inner = [...Array(lane.n).keys()].some((k) => k !== i && lane.start[k] < lane.end[i] && lane.end[k] > lane.start[i]);
              if (inner) continue;
              const pixel = context.getImageData(Math.round(box.left + 3), Math.round(box.top + 2), 1, 1).data;
              const colour = timeline.fill(lane, i);
              ++seen;
              if (Math.max(...colour.map((c, k) => Math.abs(c - pixel[k]))) > 12) wrong.push([r, l, i, [...pixel], colour]);
            }}
          }}));
          return seen < 8 ? ['too few bars', seen] : wrong;
        }})()""")
        assert wrong == []


@in_browser
def test_messages_to_every_rank_have_their_own_colour(page):
    bars = page.run("""meshwright.timelines[0].run.ranks.flatMap((rank) => rank.lanes.flatMap((lane) =>
      Array.from({length: lane.n}, (_, i) => [meshwright.page.runs[0].names[lane.name[i]], lane.label,
                                              meshwright.timelines[0].fill(lane, i).join()])))""")
    sends = [(label, colour) for name, label, colour in bars if name.startswith("send ")]
    others = {colour for name, _, colour in bars if not name.startswith("send ")}
    assert len({label for label, _ in sends}) > 1
    assert len({colour for _, colour in sends}) == 1 and sends[0][1] not in others


@in_browser
def test_the_pointer_tells_what_lies_under_it(page):
    page.run("meshwright.view.fit(); scrollTo(0, 0)")
    page.frame()
    bars = page.run("meshwright.bars(0, 1)")
    first_lane = [b for b in bars if b["stream"] == 0]
    index = next(i for i, b in enumerate(first_lane) if b["title"].startswith("F of stage") and b["microbatch"] == 2)
    box = page.run(f"meshwright.box(0, 1, 0, {index})")
    page.mouse("mouseMoved", (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    page.frame()
    text = page.run("document.getElementById('tip').innerText")
    assert first_lane[index]["title"] in text and "microbatch 2" in text and "takes" in text and "FLOP" in text
    wait = next(i for i, b in enumerate(first_lane) if b["category"] == WAIT)
    box = page.run(f"meshwright.box(0, 1, 0, {wait})")
    page.mouse("mouseMoved", (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    page.frame()
    assert "waits for a value from pipeline rank 0" in page.run("document.getElementById('tip').innerText")
    message = next(i for i, b in enumerate([b for b in bars if b["stream"] == 1]) if b["bytes"] > 0)
    box = page.run(f"meshwright.box(0, 1, 1, {message})")
    page.mouse("mouseMoved", (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    page.frame()
    text = page.run("document.getElementById('tip').innerText")
    assert "send" in text and "bytes" in text and "KiB" in text
    page.mouse("mouseMoved", 5, 5)


@in_browser
def test_messages_name_the_row_that_they_go_to(page):
    told = page.run("""meshwright.timelines.map((timeline) => timeline.run.ranks.map((rank, r) => rank.lanes.flatMap((lane, l) =>
      lane.messages ? [timeline.facts({rank: r, lane: l, index: 0}).facts[0][1]] : [])))""")
    assert told[0] == [["0, messages, pipeline rank 1"], ["1, messages, pipeline rank 0"]]  # devices 0 and 4
    assert [len(messages) for messages in told[1]] == [1, 2, 2, 1]
    assert "2, messages, pipeline rank 3" in told[1][2]


@in_browser
def test_wheel_drag_buttons_and_keys_move_the_view(page):
    page.run("meshwright.view.fit(); scrollTo(0, 0)")
    page.frame()
    canvas = page.run("(({left, top, width, height}) => ({left, top, width, height}))"
                      "(document.getElementById('timeline-0').getBoundingClientRect())")
    x, y = canvas["left"] + canvas["width"] / 2, canvas["top"] + canvas["height"] / 2
    span = "meshwright.view.end - meshwright.view.begin"
    whole = page.run(span)
    under = page.run(f"meshwright.timelines[0].time({canvas['width'] / 2})")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-320, modifiers=2)
    page.frame()
    assert page.run(span) == pytest.approx(whole / 2.718281828, rel=1e-6)
    assert page.run(f"meshwright.timelines[0].time({canvas['width'] / 2})") == pytest.approx(under, rel=1e-6)
    before = page.run("meshwright.view.begin")
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
    page.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)
    page.frame()
    assert page.run("meshwright.view.begin") == pytest.approx(before + 100 / (canvas["width"] - 58) * page.run(span), rel=1e-6)
    page.key("Home")
    assert page.run(span) == whole
    page.key("+")
    assert page.run(span) == pytest.approx(whole / 1.6)
    page.key("Home")
    page.key("ArrowDown")
    page.key("ArrowRight")
    page.frame()
    said = page.run("document.querySelector('.said').innerText")
    chosen = page.run("(({rank, lane, index}) => [rank, lane, index])(meshwright.timelines[0].chosen)")
    assert chosen[:2] == [1, 0] and said.startswith(page.run(f"meshwright.bars(0, 1)[{chosen[2]}].title"))
    page.key("Enter")
    assert page.run(span) < whole / 4
    page.key("Home")


@in_browser
def test_a_bar_with_waits_inside_is_drawn_behind_them(tmp_path):
    plan = "tp=4,pp=4,microbatches=16,sp,zero=1,recompute=selective"
    done = simulate("--model", "gpt-7.5b", "--cluster", "selene", "--gpus", 64, "--global-batch", 512, "--plan", plan, "--advice", "none",
                    "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as opened:
        opened.open(tmp_path / "r.html")
        # [rank, begin, end] of what is left of a bar behind the last of several that lie in it.
        ends = opened.run("""meshwright.timelines[0].run.ranks.flatMap((rank, r) => {
          const lane = rank.lanes[0], all = [...Array(lane.n).keys()];
          return all.flatMap((i) => {
            const inner = all.filter((k) => k !== i && lane.start[k] >= lane.start[i] && lane.end[k] < lane.end[i]);
            return inner.length > 1 ? [[r, i, Math.max(...inner.map((k) => lane.end[k])), lane.end[i]]] : [];
          });
        })""")
        assert ends
        for rank, bar, begin, end in ends:
            opened.run(f"meshwright.view.set({begin + (end - begin) / 4}, {end - (end - begin) / 4})")
            opened.frame()
            drawn, colour = opened.run(f"""(() => {{
              const timeline = meshwright.timelines[0], box = timeline.box({{rank: {rank}, lane: 0, index: {bar}}});
              const at = [Math.round(timeline.width / 2), Math.round(box.top + 3)];
              return [[...timeline.canvas.getContext('2d').getImageData(...at, 1, 1).data].slice(0, 3),
                      timeline.fill(timeline.run.ranks[{rank}].lanes[0], {bar})];
            }})()""")
            assert max(abs(a - b) for a, b in zip(drawn, colour)) < 12, (rank, bar, drawn, colour)
        assert opened.troubles() == []


@in_browser
def test_the_memory_curve_has_the_peak_that_the_numbers_name(made, page):
    for run in (0, 1):
        for rank in page.run(f"meshwright.page.runs[{run}].ranks.map((rank) => ({{peak: rank.peak, most: Math.max(...rank.memory.total), "
                             "at: rank.memory.time[rank.memory.total.indexOf(Math.max(...rank.memory.total))], largest: rank.largest}))"):
            assert rank["most"] == rank["peak"]["bytes"] > 0
            assert rank["at"] == rank["peak"]["time"]
            assert rank["largest"][0]["bytes"] > 0 and rank["peak"]["at"].startswith("in ")
    alive = made[1]["alive_bytes"]
    assert page.run("meshwright.page.runs[0].ranks.map((rank) => rank.peak.bytes)") == alive


@in_browser
def test_it_is_readable_in_light_and_dark(page, tmp_path):
    page.run("meshwright.view.fit(); scrollTo(0, 0)")
    seen = []
    for dark in (False, True):
        page.dark(dark)
        page.frame()
        background, ink = page.run("(() => { const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color]; })()")
        seen.append((background, ink))
        assert page.picture(tmp_path / f"{'dark' if dark else 'light'}.png").stat().st_size > 30_000
    assert seen[0] != seen[1]
    page.dark(False)


@in_browser
def test_all_plans_are_compared(made, page):
    text = page.run("document.getElementById('comparison').innerText")
    assert page.run("meshwright.page.runs[0].plan") in text and page.run("meshwright.page.runs[1].plan") in text
    result = made[1]
    assert len(result["compared"]) == 1 and result["compared"][0]["step_s"] > 0
    change = abs(100 * (result["compared"][0]["step_s"] / result["step_s"] - 1))
    assert f"{change:.1f} %" in text
    page.run("[...document.querySelectorAll('#memory button')].find((b) => b.innerText === 'Plan B').click()")
    assert page.run("meshwright.page.runs[1].ranks.length") == 4
    assert "Rank" in page.run("document.querySelector('#memory h3').innerText")
    # The button, made anew, has the focus; a chosen rank stays chosen in other colours.
    assert page.run("[document.activeElement.innerText, document.activeElement.closest('section').id]") == ["Plan B", "memory"]
    page.run("document.getElementById('memory-ranks').focus()")
    first = page.run("document.querySelector('#memory h3').innerText")
    page.key("ArrowLeft" if first.startswith("Rank 3") else "ArrowRight")
    chosen = page.run("document.querySelector('#memory h3').innerText")
    page.run("document.getElementById('theme').click()")
    assert page.run("document.querySelector('#memory h3').innerText") == chosen != first
    assert page.run("document.activeElement.id") == "memory-ranks"
    page.run("document.getElementById('theme').click()")
    page.run("[...document.querySelectorAll('#memory button')].find((b) => b.innerText === 'Plan A').click()")


@in_browser
def test_a_page_of_64_ranks_and_512_microbatches_is_small_and_whole(tmp_path):
    done = simulate("--model", "gpt-1t", "--cluster", "selene", "--global-batch", 512, "--plan",
                    "tp=8,pp=64,microbatches=512,recompute=full", "--ignore-memory", "--advice", "none", "--goodput",
                    "--report", tmp_path / "r.html", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (tmp_path / "r.html").stat().st_size < 5_000_000
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        counts = page.run("""meshwright.page.runs[0].ranks.map((rank) => {
          const lane = rank.lanes[0], of = (kind) => [...Array(lane.n).keys()].filter((i) =>
            lane.category[i] === 0 && meshwright.page.runs[0].kinds[lane.name[i]] === kind).length;
          return [of('F'), of('B'), of('UPDATE'), rank.memory.n];
        })""")
        assert [count[:3] for count in counts] == [[512, 512, 1]] * 64
        assert all(100 < count[3] <= 1024 for count in counts)
        assert page.run("meshwright.page.runs[0].ranks.map((rank) => Math.max(...rank.memory.total))") == result["alive_bytes"]
        figures = {f["name"]: f["value"] for f in page.run("meshwright.page.runs[0].figures")}
        assert figures["goodput"] == f"{100 * result['goodput']['goodput']:.2f} %" and figures["devices"] == "512"
        page.run("meshwright.view.zoom(300)")
        page.frame()
        assert page.troubles() == []


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    done = simulate(*JOB, "--plan", PLAN, "--report", tmp_path / "no" / "r.html", "--trace", tmp_path / "not" / "t.json")
    assert done.returncode == 2
    assert f"{tmp_path}/no/r.html" in done.stderr and f"{tmp_path}/not/t.json" in done.stderr
    done = simulate(*JOB, "--plan", PLAN, "--compare", "pp=3", "--compare", "dpp=2")
    assert done.returncode == 2
    assert "--compare: dpp: unknown key, did you mean 'dp'?" in done.stderr


def test_a_plan_that_does_not_fit_says_so(tmp_path):
    page = tmp_path / "r.html"
    done = subprocess.run([str(meshwright.BINARY), "simulate", "--model", "gpt-22b", "--cluster", "selene", "--plan", "dp=8,microbatches=1",
                           "--global-batch", "8", "--report", str(page), "--ignore-memory", "--advice", "none"],
                          cwd=meshwright.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "does not fit: needs 452 GiB of 77.4 GiB for tensors (of 80.0 GiB)" in page.read_text()


def test_a_model_whose_name_is_no_utf_8_is_in_files_that_are(tmp_path):
    model = tmp_path / os.fsdecode(b"caf\xe9.json")
    model.write_text((ROOT / "models/gpt-micro.json").read_text())
    done = subprocess.run([BINARY, "simulate", "--model", model, "--cluster", "selene", "--global-batch", "4", "--plan", "dp=1",
                           "--report", tmp_path / "r.html", "--trace", tmp_path / "t.json", "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode())["model"].endswith("caf\ufffd.json")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<title>One training step of caf\\xe9 on" in page and '"title":"One training step of caf\ufffd on' in page
    json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))


@in_browser
def test_bars_behind_the_end_of_a_step_without_a_flush_are_there(tmp_path):
    done = simulate("examples/gpt-micro.toml", "--cluster", "selene", "--precision", "f32", "--plan",
                    "pp=4,schedule=pipedream-2bw,microbatches=8", "--report", tmp_path / "r.html", "--trace", tmp_path / "t.json", "--json")
    assert done.returncode == 0, done.stderr
    result, events = json.loads(done.stdout), json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    last = max(round((e["ts"] + e["dur"]) * 1000) for e in events if e["ph"] == "X")
    assert last > 1e9 * result["step_s"]  # the next step's are beside it
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        assert page.run("meshwright.view.length") == last
        # Both versions of the weights are in the curve.
        assert page.run("meshwright.page.runs[0].ranks.map((rank) => Math.max(...rank.memory.total))") == result["alive_bytes"]


@in_browser
def test_a_rank_that_sends_to_many_has_its_messages_in_one_strip(tmp_path):
    done = simulate("--model", "gpt-1t", "--cluster", "selene", "--global-batch", 64, "--plan",
                    "tp=8,pp=32,schedule=zb-h1,microbatches=64,post_validation", "--ignore-memory", "--advice", "none",
                    "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        page.frame()
        assert page.run("Math.min(...meshwright.page.runs[0].ranks.map((rank) => rank.lanes.length))") >= 30
        rows = page.run("meshwright.page.runs[0].ranks.map((_, r) => meshwright.timelines[0].lanesOf(r))")
        for row in rows:
            assert len({lane["top"] for lane in row}) == 2
            assert row[0]["height"] > 2 * row[1]["height"]
        assert page.run("meshwright.timelines[0].canvas.height") < 700
        # Every message is found where it is drawn, alone or beside another of the same moment.
        assert page.run("""(() => {
          const timeline = meshwright.timelines[0], missed = [];
          timeline.run.ranks.forEach((rank, r) => rank.lanes.forEach((lane, l) => {
            for (let i = 0; i < lane.n; i += 7) {
              timeline.zoomTo({rank: r, lane: l, index: i});
              const box = timeline.box({rank: r, lane: l, index: i}), x = (box.left + box.right) / 2;
              const found = timeline.at(x, box.top + box.height / 2), time = timeline.time(x);
              const other = found && timeline.run.ranks[r].lanes[found.lane];
              const same = found && found.lane === l && found.index === i;
              if (!same && !(other && other.messages === lane.messages && other.start[found.index] <= time &&
                             other.end[found.index] >= time)) missed.push([r, l, i, found]);
            }
          }));
          return missed;
        })()""") == []
        assert page.troubles() == []


@in_browser
def test_ops_and_collectives_have_lanes_of_their_own(tmp_path):
    done = simulate(*JOB, "--plan", PLAN, "--ops", "--advice", "none", "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        page.frame()
        for lanes in page.run("meshwright.page.runs[0].ranks.map((_, r) => meshwright.timelines[0].lanesOf(r))"):
            assert len(lanes) == 7  # computation, messages, five groups of devices
            assert all(a["top"] + a["height"] <= b["top"] for a, b in zip(lanes, lanes[1:]))
        text = page.run("document.getElementById('timeline').innerText")
        assert "a bar is an op; the thin bars below are messages and collectives" in text and "F forward" not in text
        assert page.troubles() == []


def timeline_words(tmp_path, plan):
    done = simulate(*JOB, "--plan", plan, "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        return page.run("document.getElementById('timeline').innerText")


@in_browser
def test_the_legend_names_what_is_drawn(tmp_path):
    text = timeline_words(tmp_path, "dp=1")
    assert "a bar is a call for one microbatch." in text
    assert "waits for another rank" not in text and "message" not in text


@in_browser
def test_the_norm_that_all_stages_share_is_a_call_of_its_own(tmp_path):
    text = timeline_words(tmp_path, "pp=4,microbatches=8,schedule=zb-h1,post_validation")
    assert "a bar is a call for one microbatch" in text and "SHARE, VALIDATE: norm and loss of all stages" in text
    assert not re.search(r"\bop\b", text)


@in_browser
def test_an_op_that_takes_no_time_has_no_rate(tmp_path):
    done = simulate("--model", "gpt-22b", "--cluster", "selene", "--global-batch", 16, "--plan",
                    "tp=8,pp=2,dp=2,microbatches=4,recompute=full", "--advice", "none", "--ops", "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        told = [bar["facts"]["FLOPs"] for bar in page.run("meshwright.bars(0, 0)")
                if bar["flops"] > 0 and bar["start"] == bar["end"]]
        assert told and all(re.fullmatch(r"[\d.]+ [kMGTPE]?FLOP", text) for text in told)


@in_browser
@pytest.mark.parametrize("width", [1360, 420, 340])
def test_long_names_plans_and_figures_stay_inside_the_page(tmp_path, width):
    model = tmp_path / ("a_model_with_a_long_name_" * 6 + ".json")
    model.write_text((ROOT / "models/gpt-7.5b.json").read_text())
    step = ["--model", model, "--cluster", "selene", "--global-batch", 64, "--advice", "none", "--ignore-memory", "--goodput", "--plan",
            "dp=2,tp=4,pp=4,schedule=interleaved-1f1b,chunks=9,microbatches=32,sp,regather,zero=1,layers=" + ":".join(["1"] * 36)]
    for name, more in (("one", []), ("two", ["--compare", "dp=8,tp=8"])):
        done = simulate(*step, *more, "--report", tmp_path / f"{name}.html")
        assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile", width=width) as page:
        for name in ("one", "two"):
            page.open(tmp_path / f"{name}.html")
            page.frame()
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
            assert page.run("""[...document.querySelectorAll('h1, h2, h3, p, dt, dd, code, .name')]
                .filter((e) => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)""") == []
        assert page.run("document.querySelector('h1').innerText").endswith("on 32 or 64 x A100-SXM-80GB")
        assert page.troubles() == []


@in_browser
def test_a_bar_is_told_by_instants_that_tell_its_ends_apart(tmp_path):
    done = simulate("--model", "llama3-70b", "--cluster", "h200", "--seq-len", 4096, "--global-batch", 256, "--plan",
                    "dp=64,zero=3,microbatches=4", "--advice", "none", "--ops", "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        bars = page.run("meshwright.bars(0, 0)")
        assert any(bar["start"] > 1e10 and 0 < bar["end"] - bar["start"] < 1e4 for bar in bars)
        seconds = {"s": 1, "ms": 1e-3, "µs": 1e-6}
        for bar in bars:
            ends = []
            for text in bar["facts"]["from"].split(" to "):
                number, _, unit = text.partition(" ")
                ends.append(float(number) * seconds[unit] * 1e9 if unit else 0)
            takes = bar["end"] - bar["start"]
            assert abs(ends[1] - ends[0] - takes) <= 0.2 * takes + 1, bar


@in_browser
def test_the_page_writes_sizes_and_times_as_the_command_line_does(tmp_path):
    done = simulate("--model", "llama3-70b", "--cluster", "h200", "--seq-len", 4096, "--global-batch", 256, "--plan",
                    "dp=64,zero=3,microbatches=4", "--compare", "dp=1,microbatches=256", "--advice", "none", "--ignore-memory",
                    "--report", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    assert "logits#0 1002 MiB" in done.stdout
    long = re.search(r"^dp=1,.* (\d+ min \d\d s) ", done.stdout, re.MULTILINE)[1]
    with browser.Browser(tmp_path / "profile") as page:
        page.open(tmp_path / "r.html")
        assert page.run("[...document.querySelectorAll('.stacks .time')].map((time) => time.innerText)")[1] == long
        assert re.search(r"logits#0\s+activations\s+1002 MiB", page.run("document.getElementById('memory').innerText"))

"""Plans against their base plans, bit for bit: losses in training and on held-out text, gradient norms, and the weights
and moments after four steps.

The default run takes a seeded sample; MESHWRIGHT_TEST_ALL=1 takes all. MESHWRIGHT_TEST_SEED draws others.
"""

import dataclasses
import functools
import json
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402
import orders  # noqa: E402
import plans  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

STEPS = 4
TEXT_BYTES = 64 * 400
DROPOUT = {"embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1}


@dataclasses.dataclass
class Model:
    file: str
    tp: list[int]  # of the random plans; all divide the heads
    seq_len: int = 64
    global_batch: int = 16
    changes: dict = dataclasses.field(default_factory=dict)


# The last two have a vocabulary, an ffn and a sequence that no tp divides; "gpt-dropout" has dropout, "llama-thirds" is for
# three ranks an axis. The largest tp of a llama is twice its key heads: two ranks hold each of them.
MODELS = {
    "gpt-micro": Model("gpt-micro.json", [1, 2, 4]),
    "llama-micro": Model("llama-micro.json", [1, 2, 4]),
    "gpt-dropout": Model("gpt-micro.json", [1, 2, 4], seq_len=61,
                         changes={**DROPOUT, "vocab_size": 257, "n_inner": 150}),
    "llama-thirds": Model("llama-micro.json", [1, 3, 6], seq_len=37, global_batch=12,
                          changes={"vocab_size": 259, "hidden_size": 72, "intermediate_size": 100,
                                   "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 5}),
}

CHOSEN = [
    ("gpt-micro", "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,zero=1"),
    ("gpt-micro", "pp=4,microbatches=4"),
    ("gpt-micro", "pp=4,schedule=gpipe,microbatches=8"),
    ("gpt-micro", "pp=3,layers=1:2:1,microbatches=2"),
    ("gpt-micro", "pp=2,layers=0:4,microbatches=2"),
    ("gpt-micro", "pp=3,layers=2:0:2,microbatches=2,zero=1"),
    ("gpt-micro", "schedule=interleaved-1f1b,chunks=4,microbatches=2"),
    ("gpt-micro", "dp=16,zero=3"),
    ("gpt-micro", "dp=2,tp=2,pp=4,microbatches=4,sp,zero=1,recompute=selective"),
    ("gpt-micro", "dp=2,tp=2,pp=2,microbatches=4,sp,zero=1,recompute=selective-op"),
    ("llama-micro", "tp=2,pp=2,schedule=zb-v,microbatches=4,recompute=selective-op"),
    ("gpt-dropout", "dp=2,zero=3,microbatches=2,recompute=selective-op"),
    ("gpt-micro", "dp=4,zero=2,microbatches=2,grad_reduce=step"),
    ("gpt-micro", "pp=4,schedule=zb-h1,microbatches=8,zero=1"),
    ("gpt-micro", "dp=2,tp=2,pp=2,schedule=zb-h2,microbatches=4,sp,zero=1,recompute=selective"),
    ("gpt-micro", "dp=2,pp=2,schedule=zb-v,chunks=2,microbatches=4,zero=1"),
    ("gpt-micro", "tp=2,pp=2,schedule=v-half,chunks=2,microbatches=4,sp"),
    ("gpt-micro", "pp=2,schedule=hanayo,chunks=2,microbatches=4,layers=1:2:0:1"),
    ("gpt-micro", "dp=2,pp=2,schedule=interleaved-zb,chunks=2,microbatches=4,zero=1"),
    ("gpt-micro", "dp=2,pp=3,schedule=interleaved-zb,chunks=2,group=2,microbatches=2,zero=1,layers=1:1:0:1:0:1"),
    ("gpt-dropout", "dp=2,pp=3,layers=1:2:1,schedule=zb-auto,microbatches=4,zero=2"),
    ("gpt-dropout", "pp=3,layers=2:1:1,schedule=zb-auto,microbatches=8,memory_limit=4.5,costs=1:1.2:0.8:0.1"),
    ("gpt-micro", "dp=2,pp=2,schedule=dualpipe-v,microbatches=4,zero=1,layers=1:2:0:1"),
    ("gpt-dropout", "tp=2,pp=2,schedule=dualpipe-v,microbatches=4,sp,recompute=selective"),
    ("gpt-micro", "dp=2,pp=4,schedule=zb-h2,microbatches=8,zero=1,post_validation"),
    ("llama-micro", "tp=2,pp=2,schedule=zb-v,microbatches=4,sp,post_validation"),
    ("gpt-dropout", "dp=2,pp=2,schedule=1f1b,microbatches=4,zero=3,post_validation"),
    ("llama-micro", "dp=2,pp=2,schedule=v-min,chunks=2,microbatches=4,zero=3"),
    ("llama-micro", "dp=2,tp=2,pp=4,microbatches=8,sp,zero=2,recompute=full"),
    ("llama-micro", "dp=4,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,zero=3"),
    ("llama-micro", "dp=4,zero=1,grad_reduce=microbatch,microbatches=2"),
    ("llama-micro", "tp=2,microbatches=2,recompute=selective"),
    ("llama-micro", "dp=2,tp=4,pp=2,microbatches=4,sp,zero=1"),
    ("llama-micro", "dp=2,tp=4,microbatches=2,zero=3,recompute=full,order=tp-dp-pp"),
    ("gpt-dropout", "tp=4,pp=4,sp,microbatches=4,recompute=full"),
    ("gpt-dropout", "dp=4,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=2,sp,zero=3,recompute=selective"),
    ("gpt-dropout", "dp=8,pp=2,zero=1,microbatches=2,order=dp-pp-tp"),
    ("llama-micro", "dp=2,pp=2,cp=2,microbatches=4,zero=1"),
    ("gpt-micro", "tp=2,cp=4,microbatches=2,sp,zero=3,recompute=full"),
    ("llama-thirds", "dp=3,tp=3,sp,zero=2,microbatches=2,recompute=selective"),
    ("llama-thirds", "tp=3,pp=5,sp,microbatches=4,schedule=gpipe"),
    ("llama-thirds", "dp=2,tp=6,sp,microbatches=2,zero=2"),
    ("gpt-dropout", "dp=2,tp=2,pp=2,microbatches=4,sp,regather,zero=3"),
    ("gpt-micro", "tp=2,pp=2,schedule=zb-h1,microbatches=4,sp,regather,recompute=selective"),
    ("llama-micro", "tp=2,cp=2,microbatches=2,sp,regather"),
    ("llama-thirds", "tp=3,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,regather"),
    ("llama-micro", "tp=4,microbatches=2,sp,recompute=selective-op"),
    ("gpt-dropout", "tp=4,pp=2,schedule=zb-h1,microbatches=2,sp,recompute=selective-op"),
    ("gpt-micro", "dp=2,cp=2,tp=2,microbatches=2,sp,zero=2,order=pp-cp-tp-dp"),
    ("llama-micro", "tp=4,cp=2,microbatches=2,sp,order=pp-dp-tp-cp"),
    ("llama-micro", "pp=3,schedule=v-min,microbatches=16,layers=0:0:1:3:0:0,post_validation"),
]
RANDOM = 40
ANY = 60
WRITTEN = 40  # schedules of files
SAMPLED = 14


def every_case() -> list[tuple[str, str]]:
    rng = random.Random(meshwright.SEED)
    cases = list(CHOSEN)
    while len(cases) < len(CHOSEN) + RANDOM:
        model = list(MODELS)[len(cases) % len(MODELS)]
        if (case := (model, random_plan(rng, model))) not in cases:
            cases.append(case)
    return cases


def random_plan(rng: random.Random, model: str) -> str:
    shape = MODELS[model]
    layers = shape.changes.get("num_hidden_layers", 4)
    return plans.short_form(plans.random_plan(rng, layers=layers, global_batch=shape.global_batch, tp=shape.tp))


def cases() -> list[tuple[str, str]]:
    """The first is in every sample: it is the demo's plan."""
    everything = every_case()
    if meshwright.EVERYTHING:
        return everything
    return [everything[0], *random.Random(meshwright.SEED).sample(everything[1:], SAMPLED - 1)]


def base_cases() -> list[tuple[str, str]]:
    """The distinct base plans of the cases that have more than one rank."""
    found = {(model, plans.short_form(plans.base(plans.parse(plan)))): None for model, plan in cases()}
    return [(model, plan) for model, plan in found if plans.ranks(plans.parse(plan)) > 1]


RESUMED = [
    # model, plan of the first two steps, plan of the others
    ("gpt-micro", "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1", "dp=2,tp=2,microbatches=2,sp,recompute=full"),
    ("gpt-dropout", "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4", "pp=3,layers=2:1:1,microbatches=4"),
    ("llama-micro", "dp=2,zero=3,microbatches=2", "dp=2,pp=4,zero=2,microbatches=2,schedule=gpipe"),
    ("gpt-dropout", "dp=4,tp=2,sp,zero=2", "pp=4,schedule=1f1b,microbatches=8"),
    ("llama-micro", "pp=4,schedule=1f1b,microbatches=8", "dp=4,tp=2,sp,zero=3,microbatches=2"),
    ("llama-micro", "dp=2,tp=4,sp,zero=1,microbatches=2", "dp=2,pp=2,zero=3,microbatches=4"),
]


class Runs:
    """Runs by model and plan, each once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.text = folder / "text.txt"
        self.text.write_bytes(meshwright.TEXT.read_bytes()[:TEXT_BYTES])
        self.count = 0
        self.get = functools.cache(self.run)
        self.job = functools.cache(self.write_job)

    def write_job(self, model: str) -> pathlib.Path:
        shape = MODELS[model]
        config = json.loads((meshwright.ROOT / "models" / shape.file).read_text(encoding="utf-8"))
        config.update(shape.changes)
        (self.folder / f"{model}.json").write_text(json.dumps(config), encoding="utf-8")
        return meshwright.write_job(self.folder / f"{model}.toml", model=self.folder / f"{model}.json", data=self.text,
                                    seq_len=shape.seq_len, global_batch=shape.global_batch, valid_fraction=0.1,
                                    eval_every=STEPS // 2, eval_batches=2)

    def run(self, model: str, plan: str, *options, steps: int = STEPS) -> meshwright.Run:
        self.count += 1
        return meshwright.train(self.folder / f"run-{self.count}", self.job(model), plan, *options, steps=steps)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    if not meshwright.TEXT.exists():
        pytest.skip(f"{meshwright.TEXT} is missing; scripts/setup writes it")
    return Runs(tmp_path_factory.mktemp("layouts"))


def differences(run: meshwright.Run, base: meshwright.Run) -> list[str]:
    """Where two runs are not the same bits, over the steps that `run` has."""
    wanted = {line["step"]: line for line in base.metrics}
    lines = []
    for line in run.metrics:
        there = wanted[line["step"]]
        lines += [f"step {line['step']}: {key} is {line.get(key)!r}, the base plan's is {there.get(key)!r}"
                  for key in ("loss", "grad_norm", "lr", "held_out_loss") if line.get(key) != there.get(key)]
    for group in ("model", "optimizer"):
        found, there = run.tensors(group), base.tensors(group)
        assert found.keys() == there.keys()
        lines += [f"{name}: other bits" for name in there if found[name] != there[name]]
    return lines


def explain(lines: list[str], *involved: meshwright.Run) -> str:
    more = f"\n… {len(lines) - 8} more" if len(lines) > 8 else ""
    return "\n".join([f"seed {meshwright.SEED}", *(run.command for run in involved), *lines[:8]]) + more


@pytest.mark.parametrize("model, plan", cases())
def test_a_plan_equals_its_base_plan_bit_for_bit(runs, model, plan):
    run = runs.get(model, plan)
    base = runs.get(model, plans.short_form(plans.base(plans.parse(plan))))
    found = differences(run, base)
    assert len(run.metrics) == STEPS and "held_out_loss" in run.metrics[-1]
    assert not found, explain(found, run, base)


@pytest.mark.parametrize("model, plan", base_cases())
def test_a_base_plan_follows_one_rank(runs, model, plan):
    run, one = runs.get(model, plan), runs.get(model, "dp=1")
    for key in ("loss", "grad_norm"):
        assert run.series(key) == pytest.approx(one.series(key), rel=1e-5), explain([], run, one)
    assert run.summary["held_out_loss"] == pytest.approx(one.summary["held_out_loss"], rel=1e-5), explain([], run, one)


@pytest.mark.parametrize("model, plan", [
    ("gpt-micro", "dp=2,tp=2,sp,microbatches=2"),
    ("llama-micro", "dp=4,grad_reduce=microbatch,microbatches=2"),
    ("llama-thirds", "tp=3"),
] if meshwright.EVERYTHING else [("gpt-micro", "dp=2,tp=2,sp,microbatches=2")])
def test_a_base_plan_follows_one_rank_for_fifty_steps(runs, model, plan):
    run, one = runs.run(model, plan, steps=50), runs.run(model, "dp=1", steps=50)
    assert one.metrics[-1]["loss"] < one.metrics[0]["loss"] - 0.3
    assert run.series("loss") == pytest.approx(one.series("loss"), rel=1e-5), explain([], run, one)


def not_refused(job: pathlib.Path, draw) -> tuple[dict, str]:
    """The first plan that draw() makes and verify takes, and its short form."""
    while True:
        plan = draw()
        text = plans.short_form(plan)
        arguments = ["verify", job, "--plan", text]
        done = meshwright.execute(arguments)
        if done.returncode == 0:
            return plan, text
        assert done.returncode == 2, f"{meshwright.command_line(arguments)}\n{done.stderr}"


@pytest.mark.parametrize("number", range(ANY if meshwright.EVERYTHING else ANY // 5))
def test_any_plan_is_refused_or_equals_its_base_plan(runs, number):
    """Drawn from all schedules and options; what is refused is drawn again."""
    rng = random.Random(f"{meshwright.SEED} {number}")
    model = rng.choice(list(MODELS))
    shape = MODELS[model]
    layers = shape.changes.get("num_hidden_layers", 4)
    plan, text = not_refused(
        runs.job(model), lambda: plans.any_plan(rng, layers=layers, global_batch=shape.global_batch, tp=shape.tp))
    run = runs.get(model, text)
    base = runs.get(model, plans.short_form(plans.base(plan)))
    if plan["schedule"] in plans.ROUNDED:
        for key in ("loss", "grad_norm"):
            assert run.series(key) == pytest.approx(base.series(key), rel=1e-6), explain([], run, base)
    else:
        found = differences(run, base)
        assert not found, explain(found, run, base)


def written_plan(rng: random.Random, shape: Model, path: pathlib.Path) -> tuple[dict, bool]:
    """A plan with a random schedule, which is written to `path`; whether it keeps the order of every sum."""
    layers = shape.changes.get("num_hidden_layers", 4)
    plan = plans.any_plan(rng, layers=layers, global_batch=shape.global_batch, tp=shape.tp)
    for key in ("chunks", "group", "pairs", "slices", "memory_limit", "costs", "layers"):
        plan.pop(key, None)
    stages = plan["pp"] * rng.choice([1, 1, 2, 3])
    if stages > layers or rng.random() < 0.3:
        cuts = sorted(rng.randint(0, layers) for _ in range(stages - 1))
        plan["layers"] = ":".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, layers]))
    ascending, more = rng.random() < 0.7, {}
    if plan["pp"] > 1 and plan["microbatches"] > 1 and rng.random() < 0.2:
        more["replicas"] = 2
    if plan["cp"] == 1 and shape.seq_len % 4 == 0 and rng.random() < 0.2:
        more["slices"] = rng.choice([2, 4])
    rows = orders.random_order(rng, ranks=plan["pp"], stages=stages, microbatches=plan["microbatches"],
                               ascending=ascending, **more)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    plan["schedule"] = str(path)
    return plan, ascending and not more


@pytest.mark.parametrize("number", range(WRITTEN if meshwright.EVERYTHING else WRITTEN // 5))
def test_a_schedule_from_a_file_equals_the_base_plan(runs, number):
    """Any placement of stages and any order that runs; what is refused for other reasons is drawn again."""
    rng = random.Random(f"written {meshwright.SEED} {number}")
    model = rng.choice(list(MODELS))
    keeps_sums = False

    def draw() -> dict:
        nonlocal keeps_sums
        plan, keeps_sums = written_plan(rng, MODELS[model], runs.folder / f"order-{number}.csv")
        return plan

    plan, text = not_refused(runs.job(model), draw)
    run = runs.get(model, text)
    base = runs.get(model, plans.short_form(plans.base(plan)))
    if keeps_sums:
        found = differences(run, base)
        assert not found, explain(found, run, base)
    for key in ("loss", "grad_norm"):
        assert run.series(key) == pytest.approx(base.series(key), rel=1e-6), explain([], run, base)
    assert (run.folder / "plan.json").read_text(encoding="utf-8").count('"actions"') == 1


# Microbatches in another order (looped-bfs), weights held twice or more (chimera, dualpipe), slices of sequences.
ROUNDED = [
    ("gpt-dropout", "dp=2,pp=2,schedule=looped-bfs,chunks=2,microbatches=4,zero=1"),
    ("gpt-micro", "dp=2,pp=4,schedule=chimera,microbatches=8,zero=1,recompute=selective,layers=1:2:0:1"),
    ("gpt-micro", "dp=2,tp=2,pp=2,schedule=dualpipe,microbatches=4,sp,zero=1,layers=1:3"),
    ("gpt-micro", "dp=2,tp=2,pp=2,schedule=seq-1f1b,microbatches=4,sp,zero=1,recompute=selective,layers=3:1,slices=4"),
    ("gpt-dropout", "tp=2,pp=4,schedule=chimera,microbatches=8,sp,pairs=2"),
    ("gpt-dropout", "dp=2,pp=4,schedule=dualpipe,microbatches=8,zero=3,recompute=full"),
    ("gpt-dropout", "pp=4,schedule=dualpipe,microbatches=8,post_validation"),
    ("llama-micro", "dp=2,pp=2,schedule=chimera-doubling,microbatches=4,zero=2"),
    ("gpt-micro", "pp=4,schedule=chimera-halving,microbatches=4,recompute=full,layers=0:2:1:1"),
    ("llama-micro", "dp=2,pp=2,schedule=chimera-halving,microbatches=2,zero=1"),
    ("llama-micro", "pp=4,schedule=seq-1f1b,microbatches=2,zero=0"),
    ("llama-micro", "dp=2,pp=2,schedule=seq-1f1b,microbatches=4,zero=3,slices=8"),
]


@pytest.mark.parametrize("model, plan", ROUNDED if meshwright.EVERYTHING else ROUNDED[:4])
def test_a_schedule_that_sums_in_another_order_changes_rounding_alone(runs, model, plan):
    run = runs.run(model, plan, steps=20)
    base = runs.run(model, plans.short_form(plans.base(plans.parse(plan))), steps=20)
    for key in ("loss", "grad_norm"):
        assert run.series(key) == pytest.approx(base.series(key), rel=1e-6), explain([], run, base)


@pytest.mark.parametrize("model, first, then", RESUMED)
def test_a_resumed_run_goes_on_as_the_unbroken_one(runs, model, first, then):
    half = runs.run(model, first, steps=STEPS // 2)
    rest = runs.run(model, then, "--resume", half.folder)
    assert [line["step"] for line in rest.metrics] == list(range(STEPS // 2 + 1, STEPS + 1))
    base_of_first, base_of_rest = plans.base(plans.parse(first)), plans.base(plans.parse(then))
    unbroken = runs.get(model, plans.short_form(base_of_first))
    if base_of_first == base_of_rest:
        found = differences(rest, unbroken)
        assert not found, explain(found, half, rest, unbroken)
    for key in ("loss", "grad_norm"):
        assert rest.series(key) == pytest.approx(unbroken.series(key)[STEPS // 2:], rel=1e-5), explain(
            [], half, rest, unbroken)


def test_random_plans_are_valid(runs):
    """Every one that --plan refuses or that cannot be proved is a mistake here or there."""
    rng = random.Random(meshwright.SEED + 1)
    for _ in range(100 if meshwright.EVERYTHING else 10):
        model = rng.choice(list(MODELS))
        arguments = ["verify", runs.job(model), "--plan", random_plan(rng, model)]
        done = meshwright.execute(arguments)
        assert done.returncode == 0, f"seed {meshwright.SEED}\n{meshwright.command_line(arguments)}\n{done.stderr}"

"""Plans as dictionaries: base plans, and random ones that are all valid."""

import random

FIELDS = ("dp", "tp", "pp", "cp", "order", "schedule", "chunks", "microbatches", "sp", "regather", "zero", "recompute",
          "grad_reduce", "bucket_mb", "prefetch_mb", "layers", "group", "pairs", "slices", "memory_limit", "costs",
          "post_validation")
LARGEST = 16  # ranks
# Schedules whose sums are in another order than the base plan's: microbatches, weights held twice or more, slices.
ROUNDED = ("looped-bfs", "chimera", "chimera-doubling", "chimera-halving", "dualpipe", "seq-1f1b")
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "zb-auto", "interleaved-zb", "v-half", "v-min",
             "hanayo", "dualpipe-v", *ROUNDED)
WITH_CHUNKS = ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "hanayo")
TWO_CHUNKS = ("zb-v", "v-half", "v-min", "dualpipe-v")


def parse(text: str) -> dict:
    plan = {}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        assert key in FIELDS, item
        plan[key] = True if not equals else int(value) if value.isdigit() else value
    return plan


def short_form(plan: dict) -> str:
    return ",".join(key if plan[key] is True else f"{key}={plan[key]}" for key in FIELDS if key in plan)


def ranks(plan: dict) -> int:
    return plan.get("dp", 1) * plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1)


def base(plan: dict) -> dict:
    """One stage, no ZeRO, no recompute; the same dp, tp, cp, sp, microbatches and reduction of gradients."""
    kept = {key: plan[key] for key in ("dp", "tp", "cp", "sp", "microbatches") if key in plan}
    if plan.get("schedule") == "chimera-halving":  # whose microbatches are halves
        kept["microbatches"] = 2 * plan.get("microbatches", 1)
    divided = plan.get("zero", 0) >= 2 and plan.get("dp", 1) * plan.get("cp", 1) > 1
    kept["grad_reduce"] = plan.get("grad_reduce", "microbatch" if divided else "step")
    return kept


def composition(rng: random.Random, total: int, parts: int) -> list[int]:
    """`total` as a sum of `parts` numbers of at least 1."""
    cuts = sorted(rng.sample(range(1, total), parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total])]


def random_plan(rng: random.Random, *, layers: int, global_batch: int, tp: list[int]) -> dict:
    """REQUIRES: `tp` are values that divide the heads, at least four layers."""
    dp = [n for n in range(1, 9) if global_batch % n == 0]
    while True:
        plan = {"dp": rng.choice(dp), "tp": rng.choice(tp), "pp": rng.choice([1, 2, 3, 4])}
        if 1 < ranks(plan) <= LARGEST:
            break
    plan["schedule"] = rng.choice(["gpipe", "1f1b", "interleaved-1f1b"])
    interleaved = plan["schedule"] == "interleaved-1f1b"
    if interleaved:
        plan["chunks"] = rng.randint(1, layers // plan["pp"])
    whole = [m for m in range(1, 9) if global_batch % (plan["dp"] * m) == 0]
    fitting = [m for m in whole if not interleaved or m % plan["pp"] == 0]
    if not fitting:  # such as three ranks and a batch of 16
        plan["schedule"] = "1f1b"
        plan.pop("chunks")
        fitting = whole
    plan["microbatches"] = rng.choice(fitting)
    if plan["tp"] > 1 and rng.random() < 0.6:
        plan["sp"] = True
    plan["zero"] = rng.choice([0, 1, 1, 2, 3])
    plan["recompute"] = rng.choice(["none", "selective", "full", "selective-op"])
    if rng.random() < 0.5:
        plan["grad_reduce"] = rng.choice(["step", "microbatch"])
    stages = plan["pp"] * plan.get("chunks", 1)
    if stages > 1 and rng.random() < 0.5:
        plan["layers"] = ":".join(map(str, composition(rng, layers, stages)))
    if rng.random() < 0.3:
        axes = ["pp", "dp", "tp"]
        rng.shuffle(axes)
        plan["order"] = "-".join(axes)
    if "sp" in plan and rng.random() < 0.5:
        plan["regather"] = True
    if plan["pp"] > 1 and rng.random() < 0.25:
        plan["post_validation"] = True
    return plan


def any_plan(rng: random.Random, *, layers: int, global_batch: int, tp: list[int]) -> dict:
    """Of all schedules and options, also what a plan may not say; stages without blocks too."""
    def often(share: float) -> bool:
        return rng.random() < share

    dp = [n for n in (1, 1, 2, 2, 3, 4, 8) if global_batch % n == 0]
    while True:
        plan = {"dp": rng.choice(dp), "tp": rng.choice(tp), "pp": rng.choice([1, 2, 2, 3, 4, 4, 5]), "cp": rng.choice([1, 1, 1, 2, 3])}
        if 1 < ranks(plan) <= LARGEST:
            break
    schedule = plan["schedule"] = rng.choice(SCHEDULES)
    chunks = 2 if schedule in TWO_CHUNKS else 1
    if schedule in WITH_CHUNKS:
        chunks = plan["chunks"] = rng.choice([1, 2, 2, 3, 4])
    plan["microbatches"] = rng.choice([m for m in range(1, 17) if global_batch % (plan["dp"] * m) == 0])
    plan["zero"] = rng.choice([0, 1, 2, 3])
    plan["recompute"] = rng.choice(["none", "selective", "full", "selective-op"])
    if plan["tp"] > 1 and often(0.6):
        plan["sp"] = True
    if ("sp" in plan or plan["cp"] > 1) and often(0.4):
        plan["regather"] = True
    options = {"grad_reduce": ["step", "microbatch"], "bucket_mb": [0, 1], "prefetch_mb": [0], "post_validation": [True]}
    if schedule.startswith("chimera"):
        options["pairs"] = [1, 2]
    if schedule.startswith("interleaved"):
        options["group"] = [2, 3, 4]
    if schedule == "seq-1f1b":
        options["slices"] = [2, 3, 4, 8]
    if schedule == "zb-auto":
        options |= {"memory_limit": [1, 2, 3.5, 4, 6, 9], "costs": ["1:1.2:0.8:0.1", "1:2:1", "2:1:0.5:0.3"]}
    for key, values in options.items():
        if often(0.35):
            plan[key] = rng.choice(values)
    stages = plan["pp"] * chunks
    if stages > 1 and often(0.5):
        cuts = sorted(rng.randint(0, layers) for _ in range(stages - 1))
        plan["layers"] = ":".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, layers]))
    if often(0.4):
        axes = ["pp", "dp", "tp", "cp"] if plan["cp"] > 1 else ["pp", "dp", "tp"]
        rng.shuffle(axes)
        plan["order"] = "-".join(axes)
    return plan

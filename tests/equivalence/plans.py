"""Plans as dictionaries: base plans, and random ones that are all valid."""

import random

FIELDS = ("dp", "tp", "pp", "cp", "order", "schedule", "chunks", "microbatches", "sp", "regather", "zero", "recompute",
          "grad_reduce", "layers", "group", "pairs", "slices", "memory_limit", "costs", "post_validation")
LARGEST = 16  # ranks


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
    kept["grad_reduce"] = plan.get("grad_reduce", "microbatch" if plan.get("zero", 0) >= 2 else "step")
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

"""Random schedules as the CSV of torch.distributed.pipelining: any placement, any order that runs."""

import random


def random_order(rng: random.Random, *, ranks: int, stages: int, microbatches: int, ascending: bool = True,
                 replicas: int = 1, slices: int = 1) -> list[str]:
    """One line a rank. `ascending`: F, I, W and B of a stage go through the microbatches in order.

    Actions are taken one by one, each when it could run: in the order of its rows such a schedule never waits in a
    circle. REQUIRES: at least as many stages as ranks, and as many microbatches as replicas, of which there are two only
    on two ranks or more.
    """
    places = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(places)
    hosts = [places, [(place + rng.randrange(1, ranks)) % ranks for place in places] if replicas > 1 else []]
    takes = [*range(replicas), *(rng.randrange(replicas) for _ in range(microbatches - replicas))]
    split = rng.choice([0.0, 0.5, 1.0])  # share of the backwards that are I and W apart
    eager = rng.choice([0.0, 0.5, 1.0])  # how often a backward goes before a forward
    units = [(s, m, k) for s in range(stages) for m in range(microbatches) for k in range(slices)]
    left = {(kind, *unit) for kind in "FB" for unit in units}
    done = set()

    def comes_next(kind: str, s: int, m: int, k: int) -> bool:
        """Behind the slices before it, a backward's last slice first, and the microbatches of its replica before it."""
        if kind == "F" and k > 0 or kind != "F" and k + 1 < slices:
            return (kind, s, m, k - 1 if kind == "F" else k + 1) in done
        last = slices - 1 if kind == "F" else 0
        return not ascending or all((kind, s, n, last) in done for n in range(m) if takes[n] == takes[m])

    def can_run(kind: str, s: int, m: int, k: int) -> bool:
        if not comes_next(kind, s, m, k):
            return False
        if kind == "F":
            return s == 0 or ("F", s - 1, m, k) in done
        if kind == "B":
            return ("F", s, m, slices - 1) in done and (s + 1 == stages or ("B", s + 1, m, k) in done)
        return ("B", s, m, k) in done

    rows = [[] for _ in range(ranks)]
    while left:
        ready = sorted(action for action in left if can_run(*action))
        backward = [action for action in ready if action[0] != "F"]
        kind, s, m, k = action = rng.choice(backward if backward and rng.random() < eager else ready)
        left.remove(action)
        done.add(action)
        whole = kind == "B" and comes_next("W", s, m, k) and rng.random() >= split
        if whole:
            done.add(("W", s, m, k))
        elif kind == "B":
            left.add(("W", s, m, k))
        name = kind if kind != "B" or whole else "I"
        tags = (f"/{k}" if slices > 1 else "") + (f"^{takes[m]}" if replicas > 1 else "")
        rows[hosts[takes[m]][s]].append(f"{s}{name}{m}{tags}")
    return [",".join(row) for row in rows]

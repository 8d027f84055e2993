"""What the ranks send, to the byte and by count, against formulas: each collective of a step's trace.

The executor writes the trace, and checks at the end of every step that its bytes are the verifier's.

L layers, b sequences of a microbatch, s sequence, h hidden, V vocabulary, t tensor-parallel and n data-parallel ranks, m
microbatches. Ring volume of a rank [Thakur 2005]: all-reduce 2(n-1)/n, gather and scatter (n-1)/n of the tensor.
"""

import collections
import json
import math
import pathlib
import re
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

FLOAT, DOUBLE = 4, 8
GLOBAL_BATCH, s, h = 16, 64, 64
NORM_BLOCK = 256  # elements: flat states pad every parameter to it
LARGE = 8192      # a vocabulary whose table is larger than the activations of a microbatch


def all_reduce(size: int, n: int) -> int:
    return math.ceil(2 * (n - 1) * size / n)


def gather(size: int, n: int) -> int:
    """Also a reduce-scatter."""
    return math.ceil((n - 1) * size / n)


def round_up(count: int, multiple: int) -> int:
    return math.ceil(count / multiple) * multiple


class Sent:
    """What the ranks sent in a step: counts by (operation, bytes), in microbatches and once a step."""

    def __init__(self, run: meshwright.Run) -> None:
        self.microbatch: list[collections.Counter] = []  # [rank]
        self.step: list[collections.Counter] = []
        self.boundary: list[collections.Counter] = []    # bytes of messages
        self.peak = run.summary["peak_bytes_per_rank"]
        self.tensors = {name: math.prod(tensor.shape) for name, tensor in run.tensors("model").items()}
        events = [e for e in json.loads((run.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
                  if e["ph"] == "X" and "bytes" in e.get("args", {}) and e["cat"] != "step"]
        for rank in sorted({event["pid"] for event in events}):
            self.microbatch.append(collections.Counter())
            self.step.append(collections.Counter())
            self.boundary.append(collections.Counter())
            for event in (e for e in events if e["pid"] == rank):
                size = event["args"]["bytes"]
                if event["name"] == "publish":
                    self.boundary[-1][size] += 1
                else:
                    counts = self.microbatch if "microbatch" in event["args"] else self.step
                    counts[-1][event["name"], size] += 1
        total = sum(event["args"]["bytes"] for event in events)
        assert total == run.summary["bytes_sent_per_step"], run.command

    def padded(self, *names: str, n: int = 1) -> int:
        """Bytes of the flat states of all tensors, or of those whose name ends so: a state for each layer, sharded over n
        ranks."""
        layers = collections.Counter()
        for name, elements in self.tensors.items():
            if names and not name.endswith(names):
                continue
            block = re.search(r"\.(?:h|layers)\.(\d+)\.", name)
            head = name.endswith(("ln_f.weight", "ln_f.bias", "model.norm.weight", "lm_head.weight"))
            layers[block.group(1) if block else "head" if head else name] += round_up(elements, NORM_BLOCK)
        return FLOAT * sum(round_up(elements, NORM_BLOCK * n) for elements in layers.values())


def volume(counts: collections.Counter) -> int:
    return sum(size * count for (_, size), count in counts.items())


@pytest.fixture
def sent(tmp_path):
    def run(model: str, plan: str, tokens: int = 256, **changes) -> Sent:
        config = {**json.loads((meshwright.ROOT / "models" / f"{model}.json").read_text(encoding="utf-8")), **changes}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        corpus = meshwright.write_indexed(tmp_path / "corpus", [i * 7 % tokens for i in range(GLOBAL_BATCH * s + 1)])
        job = meshwright.write_job(tmp_path / "job.toml", model=tmp_path / "config.json", data=corpus, seq_len=s,
                                   global_batch=GLOBAL_BATCH)
        count = len(list(tmp_path.glob("run-*")))
        return Sent(meshwright.train(tmp_path / f"run-{count}", job, plan))
    return run


MODELS = [("gpt-micro", "n_layer"), ("llama-micro", "num_hidden_layers")]


@pytest.mark.parametrize("model, layers", MODELS)
@pytest.mark.parametrize("t, L, m", [(2, 4, 2), (2, 3, 1), (4, 2, 2)])
def test_tensor_parallel_sends_8bsh_a_layer_and_an_o_of_bs_for_the_loss(sent, model, layers, t, L, m):
    """Two all-reduces forward and two backward a layer; one for the embedding and one for the head's input gradient. The
    vocabulary-parallel loss reduces its maximum, its sum and the target's logit: nothing of size V."""
    heads = {"num_key_value_heads": 4} if model == "llama-micro" else {}
    b = GLOBAL_BATCH // m
    one_layer = 8 * b * s * h * (t - 1) // t * FLOAT
    bsh, bs = all_reduce(b * s * h * FLOAT, t), all_reduce(b * s * FLOAT, t)
    assert 4 * bsh == one_layer
    for V in (256, LARGE):
        found = sent(model, f"tp={t},microbatches={m}", vocab_size=V, **{layers: L}, **heads)
        assert found.microbatch == [{("all_reduce", bsh): m * (4 * L + 2), ("all_reduce", bs): m * 3}] * t
        assert found.step == [{("all_reduce", all_reduce(len(found.tensors) * DOUBLE, t)): 1}] * t


@pytest.mark.parametrize("model, layers", MODELS)
@pytest.mark.parametrize("t, L, m", [(2, 4, 2), (2, 3, 1), (4, 2, 2)])
def test_sequence_parallel_sends_the_same_as_gathers_and_scatters(sent, model, layers, t, L, m):
    """And what is replicated over tp, norms, biases and positions, is summed once a step."""
    heads = {"num_key_value_heads": 4} if model == "llama-micro" else {}
    b = GLOBAL_BATCH // m
    bsh, bs = gather(b * s * h * FLOAT, t), all_reduce(b * s * FLOAT, t)
    found = sent(model, f"tp={t},sp,microbatches={m}", vocab_size=LARGE, **{layers: L}, **heads)
    assert found.microbatch == [{("all_gather", bsh): m * (4 * L + 2), ("reduce_scatter", bsh): m * (4 * L + 2),
                                 ("all_reduce", bs): m * 3}] * t
    shared = found.padded("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "ln_f.weight", "ln_f.bias",
                          "wpe.weight", "attn.c_proj.bias", "mlp.c_proj.bias", "norm.weight")
    assert found.step == [collections.Counter([("all_reduce", all_reduce(shared, t)),
                                               ("all_reduce", all_reduce(len(found.tensors) * DOUBLE, t))])] * t


@pytest.mark.parametrize("model, layers", MODELS)
def test_gathering_again_sends_two_gathers_more_a_layer_and_holds_less(sent, model, layers):
    """And one more for the head; nothing whole is saved that lies on t ranks in parts."""
    t, L, m = 2, 4, 2
    b = GLOBAL_BATCH // m
    bsh, bs = gather(b * s * h * FLOAT, t), all_reduce(b * s * FLOAT, t)
    saved = sent(model, f"tp={t},sp,microbatches={m}", vocab_size=LARGE, **{layers: L})
    found = sent(model, f"tp={t},sp,regather,microbatches={m}", vocab_size=LARGE, **{layers: L})
    assert found.microbatch == [{("all_gather", bsh): m * (6 * L + 3), ("reduce_scatter", bsh): m * (4 * L + 2),
                                 ("all_reduce", bs): m * 3}] * t
    assert found.step == saved.step
    assert found.peak < saved.peak - L * b * s * h * FLOAT


@pytest.mark.parametrize("sp", [False, True])
def test_fewer_key_heads_than_tensor_parallel_ranks_cost_one_sum_of_their_gradients_a_step(sent, sp):
    """Two key heads on four ranks: nothing more is sent in a microbatch; wk and wv are summed over the two ranks that hold
    each of their shards."""
    t, L, m, held = 4, 4, 2, 2
    b = GLOBAL_BATCH // m
    found = sent("llama-micro", f"tp={t},microbatches={m}{',sp' if sp else ''}", vocab_size=LARGE)
    bs = all_reduce(b * s * FLOAT, t)
    if sp:
        bsh = gather(b * s * h * FLOAT, t)
        moves = {("all_gather", bsh): m * (4 * L + 2), ("reduce_scatter", bsh): m * (4 * L + 2)}
    else:
        moves = {("all_reduce", all_reduce(b * s * h * FLOAT, t)): m * (4 * L + 2)}
    assert found.microbatch == [{**moves, ("all_reduce", bs): m * 3}] * t
    keys = found.padded("k_proj.weight", "v_proj.weight") * held // t
    step = collections.Counter([("all_reduce", all_reduce(keys, held)),
                                ("all_reduce", all_reduce(len(found.tensors) * DOUBLE, t))])
    if sp:
        step["all_reduce", all_reduce(found.padded("norm.weight"), t)] += 1
    assert found.step == [step] * t


def test_a_small_table_is_scattered_rather_than_its_gradient_gathered(sent):
    """The cheaper of Vh and bsh for the embedding's gradient under sequence parallelism."""
    b, V = GLOBAL_BATCH // 2, 256
    assert V < b * s
    found = sent("gpt-micro", "tp=2,sp,microbatches=2", vocab_size=V)
    assert found.microbatch[0]["reduce_scatter", gather(V * h * FLOAT, 2)] == 2
    assert found.microbatch[0]["all_gather", gather(b * s * h * FLOAT, 2)] == 2 * (4 * 4 + 1)


@pytest.mark.parametrize("model", ["gpt-micro", "llama-micro"])
@pytest.mark.parametrize("n", [2, 4])
def test_zero_1_sends_what_plain_data_parallelism_sends(sent, model, n):
    """One reduction of all gradients, whatever the microbatches; ZeRO-1 splits it into a scatter and a gather. Beside it
    go the loss and, with ZeRO-1, the norm's block sums: 8 bytes in 1024 of the weights."""
    plain, zero = sent(model, f"dp={n},microbatches=2"), sent(model, f"dp={n},microbatches=2,zero=1")
    weights = plain.padded(n=n)
    loss = ("all_reduce", all_reduce(FLOAT, n))
    norm_sums = ("all_gather", gather(weights // FLOAT // NORM_BLOCK * DOUBLE, n))
    assert plain.step == [{("all_reduce", all_reduce(weights, n)): 1, loss: 1}] * n
    assert zero.step == [{("reduce_scatter", gather(weights, n)): 1, ("all_gather", gather(weights, n)): 1, norm_sums: 1,
                          loss: 1}] * n
    assert volume(zero.step[0]) - norm_sums[1] == volume(plain.step[0])
    assert all(not counts for counts in plain.microbatch + zero.microbatch)


@pytest.mark.parametrize("model, looked_up, twice", [("gpt-micro", ["wpe.weight"], ["wte.weight"]),
                                                     ("llama-micro", ["embed_tokens.weight"], [])])
def test_zero_3_sends_weights_twice_a_microbatch_and_gradients_as_grad_reduce_says(sent, model, looked_up, twice):
    """Forward and backward gather each weight, but for tables whose gradient does not need them. A scatter of gradients
    follows every use of every microbatch, or the last microbatch."""
    n, m = 2, 2
    found = {how: sent(model, f"dp={n},zero=3,microbatches={m},grad_reduce={how}") for how in ("step", "microbatch")}
    for how, counts in found.items():
        weights, table = counts.padded(n=n), counts.padded(*looked_up, n=n)
        by_kind = collections.Counter()
        for scope in ("microbatch", "step"):
            for (kind, size), count in getattr(counts, scope)[0].items():
                by_kind[scope, kind] += size * count
        assert by_kind["microbatch", "all_gather"] == m * gather(2 * weights - table, n)
        of_uses = weights + (counts.padded(*twice, n=n) if twice else 0)
        assert by_kind["microbatch", "reduce_scatter"] == (m * gather(of_uses, n) if how == "microbatch" else 0)
        assert by_kind["step", "reduce_scatter"] == (gather(weights, n) if how == "step" else 0)
        # No weights: the norm's block sums alone.
        assert by_kind["step", "all_gather"] == gather(weights // FLOAT // NORM_BLOCK * DOUBLE, n)


@pytest.mark.parametrize("plan, hops", [
    # per pipeline rank: boundaries that it sends over, forward and backward
    ("pp=2,microbatches=4", [1, 1]),
    ("pp=4,microbatches=4", [1, 2, 2, 1]),
    ("pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4", [3, 3]),
    ("tp=2,pp=2,microbatches=4,order=pp-dp-tp", [1, 1, 1, 1]),
    ("tp=2,pp=2,microbatches=4,sp,order=pp-dp-tp", [1, 1, 1, 1]),
])
@pytest.mark.parametrize("model", ["gpt-micro", "llama-micro"])
def test_boundaries_carry_bsh_or_with_sequence_parallelism_a_share_of_it(sent, model, plan, hops):
    m, share = 4, 2 if "sp" in plan.split(",") else 1
    found = sent(model, plan)
    size = GLOBAL_BATCH // m * s * h * FLOAT // share
    assert found.boundary == [{size: m * hop} for hop in hops]


@pytest.mark.parametrize("plan, t", [("pp=2,microbatches=4", 1), ("pp=4,microbatches=8", 1),
                                     ("tp=2,pp=2,microbatches=2", 2)])
def test_a_tied_embedding_is_reduced_once_between_its_two_stages(sent, plan, t):
    V = LARGE
    tied = ("all_reduce", all_reduce(V // t * h * FLOAT, 2))
    with_tie = sent("gpt-micro", plan, vocab_size=V, tie_word_embeddings=True)
    without = sent("gpt-micro", plan, vocab_size=V, tie_word_embeddings=False)
    stages = len(with_tie.step) // t
    once = [1] * t + [0] * (stages - 2) * t + [1] * t
    assert [counts[tied] for counts in with_tie.step] == once
    assert [counts[tied] for counts in without.step] == [0] * len(once)


def test_a_vocabulary_smaller_than_tp_leaves_the_loss_pending_and_sums_it_once(sent):
    """Three rows on four ranks: the head is cheapest by sequence, and every rank has a part of the loss."""
    found = sent("gpt-micro", "tp=4,sp,microbatches=2", vocab_size=3, tokens=3)
    assert [counts["all_reduce", all_reduce(FLOAT, 4)] for counts in found.step] == [1] * 4

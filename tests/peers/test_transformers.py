"""The same weights in transformers: losses, gradients and training of GPT-2 and Llama, float32 on the CPU.

A corpus of exactly one batch makes the first step see every sample, whatever the order. beta1 = 0 makes
the first moment after step 1 the gradient itself, so the checkpoint shows it by Hugging Face name.

B samples, S sequence
"""

import dataclasses
import functools
import math

import pytest

import meshwright
from sample_order import SampleOrder

torch = pytest.importorskip("torch", reason="scripts/setup installs torch into build/venv")
transformers = pytest.importorskip("transformers", reason="scripts/setup --test installs transformers into build/venv")

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

torch.set_num_threads(1)
SEQ_LEN = 63
GLOBAL_BATCH = 16
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-5
SMALL = 1e-6  # of the global norm: below it a tensor's gradient is rounding alone

# A vocabulary and a sequence that no tp divides, and an ffn that 4 does not.
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=257, n_positions=64, n_embd=64, n_layer=4, n_head=4, n_inner=150, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0),
    "gpt2-untied": lambda: transformers.GPT2Config(
        vocab_size=256, n_positions=63, n_embd=48, n_layer=4, n_head=4, activation_function="gelu", resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False, bos_token_id=0,
        eos_token_id=0),
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0),
    "llama-tied": lambda: transformers.LlamaConfig(
        vocab_size=300, max_position_embeddings=80, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=4, head_dim=24, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, bos_token_id=0,
        eos_token_id=0),
    "llama-mistral": lambda: transformers.MistralConfig(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, sliding_window=None, bos_token_id=0, eos_token_id=0),
    "llama-qwen2": lambda: transformers.Qwen2Config(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=0),
    "llama-qwen3": lambda: transformers.Qwen3Config(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True, bos_token_id=0,
        eos_token_id=0),
    "llama3": lambda: transformers.LlamaConfig(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "llama-linear": lambda: transformers.LlamaConfig(
        vocab_size=257, max_position_embeddings=64, hidden_size=64, intermediate_size=150, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0}),
}

EVERY_MODEL = [
    "dp=1",
    "dp=1,microbatches=4",
    "dp=4,microbatches=2",
    "tp=2",
    "tp=2,sp,microbatches=2",
    "pp=4,microbatches=4",
    "pp=2,schedule=gpipe,layers=1:3,microbatches=4",
    "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4",
    "dp=2,zero=1,microbatches=2",
    "dp=2,zero=2,microbatches=2",
    "dp=2,tp=2,sp,zero=3,microbatches=2",
    "dp=2,microbatches=4,grad_reduce=microbatch",
    "tp=2,microbatches=2,recompute=selective",
    "tp=2,sp,pp=2,microbatches=2,recompute=full",
    "dp=2,tp=2,pp=4,microbatches=4,sp,zero=1,recompute=selective",
]
# Of the llama with two key heads, two ranks hold each.
FOUR_RANKS = ["tp=4", "tp=4,sp,microbatches=2", "tp=4,sp,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=2"]
CASES = [(model, plan) for model in ("gpt2", "llama") for plan in EVERY_MODEL]
CASES += [(model, plan) for model in ("gpt2", "llama") for plan in FOUR_RANKS]
FEW = ["dp=1", "tp=4,sp", "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1"]
CASES += [(model, plan) for model in ("gpt2-untied", "llama-tied")
          for plan in (FEW + EVERY_MODEL if meshwright.EVERYTHING else FEW)]
CASES += [(model, plan) for model in ("llama-qwen2", "llama-qwen3", "llama-mistral") for plan in FEW[1:]]
CASES += [("llama3", "dp=2,tp=2,pp=2,microbatches=2,sp"), ("llama-linear", "pp=2,microbatches=2")]


def fill(model, seed: int) -> None:
    """Weights that hide no mistake: no zero bias, no norm of ones, all of another scale."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * (0.2 if "embed" in name or "wte" in name else 0.1))
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            else:
                parameter.copy_(1 + noise * 0.2)


def mean_loss(model, tokens_BS, targets_BS):
    logits_BSV = model(tokens_BS).logits
    return torch.nn.functional.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


def cut(tokens, first: int, samples: list[int], seq_len: int):
    """Inputs and targets of the samples of a set that begins at `first`."""
    rows = torch.stack([tokens[first + s * seq_len:first + (s + 1) * seq_len + 1] for s in samples]).long()
    return rows[:, :-1], rows[:, 1:]


@dataclasses.dataclass
class Peer:
    model: object
    job: object      # path
    weights: object  # path
    loss: float
    gradients: dict  # by Hugging Face name


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    @functools.cache
    def make(name: str) -> Peer:
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(3)
        config = CONFIGS[name]()
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        fill(model, seed=11)
        model.save_pretrained(folder)
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(config.vocab_size, (GLOBAL_BATCH * SEQ_LEN + 1,), generator=generator)
        data = meshwright.write_indexed(folder / "corpus", tokens.tolist())
        job = meshwright.write_job(folder / "job.toml", model=folder / "config.json", data=data, seq_len=SEQ_LEN,
                                   global_batch=GLOBAL_BATCH, beta1=0, clip=0)
        loss = mean_loss(model, *cut(tokens, 0, range(GLOBAL_BATCH), SEQ_LEN))
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return Peer(model, job, folder / "model.safetensors", loss.item(), gradients)
    return make


def as_torch(tensor: meshwright.Tensor):
    assert tensor.dtype == "F32"
    return torch.frombuffer(bytearray(tensor.data), dtype=torch.float32).reshape(tensor.shape)


def differing(found: dict, wanted: dict) -> list[str]:
    """One line a tensor whose gradient is beyond the tolerance."""
    norm = math.sqrt(sum(g.double().square().sum().item() for g in wanted.values()))
    lines = []
    for name, gradient in wanted.items():
        error = (found[name] - gradient).abs().max().item()
        small = gradient.norm().item() < SMALL * norm
        limit = SMALL * norm if small else GRADIENT_TOLERANCE * gradient.abs().max().item()
        if not error <= limit:
            lines.append(f"{name}: max|a-b| = {error:.3e}, must be at most {limit:.3e}")
    return lines


@pytest.mark.parametrize("name, plan", CASES)
def test_loss_and_gradients_are_those_of_transformers(peer, tmp_path, name, plan):
    wanted = peer(name)
    run = meshwright.train(tmp_path / "run", wanted.job, plan, "--init", wanted.weights)
    assert run.metrics[0]["loss"] == pytest.approx(wanted.loss, rel=LOSS_TOLERANCE), run.command
    moments = run.tensors("optimizer")
    found = {key.removeprefix("exp_avg."): as_torch(tensor) for key, tensor in moments.items()
             if key.startswith("exp_avg.")}
    assert found.keys() == wanted.gradients.keys()
    assert not differing(found, wanted.gradients), run.command
    norm = math.sqrt(sum(g.double().square().sum().item() for g in wanted.gradients.values()))
    assert run.metrics[0]["grad_norm"] == pytest.approx(norm, rel=LOSS_TOLERANCE), run.command


def text_tokens(length: int):
    if not meshwright.TEXT.exists():
        pytest.skip(f"{meshwright.TEXT} is missing; scripts/setup writes it")
    return torch.frombuffer(bytearray(meshwright.TEXT.read_bytes()[:length]), dtype=torch.uint8)


def text_job(folder, tokens, **keys):
    (folder / "text.txt").write_bytes(bytes(tokens.tolist()))
    return meshwright.write_job(folder / "job.toml", data=folder / "text.txt", **keys)


@pytest.mark.parametrize("name, plan", [("gpt2", "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1"),
                                        ("llama", "tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=2"),
                                        ("llama-tied", "dp=2,pp=2,microbatches=2,zero=3")])
def test_a_saved_model_loads_in_transformers(peer, tmp_path, name, plan):
    """Same held-out loss, same likeliest continuation."""
    wanted = peer(name)
    tokens = text_tokens(16000)
    job = text_job(tmp_path, tokens, model=wanted.weights.parent / "config.json", seq_len=SEQ_LEN,
                   global_batch=GLOBAL_BATCH, valid_fraction=0.2, eval_every=3, eval_batches=2, warmup=1, lr=1e-3)
    run = meshwright.train(tmp_path / "run", job, plan, "--init", wanted.weights, steps=3)
    model, info = type(wanted.model).from_pretrained(run.checkpoint(), output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model = model.float().eval()

    total = (len(tokens) - 2) // SEQ_LEN
    held_out = round(0.2 * total)
    first = (total - held_out) * SEQ_LEN + 1
    with torch.no_grad():
        losses = [mean_loss(model, *cut(tokens, first, range(b * GLOBAL_BATCH, (b + 1) * GLOBAL_BATCH), SEQ_LEN)).item()
                  for b in range(2)]
    assert run.summary["held_out_loss"] == pytest.approx(sum(losses) / 2, rel=LOSS_TOLERANCE), run.command

    prompt = "And God said, "
    arguments = ["generate", run.folder, "--prompt", prompt, "--tokens", 24, "--temperature", 0]
    wanted_bytes = list(prompt.encode())
    with torch.no_grad():
        for _ in range(24):
            wanted_bytes.append(int(model(torch.tensor([wanted_bytes])).logits[0, -1, :256].argmax()))
    found = meshwright.generated(arguments)
    assert found.rstrip(b"\n") == bytes(wanted_bytes).rstrip(b"\n"), meshwright.command_line(arguments)


def torch_losses(model, tokens, *, seq_len: int, steps: int, seed: int, lr: float, warmup: int) -> list[float]:
    """AdamW as a user of PyTorch writes it: decay on matrices, clipping at 1, linear warm-up."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=lr, betas=(0.9, 0.95), eps=1e-8)
    samples = (len(tokens) - 1) // seq_len
    order = SampleOrder(seed, samples)
    losses = []
    for step in range(1, steps + 1):
        drawn = [order.sample((step - 1) * GLOBAL_BATCH + b) for b in range(GLOBAL_BATCH)]
        loss = mean_loss(model, *cut(tokens, 0, drawn, seq_len))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / warmup)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind, config", [
    ("GPT2LMHeadModel", lambda: transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)),
    ("LlamaForCausalLM", lambda: transformers.LlamaConfig(
        vocab_size=256, max_position_embeddings=64, hidden_size=64, intermediate_size=160, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)),
], ids=["gpt2", "llama"])
def test_fifty_steps_on_text_follow_pytorch(tmp_path, kind, config):
    seq_len, steps, seed = 64, 50, 7
    tokens = text_tokens(seq_len * 300 + 1)  # 300 samples: the third epoch begins at step 38
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config()).float().eval()
    model.save_pretrained(tmp_path / "model")
    job = text_job(tmp_path, tokens, model=tmp_path / "model" / "config.json", seq_len=seq_len,
                   global_batch=GLOBAL_BATCH, seed=seed, lr=3e-4, warmup=50, clip=1.0, beta2=0.95, weight_decay=0.1)
    wanted = torch_losses(model, tokens, seq_len=seq_len, steps=steps, seed=seed, lr=3e-4, warmup=50)
    assert wanted[-1] < wanted[0] - 0.5
    for n, plan in enumerate(["dp=1,microbatches=2", "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,zero=1"]):
        run = meshwright.train(tmp_path / f"run{n}", job, plan, "--init", tmp_path / "model" / "model.safetensors",
                               steps=steps)
        assert run.series("loss") == pytest.approx(wanted, rel=1e-4), run.command

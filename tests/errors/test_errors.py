"""Every error that a user can cause: its literal text, exit code 2, and no run folder. Then what may happen to a run: a loss
that is not finite, kill -9 during saves, a full disk.

In the texts {d} is the test's folder. MESHWRIGHT_TEST_ALL=1 kills more runs.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import meshwright  # noqa: E402

numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.numpy")

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT = meshwright.ROOT
VERSE = b"In the beginning God created the heaven and the earth. And the earth was without form, and void.\n"
KILLS = 60 if meshwright.EVERYTHING else 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a job, its model, a text, a data set, and a run of 4 steps with checkpoints 2 and 4."""
    d = tmp_path_factory.mktemp("errors")
    (d / "text.txt").write_bytes(VERSE * 700)
    shutil.copy(ROOT / "models/gpt-micro.json", d / "model.json")
    shutil.copy(ROOT / "models/llama-micro.json", d / "llama.json")
    write_jobs(d)
    write_models(d)
    write_data(d)
    meshwright.train(d / "run", d / "job.toml", "pp=2,microbatches=2", steps=4)
    write_runs(d)
    write_weights(d)
    return d


def write_jobs(d):
    job = dict(model="model.json", data="text.txt", seq_len=64, global_batch=16, valid_fraction=0.2,
               eval_every=50, checkpoint_every=2)
    meshwright.write_job(d / "job.toml", **job)
    text = (d / "job.toml").read_text()
    meshwright.write_job(d / "long.toml", **{**job, "seq_len": 65})
    meshwright.write_job(d / "batch8.toml", **{**job, "global_batch": 8})
    (d / "keys.toml").write_text(text.replace("warmup", "warm_up").replace("lr = 0.0003\n", 'lr = "fast"\n')
                                 .replace("[eval]", "[evel]").replace("seq_len = 64\n", ""))
    (d / "rising.toml").write_text(text.replace("min_lr = 3e-05", "min_lr = 1"))
    meshwright.write_job(d / "held_out.toml", **{**job, "valid_fraction": 0.3})
    meshwright.write_job(d / "none_held_out.toml", **{**job, "valid_fraction": 0, "eval_every": 1})
    (d / "syntax.toml").write_text('model = "model.json\n[data]\n')
    (d / "twice.toml").write_text("seed = 1\nseed = 2\n")
    (d / "plan.toml").write_text('plan = "tq=2"\n' + text)
    (d / "paths.toml").write_text(text.replace('model = "model.json"\n', "").replace('file = "text.txt"', 'file = ""'))


def write_models(d):
    model = json.loads((d / "model.json").read_text())
    (d / "vocab100.json").write_text(json.dumps({**model, "vocab_size": 100}))
    (d / "broken.json").write_text(json.dumps({**model, "vocab_size": "many", "n_head": 5}))
    (d / "foreign.json").write_text(json.dumps({"model_type": "mamba"}))
    (d / "syntax.json").write_text('{"model_type": "gpt2",}')
    llama = json.loads((d / "llama.json").read_text())
    (d / "grouped.json").write_text(json.dumps({**llama, "num_attention_heads": 4, "num_key_value_heads": 2}))
    (d / "plan.json").write_text('{"dp": 2, "tq": 2}')


def write_data(d):
    meshwright.write_indexed(d / "set", list(VERSE * 60))
    index, tokens = (d / "set.idx").read_bytes(), (d / "set.bin").read_bytes()
    for name, idx, bin_ in [("cut", index[:-3], tokens), ("header", index[:20], tokens), ("empty", b"", tokens),
                            ("foreign", b"PK\x03\x04, not an index, but long enough to be one", tokens),
                            ("short", index, tokens[:1000]), ("nobin", index, None), ("noidx", None, tokens)]:
        if idx is not None:
            (d / f"{name}.idx").write_bytes(idx)
        if bin_ is not None:
            (d / f"{name}.bin").write_bytes(bin_)
    meshwright.write_indexed(d / "wide", [1, 2, 70000] * 2000)
    (d / "other.txt").write_bytes((VERSE * 700).replace(b"e", b"E", 1))
    (d / "tiny.txt").write_bytes(b"In the beginning")
    (d / "nothing.txt").write_bytes(b"")
    (d / "few.txt").write_bytes(VERSE * 20)


def newest(run):
    return run / "checkpoint/step-000004"


def write_runs(d):
    """Copies of the run, each damaged in one way."""
    for name in ("flipped", "missing", "cut-shard", "manifest", "shape", "none", "record"):
        shutil.copytree(d / "run", d / name)
    flip(newest(d / "flipped") / "model-00001-of-00001.safetensors", -5)
    (newest(d / "missing") / "optimizer-00001-of-00001.safetensors").unlink()
    shard = newest(d / "cut-shard") / "model-00001-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    manifest = newest(d / "manifest") / "meshwright.json"
    manifest.write_text(manifest.read_text().replace('"samples": 64', '"samples": 65'))
    config = json.loads((d / "shape/config.json").read_text())
    (d / "shape/config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    shutil.rmtree(d / "none/checkpoint")
    (d / "record/job.json").write_text("{}")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def write_weights(d):
    weights = safetensors.load_file(newest(d / "run") / "model-00001-of-00001.safetensors")
    up = "transformer.h.0.mlp.c_fc.weight"
    safetensors.save_file({**weights, "transformer.wpe.weight": numpy.zeros((10, 64), numpy.float32)}
                          | {up: weights[up].astype(numpy.float16)}, d / "shapes.safetensors")
    safetensors.save_file({k: v for k, v in weights.items() if ".h.3.ln_" not in k}, d / "less.safetensors")
    safetensors.save_file({**weights, "transformer.h.4.ln_1.weight": weights["transformer.h.3.ln_1.weight"],
                           "transformer.h.0.attn.bias": numpy.tril(numpy.ones((1, 1, 64, 64), numpy.float32))}, d / "more.safetensors")
    safetensors.save_file({**weights, "lm_head.weight": weights["transformer.wte.weight"] + 1}, d / "head.safetensors")
    weights[up][3, 5] = numpy.nan
    safetensors.save_file(weights, d / "nan.safetensors")


JOB = "train {d}/job.toml "
HELP = "\n(meshwright train --help explains all)"

# id: command line, text
CASES = {
    # plans
    "heads": (JOB + "--plan tp=3", "{d}/model.json: n_head=4 is not divisible by tp=3; use tp=1, 2 or 4"),
    "kv heads": (JOB + "--model {d}/grouped.json --plan tp=3",
                 "{d}/grouped.json: num_attention_heads=4 is not divisible by tp=3; use tp=1, 2 or 4\n"
                 "{d}/grouped.json: num_key_value_heads=2 and tp=3 do not divide one another; use tp=1, 2 or 4"),
    "stages": (JOB + "--plan pp=8,microbatches=8", "plan: pp*chunks=8*1=8 stages for 4 layers; use at most 4 stages, or say with layers which have 0"),
    "chunks": (JOB + "--plan pp=2,chunks=4,microbatches=2",
               "plan: pp*chunks=2*4=8 stages for 4 layers; use at most 4 stages, or say with layers which have 0"),
    "schedule": (JOB + "--plan pp=2,schedule=1f2b", "--plan: schedule: unknown schedule '1f2b', did you mean '1f1b'?; "
                 "known are 1f1b, gpipe, pipedream-2bw, interleaved-1f1b, {any}"),
    "drawn schedule": (JOB + "--plan pp=2,schedule=pipedream-2bw,microbatches=2", "--plan: schedule: 'pipedream-2bw' can be drawn "
                       "and simulated (meshwright schedule, simulate), but not run: a step of it would use older weights; what runs "
                       "is 1f1b, gpipe, interleaved-1f1b, {any}"),
    "no replica without work": (JOB + "--plan pp=2,schedule=chimera,microbatches=1",
                                "--plan: schedule chimera: replica 1 of the stages has none of the 1 microbatches; it takes at "
                                "least 2"),
    "halved microbatches": (JOB + "--plan pp=2,schedule=chimera-halving,microbatches=16",
                            "plan: global_batch=16 is not divisible by dp*microbatches*2=1*16*2=32; every part of a "
                            "microbatch needs a whole number of sequences: use microbatches=1, 2, 4 or 8"),
    "slices": (JOB + "--plan pp=2,schedule=seq-1f1b,slices=3",
               "plan: seq_len=64 is not divisible by slices=3; use slices=1, 2, 4, 8, 16, 32 or 64"),
    "regather": (JOB + "--plan tp=2,regather", "--plan: regather: is of what sp gathers, and the plan has none (what cp "
                 "gathers is never kept); use sp, or leave regather out"),
    "post-validation": (JOB + "--plan dp=2,post_validation", "--plan: post_validation: one pipeline rank knows the norm of "
                        "all stages before its step; use pp=2 or more, or leave post_validation out"),
    "costs": (JOB + "--plan pp=2,costs=1:1:1", "--plan: costs: are what zb-auto minimises, and the schedule is 1f1b"),
    "chunks of 1f1b": (JOB + "--plan pp=2,chunks=2,schedule=1f1b,microbatches=2",
                       "--plan: schedule 1f1b: chunks=2 must be 1: a rank hosts one stage; use interleaved-1f1b for more"),
    "interleaved": (JOB + "--plan pp=2,chunks=2,microbatches=1",
                    "--plan: schedule interleaved-1f1b: microbatches=1 is not a multiple of ranks=2; use microbatches=2, or "
                    "rounds of group=1"),
    "no limit": (JOB + "--plan pp=2,schedule=zb-auto,memory_limit=0", "--plan: memory_limit: must be above 0, is 0"),
    "endless limit": (JOB + "--plan pp=2,schedule=zb-auto,memory_limit=inf", "--plan: memory_limit: must be a finite number, is inf"),
    "no schedule file": (JOB + "--plan schedule=no.csv", "--plan: schedule: no.csv: does not exist"),
    "init of a resumed run": (JOB + "--init x --resume {d}/none", "--init: a run that is resumed has its own weights; leave out "
                              "--init or --resume"),
    "nothing held out": ("train {d}/none_held_out.toml", "{d}/none_held_out.toml: data.valid_fraction: is 0, so that nothing is "
                         "held out for eval.every=1; use more, or eval.every=0"),
    "rising rate": ("train {d}/rising.toml", "{d}/rising.toml: train.min_lr: is 1, above lr=0.0003, from which the rate falls to "
                    "it; use less"),
    "threads": (JOB + "--threads-per-rank 1025", "--threads-per-rank: must be at most 1024, is 1025" + HELP),
    "plan key": (JOB + "--plan microbatch=4", "--plan: microbatch: unknown key, did you mean 'microbatches'?"),
    "optional plan key": (JOB + "--plan layer=2:2,pp=2,microbatches=2",
                          "--plan: layer: unknown key, did you mean 'layers'?"),
    "plan key twice": (JOB + "--plan tp=2,tp=4", "--plan: tp: is there twice"),
    "plan values": (JOB + "--plan dp=0,zero=7,recompute=some,tp=two",
                    "--plan: dp: must be an integer of at least 1, is 0\n"
                    '--plan: tp: must be an integer of at least 1, is "two"\n'
                    "--plan: zero: must be an integer from 0 to 3, is 7\n"
                    '--plan: recompute: must be "none", "selective", "selective-op" or "full", is "some"'),
    "plan and model": (JOB + "--plan zero=7,micro=3,schedule=1f2b,tp=64",
                       "--plan: zero: must be an integer from 0 to 3, is 7\n"
                       "--plan: micro: unknown key, did you mean 'microbatches'?\n"
                       "--plan: schedule: unknown schedule '1f2b', did you mean '1f1b'?; known are {any}\n"
                       "{any}n_head={any} is not divisible by tp=64; {any}"),
    "more ranks than there are": (JOB + "--plan pp=9223372036854775807",
                                  "--plan: pp: must be at most 1048576, is 9223372036854775807"),
    "an overflowing product of axes": (JOB + "--plan dp=1048576,tp=1048576",
                                       "--plan: dp*tp*pp=1048576*1048576*1 is more than 1048576 ranks; use fewer"),
    "an overflowing batch": (JOB + "--plan dp=1048576,microbatches=262144",
                             "plan: global_batch=16 is not divisible by dp*microbatches=1048576*262144=274877906944; "
                             "every microbatch needs a whole number of sequences: use a multiple of 1048576, or another dp"),
    "order": (JOB + "--plan order=dp-tp", "--plan: order: must name pp, dp and tp once each, is dp-tp"),
    "sp": (JOB + "--plan sp", "--plan: sp: sequence parallelism shards over the tensor-parallel ranks, and tp is 1; "
           "use tp=2 or leave sp out"),
    "batch": (JOB + "--plan dp=3,microbatches=4", "plan: global_batch=16 is not divisible by dp*microbatches=3*4=12; "
              "every microbatch needs a whole number of sequences: use a multiple of 3, or another dp"),
    "layers' sum": (JOB + "--plan pp=2,layers=1:2,microbatches=2",
                    "plan: layers add up to 3, must add up to the model's 4 layers"),
    "layers' count": (JOB + "--plan pp=2,layers=4,microbatches=2",
                      "plan: layers has 1 entries, must have one a stage: pp*chunks=2*1=2"),
    "plan's JSON": (JOB + '--plan {{"tp":2,"pipe":3}}', "--plan: pipe: unknown key\n"
                    "--plan: a plan's keys are dp, tp, pp, {any}"),
    "plan's syntax": (JOB + '--plan {{"tp":2', "--plan:1:8: must be ',' or '}}', is the end of the file"),
    "plan's file": (JOB + "--plan {d}/plan.json", "{d}/plan.json: tq: unknown key, did you mean 'tp'?"),
    "no plan file": (JOB + "--plan {d}/plam.json", "{d}/plam.json: does not exist, did you mean 'plan.json'?"),
    "plan in the job": ("train {d}/plan.toml", "{d}/plan.toml: plan: tq: unknown key, did you mean 'tp'?"),
    # jobs and models
    "no job": ("train {d}/jib.toml", "{d}/jib.toml: does not exist, did you mean 'job.toml'?"),
    "job's syntax": ("train {d}/syntax.toml", "{d}/syntax.toml:1:20: Error while parsing string: unescaped control "
                     "characters other than TAB (U+0009) are explicitly prohibited"),
    "job's keys": ("train {d}/keys.toml",
                   "{d}/keys.toml:3: data.seq_len: is missing; must be an integer of at least 1\n"
                   '{d}/keys.toml:9: train.lr: must be a number of at least 0, is "fast"\n'
                   "{d}/keys.toml:11: train.warm_up: unknown key, did you mean 'warmup'?\n"
                   "{d}/keys.toml:12: evel: unknown key, did you mean 'eval'?"),
    "positions": ("train {d}/long.toml", "{d}/long.toml: data.seq_len: is 65, but {d}/model.json has 64 positions; "
                  "use at most 64"),
    "no paths": ("train {d}/paths.toml", "{d}/paths.toml: model: is missing; must be a string\n"
                 '{d}/paths.toml:3: data.file: must be the path of a file, is ""'),
    "no model": (JOB + "--model {d}/modell.json", "{d}/modell.json: does not exist, did you mean 'model.json'?"),
    "no model's name": (JOB + "--model llama-mikro", "--model: there is no model 'llama-mikro', did you mean 'llama-micro'?; known are {any}; or give a file, x.json"),
    "model's keys": (JOB + "--model {d}/broken.json",
                     '{d}/broken.json: vocab_size: must be an integer of at least 1, is "many"\n'
                     "{d}/broken.json: n_head: must divide n_embd=64, is 5; use 1, 2, 4, 8, 16, 32 or 64"),
    # data
    "no data": (JOB + "--data {d}/test.txt", "{d}/test.txt: does not exist, did you mean 'text.txt'?"),
    "cut index": (JOB + "--data {d}/cut", "{d}/cut.idx: offset 26: 1 sequences and 2 document indices take 62 bytes, "
                  "the file has 59 (truncated?)"),
    "cut header": (JOB + "--data {d}/header", "{d}/header.idx: has 20 bytes, must have at least 34 (the header is truncated)"),
    "empty index": (JOB + "--data {d}/empty", "{d}/empty.idx: has 0 bytes, must have at least 34 (the header is truncated)"),
    "foreign index": (JOB + "--data {d}/foreign", '{d}/foreign.idx: offset 0: is "PK\\u0003\\u0004, not", must be '
                      '"MMIDIDX\\u0000\\u0000" (no Megatron-LM index)'),
    "cut tokens": (JOB + "--data {d}/short", "{d}/short.bin: has 1000 bytes, must have 23280 for the 5820 tokens (i32) "
                   "of {d}/short.idx (truncated)"),
    "no tokens": (JOB + "--data {d}/nobin", "{d}/nobin.bin: does not exist, did you mean 'nobin.idx'?"),
    "no index": (JOB + "--data {d}/noidx.bin", "{d}/noidx.idx: does not exist, did you mean '{any}'?"),
    "short text": (JOB + "--data {d}/tiny.txt", "{d}/tiny.txt: has 16 tokens, must have at least 130 for one training and "
                   "one held-out sample of data.seq_len=64 (a sample is one token longer); use a longer text or "
                   "data.seq_len=7 or less"),
    "empty text": (JOB + "--data {d}/nothing.txt", "{d}/nothing.txt: has 0 tokens, must have at least 130 for one training "
                   "and one held-out sample of data.seq_len=64 (a sample is one token longer); use a longer text"),
    "few samples": (JOB + "--data {d}/few.txt", "{d}/few.txt: 6 held-out samples of 64 tokens are fewer than "
                    "global_batch=16; use a longer text, a larger data.valid_fraction or eval.every=0"),
    "vocabulary": (JOB + "--model {d}/vocab100.json", "{d}/text.txt: holds token 119, but {d}/vocab100.json has "
                   "vocab_size=100; use a model with a vocabulary of at least 120"),
    "wide vocabulary": (JOB + "--data {d}/wide", "{d}/wide: holds token 70000, but {d}/model.json has vocab_size=256; "
                        "use a model with a vocabulary of at least 70001"),
    # several at once
    "all at once": (JOB + "--data {d}/test.txt --plan tp=3,pp=8,microbatches=5",
                    "{d}/model.json: n_head=4 is not divisible by tp=3; use tp=1, 2 or 4\n"
                    "plan: global_batch=16 is not divisible by dp*microbatches=1*5=5; every microbatch needs a whole number "
                    "of sequences: use microbatches=1, 2, 4, 8 or 16\n"
                    "plan: pp*chunks=8*1=8 stages for 4 layers; use at most 4 stages, or say with layers which have 0\n"
                    "{d}/test.txt: does not exist, did you mean 'text.txt'?"),
    "files at once": (JOB + "--model {d}/modell.json --data {d}/test.txt --plan tq=2",
                      "{d}/modell.json: does not exist, did you mean 'model.json'?\n"
                      "--plan: tq: unknown key, did you mean 'tp'?\n"
                      "{d}/test.txt: does not exist, did you mean 'text.txt'?"),
    # weights
    "no weights": (JOB + "--init {d}/les.safetensors", "{d}/les.safetensors: does not exist, did you mean 'less.safetensors'?"),
    "weights' shapes": (JOB + "--init {d}/shapes.safetensors",
                        "{d}/shapes.safetensors: transformer.wpe.weight is f32 [10, 64], must be f32 [64, 64]\n"
                        "{d}/shapes.safetensors: transformer.h.0.mlp.c_fc.weight is f16 [64, 256], must be f32 [64, 256]"),
    "weights missing": (JOB + "--init {d}/less.safetensors",
                        "{d}/less.safetensors: has no tensor transformer.h.3.ln_1.weight\n"
                        "{d}/less.safetensors: has no tensor transformer.h.3.ln_1.bias\n"
                        "{d}/less.safetensors: has no tensor transformer.h.3.ln_2.weight\n"
                        "{d}/less.safetensors: has no tensor transformer.h.3.ln_2.bias"),
    "weights too many": (JOB + "--init {d}/more.safetensors",
                         "{d}/more.safetensors: has transformer.h.4.ln_1.weight that the model does not have"),
    "weights that are tied": (JOB + "--init {d}/head.safetensors", "{d}/head.safetensors: lm_head.weight is another tensor than "
                              "transformer.wte.weight, but one weight of the model"),
    "foreign weights": (JOB + "--init {d}/text.txt", "{d}/text.txt: offset 0: header length is {any}, must be at most "
                        "67892, the rest of the file (truncated, or no safetensors file)"),
    # runs
    "run folder taken": (JOB + "--run-dir {d}/run", "--run-dir: {d}/run already holds a run; choose another folder, or "
                         "resume it with --resume {d}/run into a new one"),
    "all of a run": (JOB + "--run-dir {d}/run --init {d}/more.safetensor --steps 3 --trace-step 9",
                     "--run-dir: {d}/run already holds a run; choose another folder, or resume it with --resume {d}/run into a new one\n"
                     "{d}/more.safetensor: does not exist, did you mean 'more.safetensors'?\n"
                     "--trace-step: 9 is none of this run's steps, 1 to 3"),
    "run folder a file": (JOB + "--run-dir {d}/text.txt", "--run-dir: {d}/text.txt is a file, must be a folder"),
    "resumed in place": (JOB + "--resume {d}/run --run-dir {d}/run", "--run-dir: {d}/run already holds a run; choose another "
                         "folder, or resume it with --resume {d}/run into a new one"),
    "resume nothing": (JOB + "--resume {d}/rum", "{d}/rum: does not exist{any}"),
    "resume an empty record": (JOB + "--resume {d}/record", "\n".join(
        f"{{d}}/record/job.json: {key}: is missing; must be an integer" for key in ("seed", "seq_len", "global_batch"))),
    "resume seed and model": (JOB + "--resume {d}/run --seed 7 --model {d}/llama.json",
                              "--seed: is 7, but the run {d}/run has seed 1; leave --seed out to resume it\n"
                              "--model: {d}/llama.json is not the model of the run {d}/run; leave --model out to resume it"),
    "resume batch": ("train {d}/batch8.toml --resume {d}/run", "train.global_batch: is 8, but the run {d}/run has 16; "
                     "resume it with a job of 16"),
    "resume held out": ("train {d}/held_out.toml --resume {d}/run", "data.valid_fraction: is 0.3, but the run {d}/run has 0.2, and with "
                        "another one other samples in another order; resume it with a job of 0.2"),
    "resume another text": (JOB + "--resume {d}/run --data {d}/other.txt --steps 5 --run-dir {d}/no", "data.file: {d}/other.txt is not "
                            "what the run {d}/run was trained on; resume it with the same text, or begin anew from its weights with "
                            "--init"),
    "resume no further": (JOB + "--resume {d}/run --steps 4", "--steps: 4 is not beyond step 4, where the run {d}/run stands"),
    "no checkpoint": (JOB + "--resume {d}/none", "{d}/none/checkpoint: has no checkpoint (a folder such as step-000020)"),
    "flipped bit": (JOB + "--resume {d}/flipped", "{d}/flipped/checkpoint/step-000004/model-00001-of-00001.safetensors: "
                    "tensor 'transformer.ln_f.bias': checksum is {any}, must be {any}; its bytes were changed\n"
                    "{d}/flipped/checkpoint: the checkpoint before it, the newest without {d}/flipped/checkpoint/step-000004, is "
                    "{d}/flipped/checkpoint/step-000002"),
    "missing shard": (JOB + "--resume {d}/missing", "{d}/missing/checkpoint/step-000004/optimizer-00001-of-00001.safetensors: "
                      "is missing; must have 1775232 bytes\n{any}step-000002{any}"),
    "cut shard": (JOB + "--resume {d}/cut-shard", "{d}/cut-shard/checkpoint/step-000004/model-00001-of-00001.safetensors: "
                  "has 1000 bytes, must have 887088 (truncated){any}"),
    "changed manifest": (JOB + "--resume {d}/manifest", "{d}/manifest/checkpoint/step-000004/meshwright.json: the checksum of "
                         "its content is {any}, must be {any}; the file was damaged or edited{any}"),
    "another shape": (JOB + "--resume {d}/shape", "{d}/shape/checkpoint/step-000004: tensor 'transformer.wte.weight' is f32 "
                      "[256, 64], must be f32 [300, 64]\n"
                      "{d}/shape/checkpoint/step-000004: tensor 'exp_avg.transformer.wte.weight' is f32 [256, 64], must be "
                      "f32 [300, 64]\n"
                      "{d}/shape/checkpoint/step-000004: tensor 'exp_avg_sq.transformer.wte.weight' is f32 [256, 64], must "
                      "be f32 [300, 64]"),
    # command lines
    "option": (JOB + "--stepz 4", "--stepz: unknown option, did you mean '--steps'?" + HELP),
    "steps": (JOB + "--steps 0", "--steps: must be at least 1, is 0" + HELP),
    "threads": (JOB + "--threads-per-rank -1", "--threads-per-rank: must be at least 1, is -1" + HELP),
    "too many": (JOB + "again", "'again' is one argument too many" + HELP),
    "too few": ("train", "job: is missing; give a TOML file such as examples/gpt-tiny.toml"),
    "subcommand": ("trian {d}/job.toml", "'trian' is no subcommand, did you mean 'train'?; known are train, verify, inspect, "
                   "simulate, what-if, plan, schedule, validate, calibrate, profile, generate, data, checkpoint\n"
                   "(meshwright --help explains all)"),
    "no subcommand": ("", "a subcommand is missing; it must be one of train, verify, inspect, simulate, what-if, plan, schedule, "
                      "validate, calibrate, profile, generate, data, checkpoint\n(meshwright --help explains all)"),
    "data subcommand": ("data ifno", "'ifno' is no subcommand, did you mean 'info'?; known are build, info\n"
                        "(meshwright data --help explains all)"),
    "inspect what": ("inspect grph {d}/job.toml", "what: must be one of graph, fragments, program, memory, is 'grph', "
                     "did you mean 'graph'?"),
    "inspect rank": ("inspect program {d}/job.toml --plan dp=2 --rank 2",
                     "--rank: is 2, but the plan has 2 ranks; use 0 to 1"),
    "inspect graph of a rank": ("inspect graph {d}/job.toml --rank 0",
                                "--rank: is of a program or memory; graphs are of all ranks; leave it out"),
    "inspect fragments of a rank": ("inspect fragments {d}/job.toml --rank 0",
                                    "--rank: is of a program or memory; fragments are of all ranks; leave it out"),
    "verify heads": ("verify {d}/job.toml --plan tp=3", "{d}/model.json: n_head=4 is not divisible by tp=3; use tp=1, 2 or 4"),
    "generate nothing": ("generate {d}/rum --prompt x", "{d}/rum/config.json: does not exist: there is no folder '{d}/rum'"),
    "generate flipped": ("generate {d}/flipped --prompt x", "{d}/flipped/checkpoint/step-000004/model-00001-of-00001"
                         ".safetensors: tensor 'transformer.ln_f.bias': checksum is {any}, must be {any}; its bytes were "
                         "changed\n{any}step-000002"),
    "data info": ("data info {d}/sat", "{d}/sat.idx: does not exist, did you mean 'set.idx'?\n"
                  "{d}/sat.bin: does not exist, did you mean 'set.bin'?"),
    "data build": ("data build {d}/test.txt -o {d}/out", "{d}/test.txt: does not exist, did you mean 'text.txt'?"),
    "data build of nothing": ("data build {d}/nothing.txt -o {d}/out",
                              "{d}/nothing.txt: is empty; give a text of at least one byte"),
    "data build over its text": ("data build {d}/set.bin -o {d}/set",
                                 "--output: {d}/set would write over the text {d}/set.bin; choose another prefix"),
    "data build of a folder": ("data build {d} -o {d}/out", "{d}: cannot read: Is a directory"),
    "checkpoint verify": ("checkpoint verify {d}/flipped", "{d}/flipped/checkpoint/step-000004/model-00001-of-00001"
                          ".safetensors: tensor 'transformer.ln_f.bias': checksum is {any}, must be {any}; its bytes were "
                          "changed\n{any}step-000002"),
}


def matches(text, pattern):
    """Whether the pattern's parts between {any} are there, from the beginning to the end."""
    parts = pattern.split("{any}")
    if not text.startswith(parts[0]) or not text.endswith(parts[-1]):
        return False
    for part in parts:
        at = text.find(part)
        if at < 0:
            return False
        text = text[at + len(part):]
    return True


@pytest.mark.parametrize("name", CASES)
def test_error(place, name):
    line, pattern = CASES[name]
    before = sorted(place.rglob("*"))
    arguments = [part.format(d=place) for part in line.split()]
    if arguments and arguments[0] == "train" and len(arguments) > 1:
        options = ([] if "--run-dir" in line else ["--run-dir", place / "out"]) + ([] if "--step" in line else ["--steps", 9])
        arguments += options
    done = meshwright.execute(arguments)
    text = "meshwright: " + pattern.format(d=place, any="{any}") + "\n"
    assert matches(done.stderr, text), f"{done.stderr}\nmust be\n{text}"
    assert done.returncode == 2
    assert sorted(place.rglob("*")) == before


def test_the_empty_prompt(place):
    done = meshwright.execute(["generate", place / "run", "--prompt", ""])
    assert (done.returncode, done.stderr) == (2, "meshwright: --prompt: is empty; give at least one character\n")


def verified_step(run):
    """The step of the run's newest checkpoint, after `checkpoint verify`."""
    done = meshwright.execute(["checkpoint", "verify", run])
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("step-")[1].split(":")[0])


def test_a_weight_that_is_nan_stops_the_run_and_names_step_op_and_rank(place, tmp_path):
    done = meshwright.execute(["train", place / "job.toml", "--init", place / "nan.safetensors", "--plan",
                               "dp=2,tp=2,pp=2,microbatches=2", "--steps", 2, "--run-dir", tmp_path / "out", "--quiet"])
    assert done.returncode == 1
    # Both data-parallel replicas meet it; either may be the first.
    found = done.stderr.replace("rank 2 (pp=0, dp=1, tp=0)", "rank 0 (pp=0, dp=0, tp=0)")
    assert found == (
        "meshwright: step 1: the loss or the gradient norm is not finite; rank 0 (pp=0, dp=0, tp=0), train run 0, command 3 "
        "call 'F stage 0' (0F0), microbatch 0, op 13 dot 'h.0.mlp.up': 'h.0.mlp.up' is nan at element 5 of f32[4,64,128], the "
        "first number of this rank that is not finite; the weights are those of step 0\n")


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("weight, op", [("mlp.c_fc", "dot 'h.{0}.mlp.up'"),
                                        ("attn.c_attn", "dot '%{any}' of 'h.{0}.ln_1', 'transformer.h.{0}.attn.c_attn.weight'")])
def test_a_nan_in_a_fragment_of_two_stages_is_named_as_in_its_own_stage(place, tmp_path, layer, weight, op):
    """Layers 1 and 2 are stages of one fragment, on ranks 1 and 0."""
    weights = safetensors.load_file(newest(place / "run") / "model-00001-of-00001.safetensors")
    weights[f"transformer.h.{layer}.{weight}.weight"][3, 5] = numpy.nan
    safetensors.save_file(weights, tmp_path / "nan.safetensors")
    done = meshwright.execute(["train", place / "job.toml", "--init", tmp_path / "nan.safetensors", "--plan",
                               "pp=2,chunks=2,microbatches=2", "--steps", 1, "--run-dir", tmp_path / "out", "--quiet"])
    rank = layer % 2
    begin = (f"meshwright: step 1: the loss or the gradient norm is not finite; rank {rank} (pp={rank}, dp=0, tp=0), train run 0, "
             "command ")
    assert done.returncode == 1 and done.stderr.startswith(begin), done.stderr
    place_text = f"call 'F stages 1, 2' ({layer}F0), microbatch 0, op {{any}} {op.format(layer, any='{any}')}: "
    assert matches(done.stderr[len(begin):].split(" ", 1)[1], place_text + "{any}\n"), done.stderr


def test_a_held_out_loss_that_is_not_finite_stops_the_run_and_names_the_op(place, tmp_path):
    """The step itself is fine: its weights are what the next pass overflows with."""
    job = meshwright.write_job(tmp_path / "hot.toml", model=place / "model.json", data=place / "text.txt", seq_len=64,
                               global_batch=16, valid_fraction=0.2, eval_every=1, lr=1e30, warmup=0)
    done = meshwright.execute(["train", job, "--plan", "pp=2,microbatches=2", "--steps", 9, "--run-dir", tmp_path / "out", "--quiet"])
    assert done.returncode == 1
    assert matches(done.stderr, "meshwright: step 1: the held-out loss is not finite; rank {any}, eval run 0, command {any}, the first "
                                "number of this rank that is not finite; the weights are those of step 1\n"), done.stderr


@pytest.mark.parametrize("plan", ["dp=1,microbatches=2", "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1",
                                  "dp=2,pp=2,microbatches=4,schedule=zb-h1,zero=1,post_validation"])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(place, tmp_path, plan):
    job = meshwright.write_job(tmp_path / "hot.toml", model=place / "model.json", data=place / "text.txt", seq_len=64,
                               global_batch=16, checkpoint_every=1, lr=1e30, warmup=0)
    run = tmp_path / "out"
    done = meshwright.execute(["train", job, "--plan", plan, "--steps", 9, "--run-dir", run, "--quiet"])
    assert done.returncode == 1
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    bad = steps[-1] + 1
    assert done.stderr.startswith(f"meshwright: step {bad}: the loss or the gradient norm is not finite; rank ")
    assert ", the first number of this rank that is not finite; " in done.stderr
    assert done.stderr.endswith(f"; the weights are those of step {bad - 1}\n")
    assert verified_step(run) == bad - 1
    weights = safetensors.load_file(max((run / "checkpoint").glob("step-*")) / "model-00001-of-00001.safetensors")
    assert all(numpy.isfinite(values).all() for values in weights.values())


def test_steps_that_run_into_one_another_end_at_the_same_bad_step(place, tmp_path):
    """Its ranks are at work on the next step when they find out."""
    job = meshwright.write_job(tmp_path / "hot.toml", model=place / "model.json", data=place / "text.txt", seq_len=64,
                               global_batch=16, lr=1e30, warmup=0)
    found = []
    for name, plan in (("one", "dp=1,microbatches=4"), ("flow", "pp=4,microbatches=4,schedule=zb-h2,post_validation")):
        run = tmp_path / name
        done = meshwright.execute(["train", job, "--plan", plan, "--steps", 9, "--trace-step", 1, "--run-dir", run, "--quiet"])
        assert done.returncode == 1
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found.append((done.stderr.split(";")[0], done.stderr.split(";")[-1], [(l["step"], l["loss"]) for l in lines]))
        assert lines
    assert found[0] == found[1]


def test_of_two_runs_that_begin_at_once_one_has_the_folder(place, tmp_path):
    line = ["train", place / "job.toml", "--plan", "dp=1,microbatches=4", "--steps", "3", "--run-dir", tmp_path / "r", "--quiet"]
    both = [subprocess.Popen([meshwright.BINARY, *line], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = sorted((process.communicate()[1], process.returncode) for process in both)
    taken = f"meshwright: --run-dir: {tmp_path}/r already holds a run; choose another folder"
    resumed = f"{taken}, or resume it with --resume {tmp_path}/r into a new one"  # where it has a checkpoint already
    assert ends in ([("", 0), (f"{text}\n", 2)] for text in (taken, resumed))
    steps = [json.loads(one)["step"] for one in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3] and verified_step(tmp_path / "r") == 3


def test_a_run_killed_at_any_moment_leaves_its_last_checkpoint_whole(place, tmp_path):
    """A run that saves every step is killed again and again, and resumed from what is there. Two of three kills wait until
    a save is under way."""
    job = meshwright.write_job(tmp_path / "job.toml", model=place / "model.json", data=place / "text.txt", seq_len=64,
                               global_batch=16, checkpoint_every=1)
    draw = random.Random(meshwright.SEED)
    resume, reached, torn = [], 0, 0
    for kill in range(KILLS):
        run = tmp_path / f"run-{kill}"
        process = subprocess.Popen(
            [meshwright.BINARY, "train", job, "--plan", "pp=2,microbatches=2", "--steps", "100000", "--run-dir", run,
             *resume, "--quiet"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for(run, process, "step-??????")
        if kill % 3 == 0:
            time.sleep(draw.uniform(0, 0.3))
        else:
            wait_for(run, process, "*.tmp")
            time.sleep(draw.choice([0, draw.uniform(0, 0.01)]))
        process.kill()
        process.wait()
        torn += bool(list((run / "checkpoint").glob("*.tmp")))
        step = verified_step(run)
        assert step > reached
        recorded = [line for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert json.loads(recorded[step - reached - 1])["step"] == step
        resume, reached = ["--resume", run], step
    assert torn > 0, "no kill met a save"
    last = meshwright.execute(["train", job, *map(str, resume), "--plan", "tp=2,microbatches=2", "--steps", reached + 1,
                               "--run-dir", tmp_path / "last", "--quiet"])
    assert last.returncode == 0, last.stderr


def wait_for(run, process, pattern):
    """Until the run's checkpoint folder has such a name."""
    end = time.monotonic() + 60
    while not list((run / "checkpoint").glob(pattern)):
        assert process.poll() is None and time.monotonic() < end, f"{run}: no {pattern}"
        time.sleep(0.001)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB; one checkpoint of the model takes 2.6."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_stops_the_run_and_keeps_the_checkpoint_before(place, small_disk):
    job = meshwright.write_job(small_disk / "job.toml", model=place / "model.json", data=place / "text.txt", seq_len=64,
                               global_batch=16, checkpoint_every=1)
    run = small_disk / "run"
    done = meshwright.execute(["train", job, "--plan", "dp=1,microbatches=2", "--steps", 9, "--run-dir", run, "--quiet"])
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"meshwright: {run}/checkpoint"), done.stderr
    assert "the disk has" in done.stderr or "No space left" in done.stderr, done.stderr
    assert verified_step(run) == len(list((run / "checkpoint").glob("step-??????")))
    assert not list((run / "checkpoint").glob("*.tmp"))


@pytest.mark.parametrize("command, option", [
    *(("train {d}/job.toml", option) for option in ("--plan", "--model", "--data", "--run-dir", "--resume", "--init")),
    ("verify {d}/job.toml", "--plan"),
    *(("simulate {d}/job.toml --cluster selene", option) for option in ("--compare", "--profile", "--mtbf", "--checkpoint-time",
                                                                         "--checkpoint-interval", "--restart-time")),
    ("validate", "--runs"),
])
def test_an_option_is_not_empty(place, command, option):
    done = meshwright.execute([*command.format(d=place).split(), option, ""])
    assert done.returncode == 2 and f"{option}: must not be empty" in done.stderr


@pytest.mark.parametrize("link", [False, True])
def test_a_text_is_not_written_over_under_another_name(tmp_path, link):
    text = tmp_path / ("a.txt" if link else "b.bin")
    text.write_bytes(VERSE * 10)
    if link:
        (tmp_path / "b.bin").symlink_to(text)
    done = meshwright.execute(["data", "build", text, "-o", f"{tmp_path}/./b"])
    assert done.returncode == 2 and "would write over the text" in done.stderr
    assert text.read_bytes() == VERSE * 10


@pytest.mark.parametrize("arguments", [["schedule", "1f1b", "--stages", "4", "--microbatches", "8"],
                                       ["schedule", "1f1b", "--stages", "64", "--microbatches", "512"]])
def test_a_standard_output_that_is_full_fails(arguments):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([str(meshwright.BINARY), *arguments], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "internal" not in done.stderr and "No space left" in done.stderr

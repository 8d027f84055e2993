"""What `meshwright simulate` says where a device has too little memory: what holds it, and the nearest change that fits."""

import pytest
from test_simulate import call, simulated


@pytest.mark.parametrize("plan, change", [
    ("tp=8,pp=8,microbatches=48,schedule=chimera", "schedule=1f1b,sp,regather,recompute=selective"),
    ("tp=8,pp=8,microbatches=48,schedule=chimera,pairs=2", "schedule=1f1b (without pairs),sp,regather,recompute=selective"),
])
def test_another_schedule_and_more_that_fit_are_told_together(plan, change):
    done = call(f"--model gpt3-175b --cluster selene --global-batch 96 --advice none --plan {plan}")
    assert done.returncode == 2 and done.stderr.rstrip().endswith(f": {change}")
    simulated(f"--model gpt3-175b --cluster selene --global-batch 96 --advice none "
              f"--plan tp=8,pp=8,microbatches=48,schedule=1f1b,sp,regather,recompute=selective")


def test_no_part_of_a_change_that_fits_is_left_out_in_vain():
    """Experts go over ranks before anything is recomputed; of changes that fit together those that are not needed are not told."""
    for model, plan, change in (("mixtral-8x7b --cluster dgx-h100 --global-batch 64 --seq-len 4096", "dp=64,zero=1,recompute=full", "ep=8"),
                                ("gpt-22b --cluster selene --global-batch 16", "dp=8,microbatches=2", "zero=3,recompute=selective"),
                                ("gpt-76b --cluster selene --global-batch 64", "tp=8,pp=2,dp=4,microbatches=4", "zero=1,recompute=selective,microbatches=8")):
        done = call(f"--model {model} --advice none --plan {plan}")
        assert done.returncode == 2 and done.stderr.rstrip().endswith(f": {change}")
        changed = dict(part.partition("=")[::2] for part in plan.split(",") + change.split(","))
        simulated(f"--model {model} --advice none --plan {','.join('='.join(item) for item in changed.items())}")


def test_one_rank_more_is_told_as_one():
    done = call("--model gpt-7.5b --cluster v100-p3 --global-batch 64 --plan tp=8,pp=2,microbatches=8 --precision f16 --advice none")
    assert done.returncode == 2 and "; 1 more is too full; " in done.stderr


def test_a_sequences_ranks_shard_the_optimizer_where_that_fits():
    done = call("--model llama3-8b --cluster a100-40gb --global-batch 2 --seq-len 4096 --plan cp=2,tp=2,microbatches=2 --advice none")
    assert done.returncode == 2 and "the nearest change that fits, with a step of " in done.stderr and "zero=" in done.stderr


def test_memory_that_another_schedule_saves_is_told():
    done = call("--model gpt-7.5b --cluster selene --plan pp=4,microbatches=256,schedule=gpipe,recompute=full --global-batch 256 --advice none")
    assert done.returncode == 2
    assert "A100-SXM-80GB has 77.4 GiB for tensors (of 80.0 GiB)" in done.stderr
    assert ": schedule=1f1b" in done.stderr


@pytest.mark.parametrize("model, plan, change", [
    # The usual schedule takes 10 % more; smaller microbatches, and the schedule that is made for memory, nothing.
    ("gpt-7.5b --cluster a100-40gb --global-batch 64", "pp=4,dp=2,microbatches=16,schedule=zb-h1,zero=1,recompute=selective",
     "schedule=v-half"),
    # zero=3 alone fits, and takes three times as long.
    ("mixtral-8x7b --cluster dgx-h100 --global-batch 64 --seq-len 4096", "dp=16,tp=2,sp,microbatches=4,zero=1",
     "zero=2,ep=8"),
])
def test_the_change_that_takes_the_least_time_is_told(model, plan, change):
    done = call(f"--model {model} --advice none --plan {plan}")
    assert done.returncode == 2 and done.stderr.rstrip().endswith(f": {change}")
    changed = dict(part.partition("=")[::2] for part in plan.split(",") + change.split(","))
    simulated(f"--model {model} --advice none --plan {','.join('='.join(item).rstrip('=') for item in changed.items())}")

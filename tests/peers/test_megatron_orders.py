"""The orders of `interleaved-1f1b` are those that Megatron Core's own tables give, whatever the group."""

import types

import pytest

import meshwright

schedules, graphs = (
    pytest.importorskip(f"megatron.core.{module}", reason="scripts/setup --test installs megatron-core into build/venv")
    for module in ("pipeline_parallel.schedules", "transformer.cuda_graphs"))

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

# Ranks, chunks, microbatches, group (0: as many as ranks, Megatron's default).
CASES = [(p, v, m, group)
         for p, v in [(2, 2), (2, 5), (3, 2), (4, 2), (4, 3), (8, 4)]
         for m, group in [(p, 0), (3 * p, 0), (4 * p, 2 * p), (2 * p + 1, p + 1), (3 * p + 2, p + 1), (3 * p, 3 * p)]]


def order_of(rank: int, ranks: int, chunks: int, microbatches: int, group: int) -> list[str]:
    """What forward_backward_pipelining_with_interleaving does on a rank, one cell an action."""
    pipeline = types.SimpleNamespace(
        pp_group=types.SimpleNamespace(size=lambda: ranks, rank=lambda: rank), virtual_pipeline_model_parallel_size=chunks)
    _, _, warmup, _ = schedules.get_pp_rank_microbatches(microbatches, chunks, group, p2p_communicator=pipeline)
    table = schedules.get_schedule_table(microbatches, chunks, group)
    forwards, backwards = iter(table), iter(table)
    cells = []
    for chunk in graphs.convert_schedule_table_to_order(warmup, chunks, table):
        microbatch, _ = next(forwards if chunk > 0 else backwards)
        cells.append(f"{(abs(chunk) - 1) * ranks + rank}{'F' if chunk > 0 else 'B'}{microbatch}")
    return cells


@pytest.mark.parametrize(("ranks", "chunks", "microbatches", "group"), CASES)
def test_every_rank_has_megatrons_order(tmp_path, ranks, chunks, microbatches, group):
    file = tmp_path / "order.csv"
    done = meshwright.execute(["schedule", "interleaved-1f1b", "--stages", ranks, "--chunks", chunks, "--microbatches",
                               microbatches, *(["--group", group] if group else []), "--csv", file])
    assert done.returncode == 0, done.stderr
    rows = [[cell for cell in line.split(",") if cell] for line in file.read_text(encoding="utf-8").splitlines()]
    assert rows == [order_of(rank, ranks, chunks, microbatches, group or ranks) for rank in range(ranks)]

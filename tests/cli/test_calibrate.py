"""`meshwright calibrate`: what it fits on which rows, and what it writes."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import meshwright  # noqa: E402
from published import RUNS, call, write_few, written  # noqa: E402

if meshwright.missing():
    pytest.skip(meshwright.missing(), allow_module_level=True)

ROOT = meshwright.ROOT


@pytest.fixture
def few(tmp_path):
    return write_few(tmp_path / "few.csv")


def test_a_profile_is_fitted_and_written(few, tmp_path):
    out = tmp_path / "p.toml"
    done = call(
        *("calibrate", few, "--profile", "clusters/profiles/a100-80gb-megatron.toml", "--no-left-out"),
        *("--constants", "matrix_fraction", "--iterations", 2, "-o", out),
    )
    assert done.returncode == 0, done.stderr
    assert "4 runs: mean error" in done.stdout
    text = out.read_text()
    assert 'source = "fit"' in text
    old = (ROOT / "clusters/profiles/a100-80gb-megatron.toml").read_text()
    fitted = f"fitted by meshwright calibrate on 4 rows of {few}: matrix_fraction; before: "
    assert fitted + old.split('\nsource = "')[1].split('"\n')[0] in text
    constants = [line for line in old.splitlines() if "source" in line and line.split(" ")[0].endswith(("_us", "_fraction", "_efficiency"))]
    assert len(constants) > 3
    for line in constants:
        assert line in text or line.startswith("matrix_fraction")
    # A second fit's words take the place of the first one's.
    again = tmp_path / "q.toml"
    done = call("calibrate", few, "--profile", out, "--no-left-out", "--constants", "launch_us", "--iterations", 1, "-o", again)
    assert done.returncode == 0, done.stderr
    assert again.read_text().count("fitted by meshwright calibrate") == 1 and "4 rows of" in again.read_text()


def test_rows_of_one_stack_need_no_profile_named(few, tmp_path):
    out = tmp_path / "p.toml"
    options = ("--no-left-out", "--constants", "matrix_fraction", "--iterations", 1, "-o", out)
    done = call("calibrate", few, *options)
    assert done.returncode == 0, done.stderr
    begun, own = done.stdout.split("\n", 1)
    assert begun.startswith("the rows marked fit are of Megatron-LM on A100 80 GB: beginning with ")
    assert begun.endswith("clusters/profiles/a100-80gb-megatron.toml")
    fitted = out.read_text()
    assert call("calibrate", few, "--profile", "a100-80gb-megatron", *options).stdout == own
    assert out.read_text() == fitted
    done = call("calibrate", ROOT / "data/published/runs.csv", "--constants", "zzz")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "meshwright: --profile: is missing, and the rows marked fit are of A100-SXM-40GB with llm-foundry, A100-SXM-80GB with llm-foundry, "
        "A100-SXM-80GB with megatron, H100-SXM-80GB with llm-foundry, H100-SXM-80GB with megatron; give a profile to begin with "
        "(a100-40gb-llm-foundry, a100-80gb-llm-foundry, a100-80gb-megatron, h100-80gb-llm-foundry, h100-80gb-megatron), or with "
        "--cluster a device\n--constants: unknown constant 'zzz'")


def test_kernels_alone_make_a_profile_of_a_cluster(tmp_path):
    table = tmp_path / "kernels.csv"
    # A ring of 8 at 100 GB/s of bus and 50 us: 2 * 7 / 8 * bytes / 100e9.
    lines = ["device,collective,nodes,ranks,bytes,time_us"]
    lines += [f"A100-SXM,all_reduce,1,8,{2**k},{50 + 1.75 * 2**k / 1e5}" for k in range(20, 31)]
    table.write_text("\n".join(lines) + "\n")
    out = tmp_path / "p.toml"
    done = call("calibrate", "--kernels", table, "--cluster", "selene", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "11 measured kernels: mean error" in done.stdout and "every fifth measured kernel" in done.stdout
    assert "all_reduce of 1.00 GiB on 8 ranks of 1 nodes" in done.stdout
    fraction = float(out.read_text().split("node_bus_fraction = { value = ")[1].split(",")[0])
    assert "network_bus_fraction" not in out.read_text()  # all rows are of one node
    assert "no row depends on it" in done.stdout
    assert fraction * 300 == pytest.approx(100, rel=0.1)  # of a link of 300 GB/s
    assert call("simulate", "--model", "gpt-tiny", "--cluster", "selene", "--profile", out, "--plan", "tp=2",
                "--global-batch", 8).returncode == 0


def test_without_a_profile_runs_are_fitted_from_the_clusters_figures(few, tmp_path):
    out = tmp_path / "p.toml"
    done = call("calibrate", few, "--cluster", "selene", "--constants", "matrix_fraction,launch_us", "-o", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert 'software = "megatron"' in text and 'device = "A100-SXM-80GB"' in text
    assert "left out of the fit, then predicted:" in done.stdout and "[[left_out]]" in text


@pytest.fixture
def four(tmp_path):
    """The SP paper's runs of 22B and 175B alone."""
    path = tmp_path / "four.csv"
    path.write_text("\n".join([RUNS[0], *(r for r in RUNS if "2205.05198 Table 5" in r and ("GPT-22B" in r or "GPT-175B" in r))]) + "\n")
    return path


def constants(done):
    """What a fit was of, and its values."""
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: line.split()[1:3] for line in done.stdout.split("\n\n")[0].splitlines()[1:]}


def test_without_constants_named_those_of_the_profile_are_fitted_or_the_usual_ones(four, tmp_path):
    refused = "--constants: 4 rows cannot determine {} constants "
    assert refused.format(7) in call("calibrate", four, "--cluster", "selene").stderr
    profile = (ROOT / "clusters/profiles/a100-80gb-megatron.toml").read_text()
    assert refused.format(profile.count('"fit"')) in call("calibrate", four, "--profile", "a100-80gb-megatron").stderr
    # Of those a table of collectives says something of the ones that are of them.
    table = ("--kernels", ROOT / "data/published/collectives.csv", "--iterations", 0, "--no-left-out")
    assert list(constants(call("calibrate", *table, "--profile", "a100-80gb-megatron"))) == [
        "collective_latency_us", "node_bus_fraction", "network_bus_fraction"]
    guessed = tmp_path / "guessed.toml"
    guessed.write_text(profile.replace('"fit"', '"guess"'))
    assert call("calibrate", four, "--profile", guessed).stderr == (
        f'meshwright: {guessed}: marks no constant with source = "fit"; name some with --constants\n')


ONE = ("--constants", "matrix_fraction")


def test_a_fit_takes_as_many_rows_and_steps_as_it_is_told_and_prints_what_is_asked_for(four):
    begin = ("calibrate", four, "--profile", "a100-80gb-megatron", *ONE)
    whole = call(*begin)
    assert "\n4 runs: mean error " in whole.stdout and "\nresiduals:\n" in whole.stdout and "\nleft out of the fit" in whole.stdout
    short = call(*begin, "--runs-per-source", 3, "--iterations", 0, "--no-left-out", "--summary").stdout
    assert "\n3 runs: mean error " in short and "residuals" not in short and "left out" not in short
    start, fitted = constants(whole)["matrix_fraction"]
    assert start != fitted
    assert constants(call(*begin, "--iterations", 0))["matrix_fraction"] == [start, start]


def test_larger_models_are_predicted_with_what_the_smaller_ones_were_fitted_on(four):
    begin = ("calibrate", four, "--profile", "a100-80gb-megatron", *ONE, "--no-left-out", "--split-at", 100)
    (fit, larger), (_, before) = (call(*begin, *more).stdout.split("\nmodels above 100 billion parameters, none of them fitted on:\n")
                                  for more in ((), ("--iterations", 0)))
    assert "\n2 runs: mean error " in fit
    rows = [line for line in larger.splitlines() if line.startswith("  GPT-175B ")]
    assert len(rows) == 2 and larger != before
    assert "rows that are only compared " in larger and "rows that profiles are fitted on" not in larger
    summary = call(*begin, "--summary").stdout
    assert summary.endswith("fitted on:\n" + larger[larger.index("source "):]) and "residuals" not in summary


def test_rows_of_another_stack_and_rows_that_cannot_be_simulated_are_not_fitted_on(four, tmp_path):
    head, *rows = four.read_text().splitlines()
    path = written(tmp_path / "others.csv", {"software": "other"}, {"moe": "E128"})
    path.write_text("\n".join([path.read_text().rstrip("\n"), *rows]) + "\n")
    done = call("calibrate", path, "--profile", "a100-80gb-megatron", *ONE, "--no-left-out")
    assert "\n4 runs: mean error " in done.stdout
    assert done.stdout.startswith("not fitted on: line 3, GPT-22B (arXiv:2205.05198 Table 5): moe: unknown form E128")
    # Of two stacks one of which has no profile none is chosen.
    assert call("calibrate", path, *ONE).stderr.startswith(
        "meshwright: --profile: is missing, and the rows marked fit are of A100-SXM-80GB with megatron, A100-SXM-80GB with other; ")


def test_a_cluster_of_ones_own_is_the_one_of_its_device(four, tmp_path):
    slow, foreign = tmp_path / "slow.toml", tmp_path / "foreign.toml"
    slow.write_text((ROOT / "clusters/selene.toml").read_text().replace("memory_GBps = 2039", "memory_GBps = 1039"))
    begin = ("calibrate", four, "--profile", "a100-80gb-megatron", *ONE, "--no-left-out", "--iterations", 0, "--summary")
    own = call(*begin, "--cluster", slow)
    assert own.returncode == 0 and own.stdout != call(*begin).stdout
    profile = (ROOT / "clusters/profiles/a100-80gb-megatron.toml").read_text()
    foreign.write_text(profile.replace('device = "A100-SXM-80GB"', 'device = "Abacus"'))
    assert call("calibrate", four, "--profile", foreign, *ONE).stderr.startswith(
        f"meshwright: {foreign}: no cluster has its device Abacus; name one with --cluster\n")

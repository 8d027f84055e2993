"""The scripts' own logic: the text's dump, the linter's function lengths, the sum of test results."""

import csv
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def load(name):
    loader = importlib.machinery.SourceFileLoader(name.removesuffix(".py"), str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_king_james_text_is_whole_and_plain():
    path = SCRIPTS.parent / "build" / "data" / "kjv.txt"
    if not path.exists():
        pytest.skip("no bible-kjv-text here")
    text = path.read_text(encoding="ascii")
    assert text.startswith(
        "Genesis\n\n1:1 In the beginning God created the heaven and the earth.\n1:2 And")
    assert text.endswith("\n22:21 The grace of our Lord Jesus Christ be with you all. Amen.\n")
    assert "\n\n1 Samuel\n\n1:1 Now there was" in text
    assert 4_200_000 < len(text) < 4_500_000


@pytest.mark.parametrize("dump, message", [
    ("Ge1:1 In the beginning.\n", "1 books, 1 verses; must be 66, 31102"),
    ("Ge1:1 In the beginning.\nno verse\n", "line 2 is not a verse: 'no verse'"),
])
def test_a_partial_dump_is_refused(dump, message):
    with pytest.raises(ValueError, match=message):
        load("kjv_text.py").plain_text(dump)


def test_function_lengths_are_counted_from_signature_to_brace():
    lines = """\
int f(int a,
      int b) {
  if (a) {
    return b;
  }
  return a;
}
namespace x {
struct S {
  int g() const { return 1; }
  void h() const override {
    for (int i = 0; i < 2; ++i) {
      k();
    }
  }
};
}  // namespace x
TEST_CASE("t") {
  const auto add = [&](int x) {
    y += x;
  };
}""".splitlines()
    assert load("lint").function_lengths(lines) == [(1, 7), (11, 5), (18, 5), (19, 3)]


def test_results_are_summed_over_programs_and_crashes_count(tmp_path):
    summary = "[doctest] test cases:  {} |  {} passed | {} failed | {} skipped"
    report = tmp_path / "ctest.xml"
    report.write_text(f"""<testsuite>
      <testcase name="good" status="run"><system-out>{summary.format(5, 4, 0, 1)}</system-out></testcase>
      <testcase name="bad" status="fail"><system-out>{summary.format(3, 1, 2, 0)}</system-out></testcase>
      <testcase name="leak" status="fail"><system-out>{summary.format(2, 2, 0, 0)}</system-out></testcase>
      <testcase name="crash" status="fail"><system-out>Segmentation fault</system-out></testcase>
      <testcase name="program" status="run"><system-out>ok</system-out></testcase>
      <testcase name="absent" status="notrun"><skipped/></testcase>
    </testsuite>""")
    # good 4+1 skipped, bad 1+2, leak 2 and the failed program, crash 1, program 1, absent skipped.
    assert load("test").count_ctest(report) == [8, 4, 2]


def test_gpu_steps_are_measured_without_a_gpu_too(tmp_path):
    pytest.importorskip("torch")
    columns = "model,layers,profile,devices,plan,global_batch,seq_len,precision"
    columns += ",step_s,group_s,allocated_GiB,reserved_GiB"
    plans = ["dp=8,zero=3,recompute=selective-op", "dp=4,cp=2,zero=3,recompute=full", "dp=2,tp=4,zero=3"]
    rows = [f'llama-micro,2,h100-80gb-torch,8,"{plan}",8,64,bf16,,,,' for plan in plans]
    steps, measured = tmp_path / "steps.csv", tmp_path / "measured.csv"
    steps.write_text("\n".join([columns, *rows]) + "\n")
    words = [sys.executable, SCRIPTS / "measure_gpu_steps.py", steps, "-o", measured, "--steps", "3"]
    done = subprocess.run(words, capture_output=True, text=True)
    alone, ring, refused = csv.DictReader(measured.open())
    assert 0 < float(alone["group_s"]) < float(alone["step_s"]) < 60
    assert 0 < float(ring["group_s"]) < float(ring["step_s"]) < 60
    assert "this measures dp=N, cp=M, zero=3 in bf16, not dp=2,tp=4,zero=3 in bf16" in done.stderr
    assert (refused["step_s"], alone["allocated_GiB"]) == ("", "")

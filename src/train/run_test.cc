// Whole runs of a micro model on a disk in memory, and the job files that they come from.
#include "train/run.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "base/fake_fs.h"
#include "base/json.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "checkpoint/store.h"
#include "train/generate.h"
#include "train/run_checkpoint.h"
#include "train/trainer.h"

namespace mw::train {
namespace {

constexpr const char* kMicro = R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 8,
  "n_embd": 8, "n_layer": 1, "n_head": 2, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0})";

// 12 held-out samples of 59: three batches.
std::string toml(const std::string& train = "",
                 const std::string& eval = "every = 2\nbatches = 2") {
  return fmt::format(
      "model = \"m.json\"\n[data]\nfile = \"t.txt\"\nseq_len = 8\nvalid_fraction = 0.2\n"
      "[train]\nglobal_batch = 4\nsteps = 10\nlr = 1e-2\nwarmup = 2\n{}\n"
      "[eval]\n{}\n[checkpoint]\nevery = 2\nkeep = 9\n",
      train, eval);
}

struct Disk : FakeFileSystem {
  Disk() {
    std::string text;
    for (int i = 0; i < 480; ++i) text += static_cast<char>('a' + i * i % 26);
    write_file("t.txt", text);
    write_file("m.json", kMicro);
    write_file("j.toml", toml());
  }
  Job job() { return read_job(*this, "j.toml", {}, JobUse::kTrain); }
};

RunSummary run_to(FileSystem& fs, const Job& job, const std::string& folder, int64_t steps,
                  const std::optional<std::string>& resume = {},
                  std::optional<int64_t> trace_step = {}) {
  RunOptions options;
  options.run_dir = folder;
  options.steps = steps;
  options.resume = resume;
  options.trace_step = trace_step;
  options.threads_per_rank = 1;
  return run(fs, job, options, [](const std::string&) {});
}

std::vector<Json> metrics_of(FileSystem& fs, const std::string& folder) {
  const std::string text = fs.read_file(folder + "/metrics.jsonl");
  std::vector<Json> lines;
  for (const std::string_view line : split(trim(text), '\n'))
    lines.push_back(parse_json(line, folder));
  return lines;
}

TEST_CASE(
    "the rate rises to lr in the warm-up, and falls to min_lr at the last step, where it stays") {
  Job job;
  job.lr = 1;
  job.min_lr = 0.1;
  job.warmup = 2;
  job.horizon = 10;
  const std::pair<int64_t, double> wanted[] = {{1, 0.5},  {2, 1},    {6, 0.55},
                                               {10, 0.1}, {11, 0.1}, {15, 0.1}};
  for (const auto& [step, rate] : wanted) {
    CAPTURE(step);
    CHECK(learning_rate(job, step) == mw::test::close_to(rate));
  }
  job.warmup = 20;  // the run ends before
  CHECK(learning_rate(job, 10) == mw::test::close_to(0.5));
  CHECK(learning_rate(job, 21) == mw::test::close_to(0.1));
}

TEST_CASE("numbers of a job that nothing could be trained with are refused") {
  Disk fs;
  CHECK(fs.job().min_lr == mw::test::close_to(1e-3));
  struct Case {
    const char* line;
    const char* finding;
  };
  for (const auto& [line, finding] :
       {Case{"beta1 = 1.0", "j.toml:11: train.beta1: must be a number from 0 to 0.9999999, is 1.0"},
        Case{"epsilon = 1e39",
             "j.toml: train.epsilon: is 1e+39, more than a float holds; use less"},
        Case{"weight_decay = 1e39",
             "j.toml: train.weight_decay: is 1e+39, more than a float holds; use less"}}) {
    fs.write_file("j.toml", toml(line));
    CHECK(mw::test::thrown_by([&] { fs.job(); }) == finding);
  }
  fs.write_file("j.toml", replace_all(toml(), "global_batch = 4", "global_batch = 134217729"));
  CHECK(
      mw::test::thrown_by([&] { fs.job(); }) ==
      "j.toml: train.global_batch*data.seq_len=134217729*8 is more than 1073741824 tokens a step; "
      "use fewer");
}

TEST_CASE("a run goes on where another stands, and tells and traces its own steps") {
  Disk fs;
  const RunSummary whole = run_to(fs, fs.job(), "whole", 5);
  const RunSummary begun = run_to(fs, fs.job(), "begun", 3);
  CHECK(begun.steps == 3);
  CHECK(checkpoint::list_steps(fs, "begun/checkpoint") == std::vector<int64_t>{2, 3});
  const Job job = read_resumed_job(fs, "j.toml", "begun", {}, JobUse::kTrain);
  for (const int64_t step : {3, 6}) {
    CHECK(mw::test::thrown_by([&] { run_to(fs, job, "on", 5, "begun", step); }) ==
          fmt::format("--trace-step: {} is none of this run's steps, {} to 5", step,
                      step == 3 ? 4 : 1));
  }
  const RunSummary on = run_to(fs, job, "on", 5, "begun");
  CHECK(on.steps == 5);
  CHECK(on.final_loss == whole.final_loss);
  CHECK(on.held_out_loss == whole.held_out_loss);
  const std::vector<Json> all = metrics_of(fs, "whole"), rest = metrics_of(fs, "on");
  REQUIRE(rest.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"step", "loss", "grad_norm", "lr", "held_out_loss"})
      CHECK(rest[i].at(key, "") == all[3 + i].at(key, ""));
  }
  const auto traced = [&](const std::string& folder) {
    return parse_json(fs.read_file(folder + "/trace.json"), folder)
        .at("otherData", "")
        .at("step", "")
        .as_integer("");
  };
  CHECK(traced("whole") == 2);
  CHECK(traced("on") == 5);
  CHECK(checkpoint::CheckpointReader::latest(fs, "on/checkpoint")
            .run_state()
            .at("samples", "")
            .as_integer("") == 20);
}

TEST_CASE(
    "a run that does not say what it was trained on goes on with any text, and says it then") {
  Disk fs;
  const Job job = fs.job();
  run_to(fs, job, "R", 2);
  Trainer trainer(fs, job, 1);
  trainer.resume("R");
  const std::string known = trainer.state().data;
  CHECK(!known.empty());
  fs.make_directory("old");
  save_run(fs, "old", job, trainer.prepared().plan, trainer.parameters(), {2, 8, ""});
  fs.write_file("old/config.json", kMicro);
  JsonObject record = run_record(job).as_object("");
  record.erase("valid_fraction");
  fs.write_file("old/job.json", Json(record).dump());
  run_to(fs, read_resumed_job(fs, "j.toml", "old", {}, JobUse::kTrain), "new", 3, "old");
  CHECK(checkpoint::CheckpointReader::latest(fs, "new/checkpoint")
            .run_state()
            .at("data", "")
            .as_string("") == known);
}

TEST_CASE("the held-out loss is without dropout, and of no batch twice") {
  Disk fs;
  const auto held_out = [&](const std::string& model, int64_t batches) {
    fs.write_file("m.json", model);
    fs.write_file("j.toml", toml("", fmt::format("every = 2\nbatches = {}", batches)));
    Trainer trainer(fs, fs.job(), 1);
    trainer.initialize();
    return trainer.evaluate();
  };
  const float three = held_out(kMicro, 3);
  CHECK(held_out(kMicro, 4) == three);
  CHECK(held_out(kMicro, 1) != three);
  for (const char* dropout : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) {
    CAPTURE(dropout);
    CHECK(held_out(replace_all(kMicro, fmt::format("\"{}\": 0", dropout),
                               fmt::format("\"{}\": 0.5", dropout)),
                   3) == three);
  }
}

TEST_CASE(
    "a text goes on from the window's last tokens, without dropout, with a draw for each token") {
  Disk fs;
  run_to(fs, fs.job(), "R", 2);
  const auto behind = [&](const std::string& prompt, double temperature) {
    return generate(fs, "R", prompt, {20, temperature, 1}).substr(prompt.size());
  };
  CHECK(behind("zzzzabcdefgh", 0) == behind("abcdefgh", 0));
  CHECK(behind("zzzzabcdefgh", 0) != behind("zzzzabcd", 0));
  const std::string drawn = behind("abc", 1);
  CHECK(std::set<char>(drawn.begin(), drawn.end()).size() > 5);
  fs.write_file("R/config.json", replace_all(kMicro, "\"embd_pdrop\": 0", "\"embd_pdrop\": 0.9"));
  CHECK(behind("abc", 1) == drawn);
}

}  // namespace
}  // namespace mw::train

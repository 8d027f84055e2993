// What every rank is given, against the corpus by hand.
#include "train/batches.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fake_fs.h"

namespace mw::train {
namespace {

constexpr int64_t kSeq = 8, kBatch = 8;

Job job_of() {
  Job job;
  job.model_file = "m.json";
  job.model.vocab_size = 256;
  job.data_file = "corpus.txt";
  job.seq_len = kSeq;
  job.global_batch = kBatch;
  job.valid_fraction = 0.5;
  job.seed = 3;
  return job;
}

// Byte i of the corpus is i: 15 samples to train on, 15 held out behind byte 121.
Batches batches_of(FakeFileSystem& fs, const Job& job) {
  std::string text;
  for (int i = 0; i < 242; ++i) text += static_cast<char>(i);
  fs.write_file(job.data_file, text);
  return {fs, job};
}

template <typename T>
std::vector<T> given(const execute::Loader& loader, const std::string& name, DType dtype,
                     int32_t microbatch, int64_t rank, const std::vector<int64_t>& sizes) {
  const ir::TensorType type = ir::make_type(dtype, sizes);
  std::vector<T> values(static_cast<size_t>(type.elements()));
  loader(name, microbatch, RankId(rank), type, values.data());
  return values;
}
std::vector<int32_t> tokens(const execute::Loader& loader, int32_t microbatch, int64_t rank,
                            const std::vector<int64_t>& sizes, const std::string& name = "tokens") {
  return given<int32_t>(loader, name, DType::kI32, microbatch, rank, sizes);
}

TEST_CASE("microbatches and data-parallel ranks divide the batch in order") {
  FakeFileSystem fs;
  const Job job = job_of();
  const Batches batches = batches_of(fs, job);
  CHECK(batches.evaluation_batches() == 1);
  const cluster::Mesh mesh({{"dp", 2}, {"tp", 2}});
  const data::SampleOrder order(3, 15);
  for (const int64_t step : {1, 2, 3}) {  // the second runs into the next epoch
    const execute::Loader loader = batches.training(mesh, step);
    const execute::Loader held_out = batches.evaluation(mesh, 0);
    for (int32_t microbatch = 0; microbatch < 2; ++microbatch) {
      for (int64_t rank = 0; rank < 4; ++rank) {
        std::vector<int64_t> ids;
        for (int64_t b = 0; b < 2; ++b)
          ids.push_back(8 * (step - 1) + 4 * microbatch + 2 * (rank / 2) + b);
        CHECK(given<int64_t>(loader, "sample_ids", DType::kI64, microbatch, rank, {2}) == ids);
        std::vector<int32_t> inputs, targets, held;
        for (const int64_t id : ids) {
          for (int64_t s = 0; s < kSeq; ++s) {
            inputs.push_back(static_cast<int32_t>(8 * order.sample(id) + s));
            targets.push_back(inputs.back() + 1);
            held.push_back(static_cast<int32_t>(121 + 8 * (id % 8) + s));
          }
        }
        CHECK(tokens(loader, microbatch, rank, {2, kSeq}) == inputs);
        CHECK(tokens(loader, microbatch, rank, {2, kSeq}, "targets") == targets);
        CHECK(tokens(held_out, microbatch, rank, {2, kSeq}) == held);
      }
    }
    CHECK(given<int64_t>(loader, "step", DType::kI64, -1, 0, {})[0] == step);
    CHECK(given<int64_t>(loader, "seed", DType::kI64, -1, 0, {})[0] == 3);
    CHECK(given<float>(loader, "loss_scale", DType::kF32, -1, 0, {})[0] == 1.0F / 64);
  }
}

TEST_CASE("a later batch that is held out begins behind those before it") {
  FakeFileSystem fs;
  Job job = job_of();
  job.global_batch = 5;
  const Batches batches = batches_of(fs, job);
  CHECK(batches.evaluation_batches() == 3);
  const cluster::Mesh mesh({{"dp", 1}});
  for (const int64_t batch : {0, 1, 2})
    CHECK(tokens(batches.evaluation(mesh, batch), 0, 0, {5, kSeq})[0] == 121 + 8 * 5 * batch);
}

TEST_CASE(
    "a rank of context parallelism has a part from the front and the one as far from the end") {
  FakeFileSystem fs;
  const Job job = job_of();
  const Batches batches = batches_of(fs, job);
  const cluster::Mesh mesh({{"dp", 2}, {"cp", 2}});
  const execute::Loader loader = batches.evaluation(mesh, 0);
  const std::vector<int32_t> at[] = {{0, 1, 6, 7}, {2, 3, 4, 5}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    std::vector<int32_t> positions, inputs, targets;
    for (int64_t b = 0; b < 4; ++b) {
      for (const int32_t s : at[rank % 2]) {
        positions.push_back(s);
        inputs.push_back(static_cast<int32_t>(121 + 8 * (4 * (rank / 2) + b) + s));
        targets.push_back(inputs.back() + 1);
      }
    }
    CHECK(tokens(loader, 0, rank, {4, 4}, "positions") == positions);
    CHECK(tokens(loader, 0, rank, {4, 4}) == inputs);
    CHECK(tokens(loader, 0, rank, {4, 4}, "targets") == targets);
  }
}

TEST_CASE("a corpus with a token beyond the vocabulary is refused before the first step") {
  FakeFileSystem fs;
  Job job = job_of();
  job.model.vocab_size = 242;
  CHECK_NOTHROW(batches_of(fs, job));
  job.model.vocab_size = 241;
  CHECK_THROWS_WITH_AS(batches_of(fs, job),
                       "corpus.txt: holds token 241, but m.json has vocab_size=241; use a model "
                       "with a vocabulary of at least 242",
                       Error);
  job.model.vocab_size = 255;  // one less than bytes there are
  FakeFileSystem whole;
  std::string text(242, 'a');
  text[100] = '\xff';
  whole.write_file(job.data_file, text);
  CHECK_THROWS_WITH_AS(Batches(whole, job),
                       "corpus.txt: holds token 255, but m.json has vocab_size=255; use a model "
                       "with a vocabulary of at least 256",
                       Error);
}

TEST_CASE("held-out samples that are no batch are refused where a loss of them is asked for") {
  FakeFileSystem fs;
  Job job = job_of();
  job.global_batch = 16;
  CHECK_THROWS_WITH_AS(batches_of(fs, job),
                       "corpus.txt: 15 held-out samples of 8 tokens are fewer than "
                       "global_batch=16; use a longer text, a larger data.valid_fraction or "
                       "eval.every=0",
                       Error);
  job.eval_every = 0;
  CHECK_NOTHROW(batches_of(fs, job));
}

}  // namespace
}  // namespace mw::train

#include "train/batches.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace mw::train {
namespace {

template <typename T>
void put_scalar(const ir::TensorType& type, void* data, T value) {
  MW_CHECK(type.rank() == 0 && dtype_size(type.dtype) == sizeof(T), "scalar input of type {}",
           ir::to_string(type));
  std::memcpy(data, &value, sizeof(T));
}

// Of a sequence in 2 x ranks parts, a rank of context parallelism has one from the front and the
// one as far from the end: all ranks have as many pairs of a query and a key before it.
struct SequencePart {
  int64_t length, ranks, index;
  // In the sequence, of the rank's i-th token.
  int64_t position(int64_t i) const {
    const int64_t part = length / (2 * ranks);
    if (ranks == 1) return i;
    return i < part ? index * part + i : (2 * ranks - 1 - index) * part + (i - part);
  }
};

}  // namespace

Batches::Batches(FileSystem& fs, const Job& job)
    : job_(job), source_(data::open_corpus(fs, job.data_file)) {
  split_ = data::split_samples(*source_, job.seq_len, job.valid_fraction);
  if (split_.valid.num_samples > 0 && split_.valid.num_samples < job.global_batch &&
      job.eval_every > 0) {
    throw_error(
        "{}: {} held-out samples of {} tokens are fewer than global_batch={}; use a longer text, a "
        "larger "
        "data.valid_fraction or eval.every=0",
        job.data_file, split_.valid.num_samples, job.seq_len, job.global_batch);
  }
  // Known from the format; a wider one is scanned.
  if (source_->max_token() >= job.model.vocab_size) {
    const data::TokenRange range = data::scan_tokens(*source_);
    if (range.max >= job.model.vocab_size) {
      throw_error(
          "{}: holds token {}, but {} has vocab_size={}; use a model with a vocabulary of at least "
          "{}",
          job.data_file, range.max, job.model_file, job.model.vocab_size, range.max + 1);
    }
  }
}

int64_t Batches::evaluation_batches() const { return split_.valid.num_samples / job_.global_batch; }

execute::Loader Batches::training(const cluster::Mesh& mesh, int64_t step) const {
  const data::SampleOrder order(static_cast<uint64_t>(job_.seed), split_.train.num_samples);
  return loader(mesh, split_.train, order, (step - 1) * job_.global_batch, step);
}

execute::Loader Batches::evaluation(const cluster::Mesh& mesh, int64_t batch) const {
  const data::SampleOrder order = data::SampleOrder::sequential(split_.valid.num_samples);
  return loader(mesh, split_.valid, order, batch * job_.global_batch, 0);
}

execute::Loader Batches::loader(const cluster::Mesh& mesh, const data::SampleSet& set,
                                const data::SampleOrder& order, int64_t first_sample,
                                int64_t step) const {
  return [this, &mesh, &set, order, first_sample, step](const std::string& name, int32_t microbatch,
                                                        RankId rank, const ir::TensorType& type,
                                                        void* out) {
    if (name == "seed") return put_scalar<int64_t>(type, out, job_.seed);
    if (name == "step") return put_scalar<int64_t>(type, out, step);
    if (name == "lr")
      return put_scalar<float>(type, out, static_cast<float>(learning_rate(job_, step)));
    if (name == "loss_scale") {
      return put_scalar<float>(type, out,
                               1.0F / static_cast<float>(job_.global_batch * job_.seq_len));
    }
    const int64_t rows_B = type.dim(0), ranks = mesh.axis_size("dp");
    const SequencePart part{job_.seq_len, mesh.axis_size("cp"), mesh.index(rank, {"cp"})};
    const int64_t first = first_sample + (microbatch * ranks + mesh.index(rank, {"dp"})) * rows_B;
    if (name == "positions") {
      auto* positions_BS = static_cast<int32_t*>(out);
      for (int64_t i = 0; i < type.elements(); ++i)
        positions_BS[i] = static_cast<int32_t>(part.position(i % type.dim(1)));
      return;
    }
    if (name == "sample_ids") {
      auto* ids_B = static_cast<int64_t*>(out);
      for (int64_t b = 0; b < rows_B; ++b) ids_B[b] = first + b;
      return;
    }
    MW_CHECK(name == "tokens" || name == "targets", "no data input {}", name);
    thread_local std::vector<int32_t> other, whole;
    other.resize(static_cast<size_t>(rows_B * job_.seq_len));
    whole.resize(part.ranks > 1 ? other.size() : 0);
    int32_t* wanted = part.ranks > 1 ? whole.data() : static_cast<int32_t*>(out);
    const bool tokens = name == "tokens";
    data::fill_batch(set, order, first, rows_B, job_.model.vocab_size,
                     {tokens ? wanted : other.data(), tokens ? other.data() : wanted, nullptr});
    if (part.ranks == 1) return;
    for (int64_t i = 0; i < type.elements(); ++i) {
      const int64_t at = i / type.dim(1) * job_.seq_len + part.position(i % type.dim(1));
      static_cast<int32_t*>(out)[i] = whole[static_cast<size_t>(at)];
    }
  };
}

}  // namespace mw::train

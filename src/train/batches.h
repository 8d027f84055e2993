// Which samples every rank reads: a function of the step, the microbatch and the rank's place on
// the data axis.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/fs.h"
#include "cluster/mesh.h"
#include "data/batch.h"
#include "data/token_source.h"
#include "execute/executor.h"
#include "train/job.h"

namespace mw::train {

// B samples a rank and microbatch, S sequence
class Batches {
 public:
  // Throws Error where the data is missing, too short, or has tokens beyond the model's vocabulary.
  Batches(FileSystem& fs, const Job& job);

  // Fills tokens, targets, positions, sample_ids [B, S] and the scalars of a step. Microbatch k of
  // m holds the samples [k/m, (k+1)/m) of the global batch, and data-parallel rank d of n the part
  // [d/n, (d+1)/n) of those.
  execute::Loader training(const cluster::Mesh& mesh, int64_t step) const;
  execute::Loader evaluation(const cluster::Mesh& mesh, int64_t batch) const;
  // How many whole batches the held-out part has.
  int64_t evaluation_batches() const;
  // Of the data (data/token_source.h).
  std::string fingerprint() const { return data::fingerprint(*source_); }

 private:
  execute::Loader loader(const cluster::Mesh& mesh, const data::SampleSet& set,
                         const data::SampleOrder& order, int64_t first_sample, int64_t step) const;

  const Job& job_;
  std::unique_ptr<data::TokenSource> source_;
  data::SampleSplit split_;
};

}  // namespace mw::train

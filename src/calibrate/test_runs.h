// A small run on a made-up machine. For tests of room calibrate.
#pragma once

#include "base/fs.h"
#include "calibrate/run_request.h"

namespace mw::calibrate {

// Those of data/published.
inline const std::vector<ModelFamily>& published_families() {
  static const std::string kRoot = MW_SOURCE_DIR;
  static const std::vector<ModelFamily> kFamilies =
      read_families(posix_fs(), kRoot + "/data/published/families.toml", {kRoot + "/models"});
  return kFamilies;
}

// As parse_rows takes a row's family from its model's name and its mixture.
inline void name_model(Run& run, const std::string& name, const std::string& moe = "") {
  run.model = name;
  run.moe = moe;
  const bool latent = moe.find("MLA") != std::string::npos;
  const ModelFamily* family = family_of(name, latent, published_families());
  run.family = family != nullptr ? std::optional(*family) : std::nullopt;
}

inline Run gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq, int64_t vocab,
               int64_t batch) {
  Run run;
  name_model(run, "GPT");
  run.layers = layers;
  run.hidden = hidden;
  run.heads = run.kv_heads = heads;
  run.ffn = 4 * hidden;
  run.seq = seq;
  run.vocab = vocab;
  run.global_batch = batch;
  run.gpu = "A100";
  run.precision = "fp16";
  run.recompute = "full";
  run.metric = "iteration_time";
  run.value = 1;
  run.gpus = run.dp = 1;
  run.micro_batch = 1;
  return run;
}

inline Machines a100() {
  cluster::Cluster c;
  c.device.name = "A100";
  c.device.peaks = {{"f16", cluster::FlopsPerSecond(312e12)}};
  c.device.memory = Bytes(80'000'000'000);
  c.device.memory_bandwidth = cluster::BytesPerSecond(2e12);
  c.links.resize(1);
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(100e9);
  return {{c}, {}};
}

}  // namespace mw::calibrate

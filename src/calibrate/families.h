// Families of published models: whose blocks a model has that a row of runs names, and what the row
// has no column for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "models/config.h"

namespace mw::calibrate {

struct ModelFamily {
  std::string name;      // "Qwen3": in a model's name in whatever case
  bool is_word = false;  // no letter may stand on either side of it
  // A public model of the family, or no more than its blocks and biases: then without sizes.
  models::ModelConfig model;

  bool has_latent_attention() const { return model.latent.kv_rank > 0; }
};

// A TOML file, such as data/published/families.toml. Models are looked for by name in the folders
// in turn. Throws Error with all findings, by line.
std::vector<ModelFamily> read_families(FileSystem& fs, const std::string& file,
                                       const std::vector<std::string>& model_folders);

// Whether the model's name holds the family's.
bool is_of_family(const std::string& model, const ModelFamily& family);
// The first that the name holds; with latent attention the first of these that has it, or of all.
// nullptr: there is none.
const ModelFamily* family_of(const std::string& model, bool latent,
                             const std::vector<ModelFamily>& families);

}  // namespace mw::calibrate

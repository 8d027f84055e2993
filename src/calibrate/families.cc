#include "calibrate/families.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "base/toml.h"

namespace mw::calibrate {
namespace {

constexpr std::array<std::string_view, 2> kBlocks = {"llama", "gpt"};

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

// The path of NAME.json in the first folder that has it; "" after a finding.
std::string model_path(FileSystem& fs, JsonReader& reader,
                       const std::vector<std::string>& folders) {
  const std::string name = reader.string("model");
  std::vector<std::string> known;
  for (const std::string& folder : folders) {
    if (!fs.is_directory(folder)) continue;
    const std::string path = join_path(folder, name + ".json");
    if (fs.exists(path)) return path;
    for (const std::string& file : fs.list(folder)) {
      if (ends_with(file, ".json")) known.push_back(file.substr(0, file.size() - 5));
    }
  }
  reader.fail("model", "there is no model '{}'{}", clipped(name), did_you_mean(name, known));
  return "";
}

void read_model(FileSystem& fs, JsonReader& reader, const std::vector<std::string>& folders,
                models::ModelConfig& model, Diagnostics& diagnostics) {
  const std::string path = model_path(fs, reader, folders);
  if (path.empty()) return;
  attempt(diagnostics, [&] {
    const models::ModelConfig read = models::parse_config(fs.read_file(path), path);
    if (read.family == model.family) {
      model = read;
    } else {
      reader.fail("model", "must have llama blocks, as its family; {} has a gpt's", path);
    }
  });
}

ModelFamily read_family(FileSystem& fs, JsonReader& reader, const std::vector<std::string>& folders,
                        Diagnostics& diagnostics) {
  ModelFamily made;
  made.name = reader.string("name");
  if (reader.has("name") && made.name.empty())
    reader.fail("name", "is empty, which every model's name holds");
  made.is_word = reader.boolean_or("word", false);
  const bool is_llama = reader.choice("blocks", kBlocks) == "llama";
  made.model.family = is_llama ? models::Family::kLlama : models::Family::kGpt2;
  for (const char* key : {"model", "attention_bias"}) {
    reader.ignore(key);
    if (!is_llama && reader.has(key)) reader.fail(key, "is of llama blocks alone; leave it out");
  }
  if (is_llama && reader.has("model")) read_model(fs, reader, folders, made.model, diagnostics);
  if (is_llama)
    made.model.attention_bias = reader.boolean_or("attention_bias", made.model.attention_bias);
  reader.finish();
  return made;
}

}  // namespace

std::vector<ModelFamily> read_families(FileSystem& fs, const std::string& file,
                                       const std::vector<std::string>& model_folders) {
  const Toml toml = parse_toml(fs.read_file(file), file);
  Diagnostics diagnostics;
  JsonReader reader(toml.root, file, &diagnostics, &toml.lines);
  std::vector<ModelFamily> families;
  for (JsonReader& row : reader.objects("family")) {
    ModelFamily made = read_family(fs, row, model_folders, diagnostics);
    const auto before = std::find_if(families.begin(), families.end(), [&](const auto& other) {
      return !other.name.empty() && is_of_family(made.name, other);
    });
    if (before != families.end())
      row.fail("name", "'{}' is never found behind '{}', which it holds; put it before", made.name,
               before->name);
    families.push_back(std::move(made));
  }
  reader.finish();
  diagnostics.throw_if_any();
  return families;
}

bool is_of_family(const std::string& model, const ModelFamily& family) {
  const std::string lower = to_lower(model), name = to_lower(family.name);
  for (size_t at = lower.find(name); at != std::string::npos; at = lower.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (!family.is_word ||
        ((at == 0 || !is_letter(lower[at - 1])) && (end == lower.size() || !is_letter(lower[end]))))
      return true;
  }
  return false;
}

const ModelFamily* family_of(const std::string& model, bool latent,
                             const std::vector<ModelFamily>& families) {
  const ModelFamily* usual = nullptr;
  for (const ModelFamily& family : families) {
    if (latent && !family.has_latent_attention()) continue;
    if (is_of_family(model, family)) return &family;
    if (latent && usual == nullptr) usual = &family;
  }
  return usual;
}

}  // namespace mw::calibrate

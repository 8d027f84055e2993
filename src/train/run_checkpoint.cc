#include "train/run_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "checkpoint/index.h"
#include "checkpoint/store.h"
#include "models/hf_mapping.h"

namespace mw::train {
namespace {

constexpr const char* kModelGroup = "model";
constexpr const char* kOptimizerGroup = "optimizer";

std::string moment_name(const std::string& tensor, Part part) {
  return (part == Part::kMoment ? "exp_avg." : "exp_avg_sq.") + tensor;
}

// Appends a tensor piece by piece, or whole if its elements must be put in another order: a large
// embedding has no copy in memory.
void append_hf(const models::TensorMapping& mapping, const ParameterIo& io, Part part,
               const std::string& name, checkpoint::CheckpointWriter& writer) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  const int64_t elements = io.elements(mapping.state);
  const bool same_order = models::is_identity(mapping);
  std::vector<float> values(
      static_cast<size_t>(same_order ? std::min(kPiece, elements) : elements));
  for (int64_t begin = 0; begin < elements; begin += static_cast<int64_t>(values.size())) {
    values.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(values), elements - begin)));
    io.read(mapping.state, part, begin, values);
    const auto bytes = std::as_bytes(std::span<const float>(values));
    if (same_order) {
      writer.append(name, bytes);
    } else {
      std::vector<std::byte> reordered(bytes.size());
      models::to_hf(mapping, bytes, reordered);
      writer.append(name, reordered);
    }
  }
}

void write_hf(const models::TensorMapping& mapping, ParameterIo& io, Part part,
              std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  models::from_hf(mapping, bytes, std::as_writable_bytes(std::span<float>(values)));
  io.write(mapping.state, part, values);
}

std::vector<checkpoint::TensorGroup> groups_of(const std::vector<models::TensorMapping>& mappings) {
  checkpoint::TensorGroup model{kModelGroup, {}}, optimizer{kOptimizerGroup, {}};
  for (const models::TensorMapping& m : mappings) {
    model.tensors.push_back({m.hf_name, DType::kF32, m.hf_shape});
    for (const Part part : {Part::kMoment, Part::kVariance}) {
      optimizer.tensors.push_back({moment_name(m.hf_name, part), DType::kF32, m.hf_shape});
    }
  }
  return {model, optimizer};
}

// A file of another model would else train a part of it.
void add_unknown(const checkpoint::TensorFiles& files, const std::set<std::string>& known,
                 const std::string& path, Diagnostics& diagnostics) {
  constexpr size_t kShown = 3;
  std::vector<std::string> unknown;
  for (const checkpoint::SafetensorsFile& shard : files.shards()) {
    for (const checkpoint::TensorSpec& tensor : shard.tensors()) {
      if (!known.contains(tensor.name) && !models::is_hf_buffer(tensor.name))
        unknown.push_back(tensor.name);
    }
  }
  if (unknown.empty()) return;
  const size_t more = unknown.size() - std::min(unknown.size(), kShown);
  unknown.resize(unknown.size() - more);
  diagnostics.add("{}: has {}{} that the model does not have", path, join(unknown, ", "),
                  more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void require_run_folder(FileSystem& fs, const std::string& run_dir) {
  if (!fs.is_directory(run_dir))
    throw RunError(fmt::format("{}: is gone; was the run folder moved or removed?", run_dir));
}

void save_run(FileSystem& fs, const std::string& run_dir, const Job& job,
              const compile::CompiledPlan& plan, const ParameterIo& io, const RunState& state) {
  require_run_folder(fs, run_dir);
  const std::vector<models::TensorMapping> mappings = models::hf_mapping(job.model, plan.module);
  checkpoint::SaveOptions options;
  options.keep = job.keep;
  checkpoint::CheckpointWriter writer(fs, join_path(run_dir, kCheckpoints), state.step,
                                      groups_of(mappings), options);
  for (const models::TensorMapping& m : mappings)
    append_hf(m, io, Part::kWeight, m.hf_name, writer);
  for (const models::TensorMapping& m : mappings) {
    for (const Part part : {Part::kMoment, Part::kVariance}) {
      append_hf(m, io, part, moment_name(m.hf_name, part), writer);
    }
  }
  writer.add_file("config.json", job.model_json);
  Json json{JsonObject{}};
  json["step"] = state.step;
  json["samples"] = state.samples;
  json["data"] = state.data;
  json["seed"] = job.seed;
  json["plan"] = compile::to_json(job.plan);
  writer.finish(json);
}

RunState load_run(FileSystem& fs, const std::string& run_dir, const Job& job,
                  const compile::CompiledPlan& plan, ParameterIo& io) {
  const checkpoint::CheckpointReader reader =
      checkpoint::CheckpointReader::latest(fs, join_path(run_dir, kCheckpoints));
  const std::vector<models::TensorMapping> mappings = models::hf_mapping(job.model, plan.module);
  std::vector<checkpoint::TensorSpec> wanted;
  for (const checkpoint::TensorGroup& group : groups_of(mappings)) {
    wanted.insert(wanted.end(), group.tensors.begin(), group.tensors.end());
  }
  reader.require(wanted);
  reader.verify();
  Diagnostics diagnostics;
  JsonReader state(reader.run_state(), reader.path(), &diagnostics);
  RunState result{state.integer("step"), state.integer("samples"), state.string_or("data", "")};
  const int64_t seed = state.integer_or("seed", job.seed);
  state.ignore_all();
  if (seed != job.seed) {
    diagnostics.add("{}: is of a run with seed {}, but {} has seed {}", reader.path(), seed,
                    run_dir, job.seed);
  }
  const std::optional<std::string_view> config = reader.text("config.json");
  if (config && parse_json(*config, reader.path()) != parse_json(job.model_json, job.model_file)) {
    diagnostics.add("{}: is of another model than {}: their config.json differ", reader.path(),
                    run_dir);
  }
  diagnostics.throw_if_any();
  for (const models::TensorMapping& m : mappings) {
    write_hf(m, io, Part::kWeight, reader.bytes(m.hf_name));
    for (const Part part : {Part::kMoment, Part::kVariance}) {
      write_hf(m, io, part, reader.bytes(moment_name(m.hf_name, part)));
    }
  }
  return result;
}

void load_weights(FileSystem& fs, const std::string& path, const Job& job,
                  const compile::CompiledPlan& plan, ParameterIo& io) {
  Diagnostics diagnostics;
  const checkpoint::TensorFiles file = checkpoint::TensorFiles::open_path(fs, path, diagnostics);
  diagnostics.throw_if_any();
  std::vector<std::pair<models::TensorMapping, std::string>> found;
  std::set<std::string> known;
  for (const models::TensorMapping& m : models::hf_mapping(job.model, plan.module)) {
    std::vector<std::string> names{m.hf_name};
    names.insert(names.end(), m.aliases.begin(), m.aliases.end());
    known.insert(names.begin(), names.end());
    const auto name = std::find_if(names.begin(), names.end(),
                                   [&](const std::string& n) { return file.find(n) != nullptr; });
    if (name == names.end()) {
      diagnostics.add("{}: has no tensor {}", path, m.hf_name);
      continue;
    }
    const checkpoint::TensorSpec& tensor = *file.find(*name);
    if (tensor.shape != m.hf_shape || tensor.dtype != DType::kF32) {
      diagnostics.add("{}: {} is {} {}, must be f32 {}", path, *name, dtype_name(tensor.dtype),
                      checkpoint::shape_text(tensor.shape), checkpoint::shape_text(m.hf_shape));
      continue;
    }
    found.emplace_back(m, *name);
    for (const std::string& other : names) {
      const bool same =
          file.find(other) == nullptr || std::ranges::equal(file.bytes(other), file.bytes(*name));
      if (!same)
        diagnostics.add("{}: {} is another tensor than {}, but one weight of the model", path,
                        other, *name);
    }
  }
  add_unknown(file, known, path, diagnostics);
  diagnostics.throw_if_any();
  for (const auto& [mapping, name] : found) write_hf(mapping, io, Part::kWeight, file.bytes(name));
}

}  // namespace mw::train

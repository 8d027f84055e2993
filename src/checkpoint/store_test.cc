#include "checkpoint/store.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/rng.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "checkpoint/index.h"
#include "checkpoint/layout.h"

using namespace mw;
using namespace mw::checkpoint;
using Loss = FakeFileSystem::Loss;
using Steps = std::vector<int64_t>;

namespace {

const std::vector<TensorGroup> kGroups = {
    {"model",
     {{"wte.weight", DType::kF32, {6, 4}},
      {"h.0.attn.bias", DType::kBool, {5}},
      {"none", DType::kF32, {0}},
      {"ln_f.weight", DType::kF32, {4}}}},
    {"optimizer", {{"exp_avg.wte.weight", DType::kF32, {6, 4}}, {"step", DType::kI64, {}}}}};

// The content of a tensor at a step.
void fill(int64_t step, const TensorSpec& tensor, std::span<std::byte> out) {
  const RngKey key{0, static_cast<uint64_t>(step), rng_site(tensor.name)};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(random_u32(key, i));
}

Json state(int64_t step) { return JsonObject{{"next_sample", step * 32}, {"seed", 7}}; }

void save(FileSystem& fs, int64_t step, int64_t keep = 0) {
  // Two shards for the model, two for the optimizer.
  save_checkpoint(
      fs, "run", step, kGroups, state(step),
      [&](const TensorSpec& tensor, std::span<std::byte> out) { fill(step, tensor, out); },
      {Bytes(100), keep});
}

void check_content(const CheckpointReader& reader) {
  CHECK(reader.run_state() == state(reader.step()));
  for (const TensorGroup& group : kGroups) {
    reader.require(group.tensors);
    for (const TensorSpec& tensor : group.tensors) {
      std::vector<std::byte> expected(tensor.bytes().value);
      fill(reader.step(), tensor, expected);
      const auto bytes = reader.bytes(tensor.name);
      REQUIRE(bytes.size() == expected.size());
      CHECK(std::equal(bytes.begin(), bytes.end(), expected.begin()));
    }
  }
  reader.verify();
}

// Where a writer puts step 2 in the place of step 1 between somebody's look and his reading.
class BesideWriter : public FakeFileSystem {
 public:
  void begin() { looks_ = 0; }
  int looks() const { return looks_; }
  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names = FakeFileSystem::list(path);
    if (path == "run" && looks_ >= 0 && looks_++ == 0) {
      std::erase(names, "step-000002");
      remove_all("run/step-000001");
    }
    return names;
  }

 private:
  int looks_ = -1;
};

std::string open_failure(FileSystem& fs) {
  return mw::test::thrown_by([&] { CheckpointReader::latest(fs, "run"); });
}

// The file's text without the bytes [at, at + count).
void cut(FileSystem& fs, const std::string& path, size_t at, size_t count) {
  std::string text = fs.read_file(path);
  text.erase(at, count);
  fs.write_file(path, text);
}

}  // namespace

TEST_CASE("a reader beside a writer that keeps one checkpoint takes the one that took its place") {
  BesideWriter fs;
  save(fs, 1);
  save(fs, 2);
  fs.begin();
  const CheckpointReader reader = CheckpointReader::latest(fs, "run");
  CHECK(fs.looks() > 1);
  CHECK(reader.step() == 2);
  check_content(reader);
}

TEST_CASE("a checkpoint reads back") {
  FakeFileSystem fs;
  save(fs, 20);
  CHECK(fs.list("run") == std::vector<std::string>{"step-000020"});
  CHECK(fs.list("run/step-000020") ==
        std::vector<std::string>{"meshwright.json", "model-00001-of-00002.safetensors",
                                 "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                                 "optimizer-00001-of-00002.safetensors",
                                 "optimizer-00002-of-00002.safetensors",
                                 "optimizer.safetensors.index.json"});
  const CheckpointReader reader = CheckpointReader::latest(fs, "run");
  CHECK(reader.step() == 20);
  CHECK(reader.groups() == std::vector<std::string>{"model", "optimizer"});
  CHECK(reader.tensors("model").size() == 4);
  CHECK(reader.find("exp_avg.wte.weight")->shape == std::vector<int64_t>{6, 4});
  CHECK(reader.find("exp_avg") == nullptr);
  check_content(reader);
}

TEST_CASE("the index is Hugging Face's") {
  FakeFileSystem fs;
  save(fs, 20);
  CHECK(fs.read_file("run/step-000020/model.safetensors.index.json") ==
        "{\n"
        "  \"metadata\": {\"total_size\": 117},\n"
        "  \"weight_map\": {\n"
        "    \"wte.weight\": \"model-00001-of-00002.safetensors\",\n"
        "    \"h.0.attn.bias\": \"model-00002-of-00002.safetensors\",\n"
        "    \"none\": \"model-00002-of-00002.safetensors\",\n"
        "    \"ln_f.weight\": \"model-00002-of-00002.safetensors\"\n"
        "  }\n"
        "}\n");
}

TEST_CASE("tensors may come in pieces, and the bytes are the same") {
  FakeFileSystem whole, pieces;
  save(whole, 3);
  {
    CheckpointWriter writer(pieces, "run", 3, kGroups, {Bytes(100), 0});
    for (const TensorGroup& group : kGroups) {
      for (const TensorSpec& tensor : group.tensors) {
        std::vector<std::byte> bytes(tensor.bytes().value);
        fill(3, tensor, bytes);
        for (size_t at = 0; at < bytes.size(); at += 7) {
          writer.append(tensor.name,
                        std::span(bytes).subspan(at, std::min<size_t>(7, bytes.size() - at)));
        }
      }
    }
    CHECK(writer.finish(state(3)) == "run/step-000003");
  }
  for (const std::string& name : whole.list("run/step-000003")) {
    CHECK(whole.read_file("run/step-000003/" + name) ==
          pieces.read_file("run/step-000003/" + name));
  }
}

TEST_CASE("a wrong order of tensors is our bug and leaves nothing behind") {
  FakeFileSystem fs;
  {
    CheckpointWriter writer(fs, "run", 1, kGroups);
    const std::vector<std::byte> bytes(20);
    CHECK_THROWS_AS(writer.append("ln_f.weight", bytes), CheckFailure);
    CHECK_THROWS_AS(writer.finish(Json()), CheckFailure);
  }
  CHECK(fs.list("run").empty());
}

TEST_CASE("an added file is checked like the others") {
  FakeFileSystem fs;
  {
    CheckpointWriter writer(fs, "run", 1, {});
    writer.add_file("config.json", "{}");
    CHECK_THROWS_AS(writer.add_file("config.json", ""), CheckFailure);
    writer.finish(Json());
  }
  CheckpointReader::latest(fs, "run").verify();
  fs.flip_bit("run/step-000001/config.json", 0);
  CHECK(starts_with(mw::test::thrown_by([&] { CheckpointReader::latest(fs, "run").verify(); }),
                    "run/step-000001/config.json: checksum is "));
}

TEST_CASE("the last k checkpoints are kept, and always the new one") {
  FakeFileSystem fs;
  for (const int64_t step : {10, 20, 30}) save(fs, step);
  save(fs, 40, 2);
  CHECK(list_steps(fs, "run") == Steps{30, 40});
  save(fs, 35, 1);  // a run that was set back
  CHECK(list_steps(fs, "run") == Steps{35});
  check_content(CheckpointReader::latest(fs, "run"));
}

TEST_CASE("foreign names in the folder are left alone") {
  FakeFileSystem fs;
  fs.make_directories("run/step-20.tmp");
  fs.make_directories("run/step-000020.backup");
  fs.make_directories("run/logs");
  fs.make_directories("run/step-000010.tmp");
  save(fs, 20, 1);
  CHECK(fs.list("run") ==
        std::vector<std::string>{"logs", "step-000020", "step-000020.backup", "step-20.tmp"});
  CHECK(list_steps(fs, "run") == Steps{20});
}

TEST_CASE("what is not there is said in plain words") {
  FakeFileSystem fs;
  CHECK(open_failure(fs) == "run: has no checkpoint (a folder such as step-000020)");
  save(fs, 20);
  save(fs, 30);
  CHECK(mw::test::thrown_by([&] { CheckpointReader::at_step(fs, "run", 25); }) ==
        "run: has no checkpoint of step 25; it has those of the steps 20, 30");
  CHECK(mw::test::thrown_by([&] { CheckpointReader::open(fs, "run"); }) ==
        "run: is no checkpoint, for it has no meshwright.json; its checkpoints are folders such as "
        "run/step-000030");
  CHECK(mw::test::thrown_by([&] { CheckpointReader::open(fs, "run/step-000021/"); }) ==
        "run/step-000021/meshwright.json: does not exist: there is no folder 'run/step-000021'");
}

TEST_CASE("missing shards, missing tensors and wrong sizes are reported together") {
  FakeFileSystem fs;
  save(fs, 10);
  save(fs, 20);
  const std::string at = "run/step-000020/";
  fs.remove(at + "model-00001-of-00002.safetensors");
  cut(fs, at + "model-00002-of-00002.safetensors", 250, 1);
  fs.remove(at + "optimizer.safetensors.index.json");
  CHECK(
      open_failure(fs) ==
      "run/step-000020/model-00001-of-00002.safetensors: is missing; must have 208 bytes\n"
      "run/step-000020/model-00002-of-00002.safetensors: has 252 bytes, must have 253 (truncated)\n"
      "run/step-000020/optimizer.safetensors.index.json: is missing; must have 178 bytes\n"
      "run: the checkpoint before it, the newest without run/step-000020, is run/step-000010");
  check_content(CheckpointReader::at_step(fs, "run", 10));
}

TEST_CASE("an index and shards that disagree are reported") {
  FakeFileSystem fs;
  const std::vector<TensorSpec> a = {{"a", DType::kU8, {2}}, {"x", DType::kU8, {1}}};
  fs.make_directory("m");
  SafetensorsWriter writer(fs, "m/model-00001-of-00002.safetensors", a, {});
  writer.append(std::vector<std::byte>(3));
  writer.finish();
  fs.write_file(
      "m/model.safetensors.index.json",
      R"({"metadata": {"total_size": 9}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                    "b": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})");
  Diagnostics out;
  TensorFiles::open(fs, "m", "model", out);
  CHECK(mw::test::thrown_by([&] { out.throw_if_any(); }) ==
        "m/model-00001-of-00002.safetensors: tensor 'b' is missing, which "
        "m/model.safetensors.index.json "
        "places there\n"
        "m/model-00001-of-00002.safetensors: tensor 'x' is not in m/model.safetensors.index.json\n"
        "m/model-00002-of-00002.safetensors: is missing; m/model.safetensors.index.json places "
        "tensors there, "
        "'c' the first of 1");
}

TEST_CASE("an index that leads out of its folder is refused") {
  FakeFileSystem fs;
  fs.make_directory("m");
  fs.write_file("m/model.safetensors.index.json",
                R"({"weight_map": {"a": "../secret.safetensors"}})");
  Diagnostics out;
  TensorFiles::open(fs, "m", "model", out);
  CHECK(mw::test::thrown_by([&] { out.throw_if_any(); }) ==
        "m/model.safetensors.index.json: weight_map.a: must be a file of the same folder, is "
        "\"../secret.safetensors\"");
}

TEST_CASE("a single file without an index is opened too") {
  FakeFileSystem fs;
  const std::vector<TensorSpec> a = {{"a", DType::kU8, {2}}};
  fs.make_directory("m");
  SafetensorsWriter writer(fs, "m/model.safetensors", a, {});
  writer.append(std::vector<std::byte>(2));
  writer.finish();
  Diagnostics out;
  const TensorFiles files = TensorFiles::open(fs, "m", "model", out);
  out.throw_if_any();
  CHECK(files.find("a"));
  CHECK(files.bytes("a").size() == 2);
}

TEST_CASE("tensors that the model needs and the checkpoint has not are reported together") {
  FakeFileSystem fs;
  save(fs, 20);
  const CheckpointReader reader = CheckpointReader::latest(fs, "run");
  const std::vector<TensorSpec> wanted = {{"wte.weights", DType::kF32, {6, 4}},
                                          {"ln_f.weight", DType::kBF16, {4}},
                                          {"wte.weight", DType::kF32, {4, 6}}};
  CHECK(mw::test::thrown_by([&] { reader.require(wanted); }) ==
        "run/step-000020: tensor 'wte.weights' is missing, did you mean 'wte.weight'?\n"
        "run/step-000020: tensor 'ln_f.weight' is f32 [4], must be bf16 [4]\n"
        "run/step-000020: tensor 'wte.weight' is f32 [6, 4], must be f32 [4, 6]");
}

TEST_CASE("any flipped bit is found, and in a tensor's bytes the tensor is named") {
  FakeFileSystem fs;
  save(fs, 20);
  std::set<std::string> named;
  for (const std::string& name : fs.list("run/step-000020")) {
    const std::string path = "run/step-000020/" + name;
    for (int64_t bit = 0; bit < fs.file_size(path).value * 8; bit += 3) {
      fs.flip_bit(path, bit);
      const std::string message =
          mw::test::thrown_by([&] { CheckpointReader::latest(fs, "run").verify(); });
      // A bit of white space in a manifest may change nothing that is read; no other may pass.
      if (message == "no error") CHECK(name == "meshwright.json");
      if (message != "no error")
        CHECK_MESSAGE(message.find(name) != std::string::npos, name, ": ", message);
      const size_t tensor = message.find("tensor '");
      if (tensor != std::string::npos && message.find("bytes were changed") != std::string::npos) {
        named.insert(message.substr(tensor + 8, message.find('\'', tensor + 8) - tensor - 8));
      }
      fs.flip_bit(path, bit);
    }
  }
  CHECK(named == std::set<std::string>{"wte.weight", "h.0.attn.bias", "ln_f.weight",
                                       "exp_avg.wte.weight", "step"});
  check_content(CheckpointReader::latest(fs, "run"));
}

TEST_CASE("a manifest of another version or edited by hand is refused") {
  FakeFileSystem fs;
  save(fs, 20);
  const std::string path = "run/step-000020/meshwright.json", good = fs.read_file(path);
  fs.write_file(path, replace_all(good, "\"version\": 1", "\"version\": 2"));
  CHECK(open_failure(fs) ==
        "run/step-000020/meshwright.json: version is 2, must be 1; it was written by another "
        "version of "
        "meshwright");
  fs.write_file(path, replace_all(good, "\"next_sample\": 640", "\"next_sample\": 641"));
  CHECK(open_failure(fs).find("; the file was damaged or edited") != std::string::npos);
}

TEST_CASE(
    "after a crash at any operation of a save the last complete checkpoint loads and verifies") {
  int64_t crashes = 0, kept_old = 0, kept_new = 0;
  // The same step again is the case where a checkpoint is replaced.
  for (const int64_t next : {30, 20}) {
    for (int64_t crash = 0;; ++crash) {
      bool finished = true;
      for (uint64_t seed = 0; seed < 12; ++seed) {
        FakeFileSystem fs;
        save(fs, 10);
        save(fs, 20);
        fs.crash_at(fs.operations() + crash);
        try {
          save(fs, next, 1);
        } catch (const SimulatedCrash&) {
          finished = false;
        }
        fs.restart(seed == 0 ? Loss::kAll : seed == 1 ? Loss::kNone : Loss::kRandom, seed);
        const CheckpointReader reader = CheckpointReader::latest(fs, "run");
        CHECK((reader.step() == 20 || reader.step() == next));
        check_content(reader);
        (reader.step() == 20 ? kept_old : kept_new) += next == 30;
        // Every step that is listed is complete, and the next save works and clears up.
        for (const int64_t step : list_steps(fs, "run")) {
          check_content(CheckpointReader::at_step(fs, "run", step));
        }
        save(fs, 40, 1);
        CHECK(fs.list("run") == std::vector<std::string>{"step-000040"});
        check_content(CheckpointReader::latest(fs, "run"));
      }
      crashes += !finished;
      if (finished) break;
    }
  }
  CHECK(crashes > 80);
  CHECK(kept_old > 100);
  CHECK(kept_new > 50);
}

TEST_CASE("the first checkpoint of a run is complete or absent after a crash") {
  for (int64_t crash = 0;; ++crash) {
    FakeFileSystem fs;
    fs.crash_at(crash);
    bool finished = true;
    try {
      save(fs, 10);
    } catch (const SimulatedCrash&) {
      finished = false;
    }
    fs.restart(Loss::kAll);
    if (finished) {
      check_content(CheckpointReader::latest(fs, "run"));
      break;
    }
    CHECK(list_steps(fs, "run").empty());
  }
}

TEST_CASE("a failing operation is a RunError and the older checkpoint stays whole") {
  for (int64_t fail = 0;; ++fail) {
    FakeFileSystem fs;
    save(fs, 10);
    fs.fail_at(fs.operations() + fail);
    try {
      save(fs, 20, 1);
      break;
    } catch (const RunError&) {
    }
    const CheckpointReader reader = CheckpointReader::latest(fs, "run");
    check_content(reader);
    CHECK_FALSE(fs.exists("run/step-000020.tmp"));
    save(fs, 30, 1);
    CHECK(fs.list("run") == std::vector<std::string>{"step-000030"});
  }
}

TEST_CASE("a full disk is a RunError, shows nothing partial and leaves the old checkpoint whole") {
  FakeFileSystem probe;
  save(probe, 10);
  const int64_t one = (int64_t{1} << 60) - probe.free_space(".").value;
  CHECK(one == 0);  // without a capacity nothing is counted
  int64_t size = 0;
  for (const std::string& name : probe.list("run/step-000010")) {
    size += probe.file_size("run/step-000010/" + name).value;
  }
  int64_t early = 0, late = 0;
  for (int64_t capacity = size; capacity < 2 * size; capacity += 13) {
    FakeFileSystem fs;
    save(fs, 10);
    fs.set_capacity(Bytes(capacity));
    try {
      save(fs, 20);
      FAIL("the disk is too small");
    } catch (const RunError& error) {
      const std::string message = error.what();
      early += message.find("run/step-000020: a checkpoint takes ") == 0;
      late += message.find("No space left on device") != std::string::npos;
    }
    CHECK(fs.list("run") == std::vector<std::string>{"step-000010"});
    check_content(CheckpointReader::latest(fs, "run"));
  }
  CHECK(early > 0);
  CHECK(late > 0);
}

TEST_CASE("a shard is filled to its last byte, and a larger tensor has one of its own") {
  struct Case {
    std::vector<int64_t> bytes;
    std::vector<size_t> shards;  // tensors of each
  };
  for (const auto& [bytes, shards] : std::vector<Case>{{{}, {}},
                                                       {{60, 40}, {2}},
                                                       {{60, 41}, {1, 1}},
                                                       {{60, 40, 0, 1}, {3, 1}},
                                                       {{0, 200, 50, 50}, {2, 2}},
                                                       {{50, 200, 50}, {1, 1, 1}},
                                                       {{50, 60, 40, 100, 1}, {1, 2, 1, 1}}}) {
    std::vector<TensorSpec> tensors;
    for (const int64_t b : bytes) tensors.push_back({"t", DType::kU8, {b}});
    std::vector<size_t> is;
    for (const auto& shard : plan_shards(tensors, Bytes(100)).shards) is.push_back(shard.size());
    CHECK(is == shards);
  }
}

TEST_CASE("an index that counts other bytes than its shards hold is reported") {
  FakeFileSystem fs;
  save(fs, 20);
  const std::string path = "run/step-000020/model.safetensors.index.json";
  fs.write_file(path,
                replace_all(fs.read_file(path), "\"total_size\": 117", "\"total_size\": 118"));
  Diagnostics out;
  TensorFiles::open(fs, "run/step-000020", "model", out);
  CHECK(mw::test::thrown_by([&] { out.throw_if_any(); }) ==
        path + ": metadata.total_size is 118, the shards hold 117 bytes");
}

TEST_CASE("a step that is there beside what it replaces is listed once, and is the new one") {
  FakeFileSystem fs;
  save(fs, 10);
  fs.rename("run/step-000010", "run/step-000020.replaced");
  CHECK(list_steps(fs, "run") == Steps{20});
  CHECK(CheckpointReader::at_step(fs, "run", 20).step() == 10);
  save(fs, 30);  // puts back what was replaced
  CHECK(fs.list("run") == std::vector<std::string>{"step-000020", "step-000030"});
  fs.rename("run/step-000030", "run/step-000020.replaced");
  CHECK(list_steps(fs, "run") == Steps{20});
  CHECK(CheckpointReader::at_step(fs, "run", 20).step() == 10);
}

TEST_CASE("a manifest and shards that name other tensors are reported") {
  FakeFileSystem fs;
  save(fs, 20);
  const std::string path = "run/step-000020/meshwright.json";
  JsonObject manifest = unseal_manifest(fs.read_file(path), path).as_object(path);
  JsonObject tensors = manifest["tensors"].as_object(path);
  tensors.append("lm_head.weight", tensors["step"]);
  tensors.erase("step");
  manifest["tensors"] = Json(tensors);
  fs.write_file(path, seal_manifest(Json(manifest)));
  CHECK(open_failure(fs) == path + ": tensor 'lm_head.weight' is in no shard\n" + path +
                                ": tensor 'step' of a shard is not listed");
}

TEST_CASE("a manifest that leaves out a shard is reported, however the folder is named") {
  FakeFileSystem fs;
  save(fs, 20);
  const std::string path = "run/step-000020/meshwright.json";
  JsonObject manifest = unseal_manifest(fs.read_file(path), path).as_object(path);
  JsonObject files = manifest["files"].as_object(path);
  files.erase("optimizer-00002-of-00002.safetensors");
  manifest["files"] = Json(files);
  fs.write_file(path, seal_manifest(Json(manifest)));
  CHECK(mw::test::thrown_by([&] { CheckpointReader::open(fs, "run/step-000020//"); }) ==
        path + ": run/step-000020/optimizer-00002-of-00002.safetensors is not listed");
}

TEST_CASE("a checkpoint that is deleted behind its opening is read and verified as it was") {
  FakeFileSystem fs;
  {
    CheckpointWriter writer(fs, "run", 1, {});
    writer.add_file("config.json", "{}");
    writer.finish(Json());
  }
  const CheckpointReader reader = CheckpointReader::latest(fs, "run");
  fs.remove_all("run/step-000001");
  reader.verify();
  CHECK(reader.text("config.json") == "{}");
  CHECK(reader.text("other.json") == std::nullopt);
}

TEST_CASE("shards that do not fit, with their headers, are refused before they are written") {
  FakeFileSystem probe;
  save(probe, 10);
  int64_t all = 0, shards = 0;
  for (const std::string& name : probe.list("run/step-000010")) {
    const int64_t bytes = probe.file_size("run/step-000010/" + name).value;
    all += bytes;
    if (ends_with(name, ".safetensors")) shards += bytes;
  }
  for (const int64_t missing : {0, 1}) {
    FakeFileSystem fs;
    save(fs, 10);
    fs.set_capacity(Bytes(all + shards - missing));
    try {
      save(fs, 20);
      FAIL("the disk is too small");
    } catch (const RunError& error) {
      CHECK(starts_with(error.what(), "run/step-000020: a checkpoint takes ") == (missing == 1));
    }
  }
}

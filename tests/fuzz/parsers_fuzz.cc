// Mutated documents through every reader of text or files from outside: each is read, or refused
// with Error and a text; what was read and can be printed reads the same again. Seeded; a failure
// prints reader and document, MESHWRIGHT_FUZZ_VERBOSE=1 prints each document before it is read.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/toml.h"
#include "calibrate/fit.h"
#include "calibrate/runs.h"
#include "calibrate/validate.h"
#include "checkpoint/safetensors.h"
#include "cluster/hardware.h"
#include "cluster/mesh.h"
#include "cluster/profile.h"
#include "compile/plan.h"
#include "data/indexed_dataset.h"
#include "ir/graph.h"
#include "models/config.h"
#include "models/model.h"
#include "pipeline/schedule_comms.h"
#include "predict/what_if.h"
#include "sharding/sharding.h"

using namespace mw;

namespace {

constexpr int kCases = 4000;  // of each seed document

struct Reader {
  std::string name;
  std::vector<std::string> seeds;
  // Reads the document; its printed form, "" if it has none.
  std::function<std::string(const std::string&)> read;
};

class Random {
 public:
  explicit Random(std::string_view site) : key_{1, 0, rng_site(site)} {}
  size_t below(size_t n) { return n == 0 ? 0 : random_u32(key_, next_++) % n; }

 private:
  RngKey key_;
  uint64_t next_ = 0;
};

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> list = {"0",
                                                "-1",
                                                "1",
                                                "9223372036854775807",
                                                "-9223372036854775808",
                                                "18446744073709551616",
                                                "1e308",
                                                "1e-320",
                                                "nan",
                                                "inf",
                                                "\"",
                                                "'",
                                                "[",
                                                "]",
                                                "{",
                                                "}",
                                                "(",
                                                ")",
                                                ",",
                                                ":",
                                                "=",
                                                ";",
                                                "#",
                                                "\n",
                                                "\r\n",
                                                "\t",
                                                std::string(1, '\0'),
                                                "\\",
                                                "\\u0000",
                                                "\xff\xfe",
                                                "\xe2\x82",
                                                "true",
                                                "null",
                                                "<=",
                                                "%",
                                                "%4294967296",
                                                "\"dp\"",
                                                "dp",
                                                "tp=0",
                                                "chunks=99999999999",
                                                std::string(300, '['),
                                                std::string(70, '9'),
                                                "partial<max>{",
                                                "...",
                                                "=="};
  return list;
}

std::string mutated(std::string text, const std::vector<std::string>& seeds, Random& random) {
  for (size_t n = 1 + random.below(4); n > 0; --n) {
    const size_t at = random.below(text.size() + 1), length = 1 + random.below(12);
    switch (random.below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, text.substr(random.below(text.size() + 1), length)); break;
      case 4: text.insert(at, tokens()[random.below(tokens().size())]); break;
      case 5: {  // a number in place of a number
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = text.find_first_not_of("0123456789.", digit);
        text.replace(digit, (end == std::string::npos ? text.size() : end) - digit,
                     tokens()[random.below(8)]);
        break;
      }
      default: {
        const std::string& other = seeds[random.below(seeds.size())];
        text.resize(at);
        text += other.substr(random.below(other.size() + 1));
      }
    }
  }
  return text;
}

std::string quoted(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte >= 32 && byte < 127 ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return shown;
}

void fuzz(const Reader& reader) {
  const bool verbose = std::getenv("MESHWRIGHT_FUZZ_VERBOSE") != nullptr;
  Random random(reader.name);
  int read = 0, refused = 0;
  const auto take = [&](const std::string& text) {
    if (verbose) std::fprintf(stderr, "%s: %s\n", reader.name.c_str(), quoted(text).c_str());
    try {
      const std::string printed = reader.read(text);
      ++read;
      if (!printed.empty())
        CHECK_MESSAGE(reader.read(printed) == printed, reader.name, ": ", quoted(text));
    } catch (const Error& error) {
      ++refused;
      CHECK_MESSAGE(!std::string(error.what()).empty(), reader.name, ": ", quoted(text));
    } catch (const std::exception& error) {
      FAIL_CHECK(reader.name, ": ", std::string(error.what()), ": ", quoted(text));
    }
  };
  for (const std::string& seed : reader.seeds) take(seed);
  CHECK_MESSAGE(read == static_cast<int>(reader.seeds.size()), reader.name, ": a seed is refused");
  for (const std::string& seed : reader.seeds) {
    for (int i = 0; i < kCases; ++i) take(mutated(seed, reader.seeds, random));
  }
  CHECK_MESSAGE(refused > 0, reader.name, " takes anything");
}

std::string file(const std::string& path) {
  return posix_fs().read_file(std::string(MW_SOURCE_DIR) + "/" + path);
}
// The first lines.
std::string head(const std::string& text, size_t lines) {
  size_t end = 0;
  for (; lines > 0 && end != std::string::npos; --lines) end = text.find('\n', end + 1);
  return text.substr(0, end);
}

}  // namespace

TEST_CASE("JSON, TOML and model configs") {
  const std::string gpt = file("models/gpt-tiny.json"), llama = file("models/llama-tiny.json");
  fuzz(
      {"json", {gpt, llama}, [](const std::string& text) { return parse_json(text, "f").dump(); }});
  fuzz({"toml",
        {file("examples/gpt-tiny.toml"), file("clusters/selene.toml")},
        [](const std::string& text) { return parse_toml(text, "f").root.dump(), std::string(); }});
  fuzz({"model config", {gpt, llama}, [](const std::string& text) {
          models::parse_config(text, "f");
          return std::string();
        }});
}

TEST_CASE("clusters, profiles, meshes, shardings") {
  fuzz({"cluster",
        {file("clusters/selene.toml"), file("clusters/tpu-v4.toml")},
        [](const std::string& text) {
          return cluster::parse_cluster(text, "f").name, std::string();
        }});
  fuzz(
      {"profile", {file("clusters/profiles/a100-80gb-megatron.toml")}, [](const std::string& text) {
         return cluster::parse_profile(text, "f").name, std::string();
       }});
  fuzz({"mesh", {"{pp:2, dp:4, tp:2}", "{dp:8}"}, [](const std::string& text) {
          return cluster::to_string(cluster::parse_mesh(text));
        }});
  fuzz({"sharding",
        {"[{\"dp\"}, {}, {\"tp\", \"cp\"}] partial{\"ep\"}", "[{}] partial<max>{\"tp\"}"},
        [](const std::string& text) {
          return sharding::to_string(sharding::parse_sharding(text));
        }});
}

TEST_CASE("plans and what-if variations") {
  const std::string shorts =
      "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=8,sp,zero=1,recompute="
      "selective";
  fuzz({"plan",
        {shorts, "pp=4,schedule=chimera,pairs=2,microbatches=8", "dp=4,cp=2,ep=2,zero=3"},
        [](const std::string& text) { return compile::short_form(compile::parse_plan(text)); }});
  fuzz(
      {"plan as JSON",
       {compile::to_json(compile::parse_plan(shorts)).dump()},
       [](const std::string& text) { return compile::to_json(compile::parse_plan(text)).dump(); }});
  fuzz({"variation", {"link_bandwidth=0.5,1,2", "microbatches=4,8"}, [](const std::string& text) {
          return predict::parse_variation(text), std::string();
        }});
}

TEST_CASE("schedules") {
  std::vector<std::string> seeds;
  for (const char* kind : {"1f1b", "interleaved-1f1b", "zb-h1", "chimera"}) {
    pipeline::ScheduleRequest request{kind, 4, 1, 4};
    if (std::string(kind) == "interleaved-1f1b") request.chunks = 2;
    seeds.push_back(pipeline::to_csv(pipeline::make_schedule(request)));
  }
  fuzz({"schedule", seeds, [](const std::string& text) {
          return pipeline::to_csv(pipeline::parse_schedule(text, "f.csv").schedule);
        }});
}

TEST_CASE("graphs") {
  models::ModelConfig config = models::parse_config(file("models/gpt-tiny.json"), "f");
  config.layers = 1;
  const std::string text = ir::to_text(models::build_model(config, {2, 16}));
  fuzz({"module", {text}, [](const std::string& t) { return ir::to_text(ir::parse_module(t)); }});
}

TEST_CASE("published runs") {
  const auto families = [](const std::string& text) {
    FakeFileSystem fs;
    fs.make_directory("models");
    for (const char* model : {"qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"}) {
      const std::string path = fmt::format("models/{}.json", model);
      fs.write_file(path, file(path));
    }
    fs.write_file("f", text);
    return calibrate::read_families(fs, "f", {"models"});
  };
  const calibrate::RunFacts facts{{}, families(file("data/published/families.toml"))};
  fuzz({"families", {file("data/published/families.toml")}, [&](const std::string& text) {
          return families(text), std::string();
        }});
  fuzz({"runs", {head(file("data/published/runs.csv"), 6)}, [](const std::string& text) {
          return calibrate::parse_runs(text, "f"), std::string();
        }});
  fuzz({"rows", {head(file("data/published/runs.csv"), 6)}, [&](const std::string& text) {
          const auto compared = calibrate::validate(calibrate::parse_rows(text, "f", facts), {}, 1);
          return calibrate::to_json(compared), calibrate::to_text(compared), std::string();
        }});
  fuzz({"amendments", {file("data/published/amendments.csv")}, [](const std::string& text) {
          return calibrate::parse_amendments(text, "f"), std::string();
        }});
  fuzz({"collectives",
        {head(file("data/published/collectives.csv"), 8)},
        [](const std::string& text) {
          return calibrate::parse_kernels(text, "f", "A100-SXM-80GB"), std::string();
        }});
  fuzz({"kernels", {head(file("data/measured/h100_kernels.csv"), 8)}, [](const std::string& text) {
          return calibrate::parse_kernels(text, "f", "H100-SXM-80GB"), std::string();
        }});
}

TEST_CASE("tensor files and token files") {
  FakeFileSystem fs;
  const std::string header = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  std::string tensors(8, '\0');
  tensors[0] = static_cast<char>(header.size());
  tensors += header + std::string(24, 'x');
  fuzz({"safetensors", {tensors}, [&](const std::string& text) {
          fs.write_file("t.safetensors", text);
          const auto opened = checkpoint::SafetensorsFile::open(fs, "t.safetensors");
          for (const auto& tensor : opened.tensors()) opened.bytes(tensor.name);
          return std::string();
        }});
  data::IndexedWriter writer(fs, "c", data::TokenType::kU16);
  const std::vector<int32_t> sequence = {1, 2, 3, 65535};
  for (int i = 0; i < 3; ++i) {
    writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.finish();
  fuzz({"token index", {fs.read_file("c.idx")}, [&](const std::string& text) {
          fs.write_file("c.idx", text);
          const auto source = data::open_indexed(fs, "c");
          int64_t tokens = 0;
          for (int64_t i = 0; i < source->num_documents(); ++i) tokens += source->document_end(i);
          CHECK(tokens >= 0);
          return std::string();
        }});
}

#include "calibrate/families.h"

#include <doctest/doctest.h>

#include "base/fake_fs.h"
#include "base/test_thrown_by.h"
#include "calibrate/test_runs.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

const std::string kFile = "families.toml";

// Two folders of models, a Llama and a GPT.
std::vector<ModelFamily> families(const std::string& toml) {
  const std::string root = MW_SOURCE_DIR;
  FakeFileSystem fs;
  fs.make_directory("own");
  fs.make_directory("models");
  for (const char* name : {"qwen3-30b-a3b", "gpt-tiny"}) {
    const std::string file = std::string("models/") + name + ".json";
    fs.write_file(file, posix_fs().read_file(root + "/" + file));
  }
  fs.write_file("own/odd.json", "{}");
  fs.write_file(kFile, toml);
  return read_families(fs, kFile, {"none", "own", "models"});
}

std::string finding(const std::string& toml) {
  return mw::test::thrown_by([&] { families(toml); });
}

}  // namespace

TEST_CASE("families are read with what a public model of theirs has") {
  const std::vector<ModelFamily> made = families(
      "[[family]]\nname = \"Qwen3\"\nblocks = \"llama\"\nmodel = \"qwen3-30b-a3b\"\n"
      "[[family]]\nname = \"Yi\"\nblocks = \"llama\"\nword = true\nattention_bias = true\n"
      "[[family]]\nname = \"GPT\"\nblocks = \"gpt\"\n");
  REQUIRE(made.size() == 3);
  CHECK(made[0].name == "Qwen3");
  CHECK(!made[0].is_word);
  CHECK(made[0].model.family == models::Family::kLlama);
  CHECK(made[0].model.head_dim == 128);
  CHECK(made[0].model.normed_heads);
  CHECK(!made[0].has_latent_attention());
  CHECK(made[1].is_word);
  CHECK(made[1].model.attention_bias);
  CHECK(made[1].model.head_dim == 0);
  CHECK(made[2].model.family == models::Family::kGpt2);
}

TEST_CASE("what is wrong with a file of families is told with its line") {
  CHECK(finding("# none\n") == "families.toml: family: is missing; must be an array of objects");
  CHECK(finding("[[family]]\nname = \"A\"\nblocks = \"llama\"\nblock = 1\n") ==
        "families.toml:4: family[0].block: unknown key, did you mean 'blocks'?");
  CHECK(finding("[[family]]\nname = \"\"\nblocks = \"llama\"\n") ==
        "families.toml:2: family[0].name: is empty, which every model's name holds");
  CHECK(
      finding("[[family]]\nname = \"A\"\nblocks = \"lama\"\n") ==
      "families.toml:3: family[0].blocks: must be \"llama\" or \"gpt\", is \"lama\", did you mean "
      "'llama'?");
  CHECK(finding("[[family]]\nname = \"A\"\nblocks = \"llama\"\nmodel = \"qwen3-30b-a3c\"\n") ==
        "families.toml:4: family[0].model: there is no model 'qwen3-30b-a3c', did you mean "
        "'qwen3-30b-a3b'?");
  CHECK(finding("[[family]]\nname = \"A\"\nblocks = \"llama\"\nmodel = \"gpt-tiny\"\n") ==
        "families.toml:4: family[0].model: must have llama blocks, as its family; "
        "models/gpt-tiny.json has a gpt's");
  CHECK(finding("[[family]]\nname = \"A\"\nblocks = \"gpt\"\nmodel = \"gpt-tiny\"\n") ==
        "families.toml:4: family[0].model: is of llama blocks alone; leave it out");
  CHECK(finding("[[family]]\nname = \"A\"\nblocks = \"llama\"\nmodel = \"odd\"\n")
            .starts_with("own/odd.json: model_type: "));
  CHECK(finding("[[family]]\nname = \"Qwen\"\nblocks = \"llama\"\n"
                "[[family]]\nname = \"Qwen3\"\nblocks = \"llama\"\n") ==
        "families.toml:5: family[1].name: 'Qwen3' is never found behind 'Qwen', which it holds; "
        "put it before");
  FakeFileSystem fs;
  CHECK_THROWS_WITH_AS(read_families(fs, kFile, {}), "families.toml: does not exist", Error);
}

TEST_CASE("a name holds a family's in whatever case, a word's only between no letters") {
  const std::vector<ModelFamily>& all = published_families();
  const auto name = [&](const char* model, bool latent = false) -> std::string {
    const ModelFamily* family = family_of(model, latent, all);
    return family != nullptr ? family->name : "none";
  };
  CHECK(name("Qwen/QWEN3-8B") == "Qwen3");
  CHECK(name("DeepSeek-R1-Distill-Qwen-7B") == "Qwen");
  CHECK(name("01-ai/yi1.5-9b") == "Yi");
  CHECK(name("Tianyi-8B") == "none");
  CHECK(name("opt13b") == "OPT");
  CHECK(name("adopted") == "none");
  CHECK(name("") == "none");
  CHECK(name("gpt-oss", true) == "DeepSeek-V3");
  CHECK(family_of("GPT", true, {}) == nullptr);
}

#include "checkpoint/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/rng.h"
#include "base/test_thrown_by.h"

using namespace mw;
using namespace mw::checkpoint;

namespace {

// A file of a raw header and data.
std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string failure(const std::string& bytes) {
  FakeFileSystem fs;
  fs.write_file("m", bytes);
  return mw::test::thrown_by([&] { SafetensorsFile::open(fs, "m"); });
}

std::string text_of(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

const std::vector<TensorSpec> kTensors = {{"wte.weight", DType::kF32, {2, 3}},
                                          {"mask", DType::kBool, {3}},
                                          {"empty", DType::kI64, {0, 4}},
                                          {"scalar", DType::kBF16, {}}};
const std::string kData = std::string("0123456789abcdef01234567") + "TFT" + "ss";

void write_sample(FileSystem& fs) {
  SafetensorsWriter writer(fs, "m", kTensors, {{"format", "pt"}});
  writer.append(bytes_of(kData.substr(0, 10)));
  writer.append(bytes_of(kData.substr(10)));
  writer.finish();
  CHECK(writer.size() == fs.file_size("m"));
  CHECK(writer.hash() == xxh3_128(fs.read_file("m")));
}

}  // namespace

TEST_CASE("a written file reads back") {
  FakeFileSystem fs;
  write_sample(fs);
  const SafetensorsFile file = SafetensorsFile::open(fs, "m");
  CHECK(file.tensors().size() == 4);
  CHECK(file.metadata() == Metadata{{"format", "pt"}});
  for (const TensorSpec& tensor : kTensors) {
    REQUIRE(file.find(tensor.name));
    CHECK(*file.find(tensor.name) == tensor);
  }
  CHECK(text_of(file.bytes("wte.weight")) == kData.substr(0, 24));
  CHECK(text_of(file.bytes("mask")) == "TFT");
  CHECK(file.bytes("empty").empty());
  CHECK(text_of(file.bytes("scalar")) == "ss");
  CHECK(file.find("wpe.weight") == nullptr);
  CHECK(file.header_bytes().size() % 8 == 0);
  CHECK_THROWS_AS(file.bytes("wpe.weight"), CheckFailure);
}

TEST_CASE("the bytes are those of the format") {
  FakeFileSystem fs;
  const std::vector<TensorSpec> tensors = {{"a", DType::kU8, {2}}};
  SafetensorsWriter writer(fs, "m", tensors, {});
  writer.append(bytes_of("xy"));
  writer.finish();
  CHECK(fs.read_file("m") ==
        file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   )", "xy"));
}

TEST_CASE("tensors may stand in the header in any order") {
  FakeFileSystem fs;
  fs.write_file("m", file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                             R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("none":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                             "aab"));
  const SafetensorsFile file = SafetensorsFile::open(fs, "m");
  CHECK(file.tensors()[1].name == "a");
  CHECK(text_of(file.bytes("b")) == "b");
}

TEST_CASE("too many or too few bytes are our bug") {
  FakeFileSystem fs;
  const std::vector<TensorSpec> tensors = {{"a", DType::kU8, {2}}};
  SafetensorsWriter writer(fs, "m", tensors, {});
  CHECK_THROWS_AS(writer.append(bytes_of("xyz")), CheckFailure);
  CHECK_THROWS_AS(writer.finish(), CheckFailure);
  CHECK_THROWS_AS((TensorSpec{"a", DType::kU8, {-1}}.bytes()), CheckFailure);
}

TEST_CASE("everything wrong with a header is reported") {
  CHECK(failure("abc") == "m: has 3 bytes, must have at least 8 (no safetensors file)");
  CHECK(
      failure("PK\3\4aaaabbbb") ==
      "m: offset 0: header length is 7016996763726990160, must be at most 4, the rest of the file "
      "(truncated, or no safetensors file)");
  CHECK(failure(file_of("{\"a\":}", "")) == "m header:1:6: must be a JSON value, is \"}\"");
  CHECK(failure(file_of("[]", "")) == "m: must be an object, is an empty array");
  CHECK(
      failure(file_of(R"({"__metadata__":{"format":1},)"
                      R"("a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]},)"
                      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},)"
                      R"("c":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]},)"
                      R"("d":{"dtype":"F32","shape":[1],"data_offsets":[4,0]},)"
                      R"("e":{"dtype":"F32","shap":[1],"data_offsets":[0,4]},)"
                      R"("f":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]},)"
                      R"("g":3})",
                      "")) ==
      "m: tensor '__metadata__'.format: must be a string, is 1\n"
      "m: tensor 'a': dtype is \"F8_E4M3\", must be BOOL, U8, I32, I64, BF16, F16, F32 or F64\n"
      "m: tensor 'b': data_offsets [0, 4] hold 4 bytes, must hold 8 for F32 of shape [2]\n"
      "m: tensor 'c'.shape: -1 must not be negative\n"
      "m: tensor 'd': data_offsets are [4, 0], must be begin and end\n"
      "m: tensor 'e': 'shape' is missing, did you mean 'shap'?\n"
      "m: tensor 'f': data_offsets [0, 0] hold 0 bytes, must hold more for F32 of shape "
      "[4611686018427387904, 4]\n"
      "m: tensor 'g': must be an object, is 3");
}

TEST_CASE("tensors that overlap, leave a hole or reach past the end are reported") {
  CHECK(failure(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]},)"
                        R"("c":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
                        "12345678")) ==
        "m: tensor 'b': begins at byte 2 of the data, must begin at 4, where the tensor before it "
        "ends (they "
        "overlap)\n"
        "m: tensor 'c': begins at byte 8 of the data, must begin at 6, where the tensor before it "
        "ends (a "
        "hole)\n"
        "m: has 8 bytes of data, must have 9 (truncated)");
  CHECK(failure(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                        R"("c":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
                        "12345")) ==
        "m: tensor 'b': begins at byte 1 of the data, must begin at 4, where the tensor before it "
        "ends (they overlap)");
  CHECK(failure(file_of("{}", "x")) == "m: has 1 bytes of data, must have 0");
  CHECK(failure(file_of("{}", "")) == "no error");
}

TEST_CASE("no truncation and no flipped byte of a file crashes the reader") {
  FakeFileSystem fs;
  write_sample(fs);
  const std::string good = fs.read_file("m");
  for (size_t length = 0; length < good.size(); ++length) {
    CHECK(failure(good.substr(0, length)) != "no error");
  }
  const auto read_all = [&](const std::string& bytes) {
    fs.write_file("m", bytes);
    try {
      const SafetensorsFile file = SafetensorsFile::open(fs, "m");
      size_t total = file.header_bytes().size();
      for (const TensorSpec& tensor : file.tensors()) total += file.bytes(tensor.name).size();
      CHECK(total == bytes.size());
    } catch (const Error&) {
    }
  };
  const RngKey key{1, 0, rng_site("safetensors fuzz")};
  for (uint64_t i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (uint64_t k = 0; k <= i % 3; ++k) {
      const uint32_t word = random_u32(key, 4 * i + k);
      bytes[word % bytes.size()] = static_cast<char>(word >> 24);
    }
    read_all(bytes);
  }
}

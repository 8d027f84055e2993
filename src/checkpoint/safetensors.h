// The safetensors file format [github.com/huggingface/safetensors]: a u64 little-endian header
// length, a JSON header with dtype, shape and data_offsets of every tensor, then the tensors' bytes
// without a hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/ids.h"

namespace mw::checkpoint {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: one element

  Bytes bytes() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// "[768, 2304]"
std::string shape_text(const std::vector<int64_t>& shape);

using Metadata = std::vector<std::pair<std::string, std::string>>;

// A mapped file. Cheap to move; spans stay valid while any copy of it lives.
class SafetensorsFile {
 public:
  // Throws Error with everything that is wrong: the header's length and JSON, a dtype that we do
  // not know, a shape that does not fit its bytes, tensors that overlap, leave a hole or reach past
  // the end.
  static SafetensorsFile open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }
  // nullptr where there is none.
  const TensorSpec* find(std::string_view name) const;
  // The tensor's elements in row-major order, little-endian. Not aligned for its dtype in general.
  // REQUIRES: find(name).
  std::span<const std::byte> bytes(std::string_view name) const;
  std::span<const std::byte> file_bytes() const { return file_.bytes; }
  // The file up to the first tensor's bytes.
  std::span<const std::byte> header_bytes() const { return file_.bytes.first(data_at_); }

 private:
  friend class SafetensorsParser;
  std::string path_;
  MappedFile file_;
  size_t data_at_ = 0;
  std::vector<TensorSpec> tensors_;
  std::vector<size_t> offsets_;  // of tensors_, from the file's start
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

// Writes a file whose tensors are known beforehand and whose bytes come in order, in pieces of any
// size.
class SafetensorsWriter {
 public:
  // The header is padded with spaces so that the tensors' bytes begin at a multiple of 8. REQUIRES:
  // no name twice.
  SafetensorsWriter(FileSystem& fs, const std::string& path, std::span<const TensorSpec> tensors,
                    const Metadata& metadata);
  // The next bytes of the row of all tensors.
  void append(std::span<const std::byte> bytes);
  // Syncs and closes. REQUIRES: every byte was appended.
  void finish();

  Bytes size() const { return written_; }            // of the file so far
  Hash128 hash() const { return hasher_.digest(); }  // of the file so far

 private:
  void write(std::span<const std::byte> bytes);

  std::string path_;
  std::unique_ptr<WritableFile> file_;
  Hasher128 hasher_;
  Bytes written_;
  Bytes total_;
};

// Length and JSON, padded.
std::string safetensors_header(std::span<const TensorSpec> tensors, const Metadata& metadata);

}  // namespace mw::checkpoint

#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace mw::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

struct NamedDType {
  std::string_view name;
  DType dtype;
};

constexpr std::array<NamedDType, 8> kDTypes = {{{"BOOL", DType::kBool},
                                                {"U8", DType::kU8},
                                                {"I32", DType::kI32},
                                                {"I64", DType::kI64},
                                                {"BF16", DType::kBF16},
                                                {"F16", DType::kF16},
                                                {"F32", DType::kF32},
                                                {"F64", DType::kF64}}};

// The reference implementation's own limit.
constexpr uint64_t kLongestHeader = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

std::string_view name_of(DType dtype) {
  for (const NamedDType& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  MW_CHECK(false, "dtype {}", dtype_name(dtype));
  return "";
}

// dtype size times the dimensions; nullopt where that does not fit.
std::optional<int64_t> checked_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype_size(dtype);
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

Bytes TensorSpec::bytes() const {
  const auto bytes = checked_bytes(dtype, shape);
  MW_CHECK(bytes, "{}: shape {}", name, shape_text(shape));
  return Bytes(*bytes);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

const TensorSpec* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  MW_CHECK(found != index_.end(), "{}: no tensor '{}'", path_, name);
  const size_t i = found->second;
  return file_.bytes.subspan(offsets_[i], static_cast<size_t>(tensors_[i].bytes().value));
}

class SafetensorsParser {
 public:
  SafetensorsParser(FileSystem& fs, const std::string& path) {
    result_.path_ = path;
    result_.file_ = fs.map_file(path);
  }

  SafetensorsFile parse() {
    const Json header = parse_header();
    for (const auto& [name, value] : header.as_object(where(""))) {
      if (name == kMetadataKey) {
        parse_metadata(value);
      } else {
        parse_tensor(name, value);
      }
    }
    out_.throw_if_any();
    check_layout();
    out_.throw_if_any();
    store();
    return std::move(result_);
  }

 private:
  struct Entry {
    TensorSpec spec;
    int64_t begin, end;
  };

  std::string where(std::string_view name) const {
    return name.empty() ? result_.path_ : fmt::format("{}: tensor '{}'", result_.path_, name);
  }

  Json parse_header() {
    const std::string_view text = result_.file_.text();
    if (text.size() < 8) {
      throw_error("{}: has {} bytes, must have at least 8 (no safetensors file)", result_.path_,
                  text.size());
    }
    uint64_t length;
    std::memcpy(&length, text.data(), sizeof(length));
    if (length > text.size() - 8) {
      throw_error(
          "{}: offset 0: header length is {}, must be at most {}, the rest of the file (truncated, "
          "or "
          "no safetensors file)",
          result_.path_, length, text.size() - 8);
    }
    if (length > kLongestHeader) {
      throw_error("{}: offset 0: header length is {}, must be at most {}", result_.path_, length,
                  kLongestHeader);
    }
    result_.data_at_ = 8 + static_cast<size_t>(length);
    return parse_json(text.substr(8, length), result_.path_ + " header");
  }

  void parse_metadata(const Json& json) {
    try {
      for (const auto& [key, value] : json.as_object(where(kMetadataKey))) {
        result_.metadata_.emplace_back(key, value.as_string(where(kMetadataKey) + "." + key));
      }
    } catch (const Error& error) {
      out_.absorb(error);
    }
  }

  // The member as integers that are not negative; throws Error.
  std::vector<int64_t> integers(const Json& json, std::string_view key, const std::string& place) {
    const std::string at = fmt::format("{}.{}", place, key);
    std::vector<int64_t> values;
    for (const Json& element : json.at(key, place).as_array(at)) {
      values.push_back(element.as_integer(at));
      if (values.back() < 0) throw_error("{}: {} must not be negative", at, values.back());
    }
    return values;
  }

  void parse_tensor(const std::string& name, const Json& json) {
    try {
      const std::string place = where(name);
      const std::string& dtype = json.at("dtype", place).as_string(place + ".dtype");
      const auto known =
          std::find_if(kDTypes.begin(), kDTypes.end(),
                       [&](const NamedDType& candidate) { return candidate.name == dtype; });
      if (known == kDTypes.end()) {
        throw_error("{}: dtype is {}, must be BOOL, U8, I32, I64, BF16, F16, F32 or F64", place,
                    quoted(dtype));
      }
      Entry entry{{name, known->dtype, integers(json, "shape", place)}, 0, 0};
      const std::vector<int64_t> offsets = integers(json, "data_offsets", place);
      if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        throw_error("{}: data_offsets are {}, must be begin and end", place, shape_text(offsets));
      }
      entry.begin = offsets[0];
      entry.end = offsets[1];
      const auto bytes = checked_bytes(entry.spec.dtype, entry.spec.shape);
      if (!bytes || *bytes != entry.end - entry.begin) {
        throw_error("{}: data_offsets {} hold {} bytes, must hold {} for {} of shape {}", place,
                    shape_text(offsets), entry.end - entry.begin,
                    bytes ? std::to_string(*bytes) : "more", dtype, shape_text(entry.spec.shape));
      }
      entries_.push_back(std::move(entry));
    } catch (const Error& error) {
      out_.absorb(error);
    }
  }

  void check_layout() {
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t next = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin != next) {
        out_.add(
            "{}: begins at byte {} of the data, must begin at {}, where the tensor before it ends "
            "({})",
            where(entry.spec.name), entry.begin, next,
            entry.begin < next ? "they overlap" : "a hole");
      }
      next = std::max(next, entry.end);
    }
    const int64_t size = static_cast<int64_t>(result_.file_.bytes.size() - result_.data_at_);
    if (next != size) {
      out_.add("{}: has {} bytes of data, must have {}{}", result_.path_, size, next,
               size < next ? " (truncated)" : "");
    }
  }

  void store() {
    for (Entry& entry : entries_) {
      result_.index_.emplace(entry.spec.name, result_.tensors_.size());
      result_.offsets_.push_back(result_.data_at_ + static_cast<size_t>(entry.begin));
      result_.tensors_.push_back(std::move(entry.spec));
    }
  }

  SafetensorsFile result_;
  std::vector<Entry> entries_;
  Diagnostics out_;
};

SafetensorsFile SafetensorsFile::open(FileSystem& fs, const std::string& path) {
  return SafetensorsParser(fs, path).parse();
}

std::string safetensors_header(std::span<const TensorSpec> tensors, const Metadata& metadata) {
  JsonObject header;
  if (!metadata.empty()) {
    JsonObject object;
    for (const auto& [key, value] : metadata) object.append(key, value);
    header.append(std::string(kMetadataKey), std::move(object));
  }
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const int64_t end = offset + tensor.bytes().value;
    header.append(tensor.name, JsonObject{{"dtype", name_of(tensor.dtype)},
                                          {"shape", Json::list(tensor.shape)},
                                          {"data_offsets", JsonArray{offset, end}}});
    offset = end;
  }
  std::string text = Json(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  char prefix[sizeof(length)];
  std::memcpy(prefix, &length, sizeof(length));
  return std::string(prefix, sizeof(prefix)) + text;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& fs, const std::string& path,
                                     std::span<const TensorSpec> tensors, const Metadata& metadata)
    : path_(path), file_(fs.create_file(path)) {
  const std::string header = safetensors_header(tensors, metadata);
  total_ = Bytes(static_cast<int64_t>(header.size()));
  for (const TensorSpec& tensor : tensors) total_ += tensor.bytes();
  write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  file_->write(bytes);
  hasher_.update(bytes);
  written_ += Bytes(static_cast<int64_t>(bytes.size()));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  MW_CHECK(written_.value + static_cast<int64_t>(bytes.size()) <= total_.value,
           "{}: {} bytes after {} of {}", path_, bytes.size(), written_.value, total_.value);
  write(bytes);
}

void SafetensorsWriter::finish() {
  MW_CHECK(written_ == total_, "{}: {} of {} bytes", path_, written_.value, total_.value);
  file_->sync();
  file_->close();
}

}  // namespace mw::checkpoint

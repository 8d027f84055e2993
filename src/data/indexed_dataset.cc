#include "data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "data/indexed_format.h"

namespace mw::data {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

int64_t token_size(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8: return 1;
    case TokenType::kI16:
    case TokenType::kU16: return 2;
    case TokenType::kI32: return 4;
    case TokenType::kI64: return 8;
  }
  MW_CHECK(false, "token type {}", static_cast<int>(type));
  return 0;
}

std::string_view token_type_name(TokenType type) {
  switch (type) {
    case TokenType::kU8: return "u8";
    case TokenType::kI8: return "i8";
    case TokenType::kI16: return "i16";
    case TokenType::kI32: return "i32";
    case TokenType::kI64: return "i64";
    case TokenType::kU16: return "u16";
  }
  MW_CHECK(false, "token type {}", static_cast<int>(type));
  return "";
}

int64_t max_token_of(TokenType type) {
  switch (type) {
    case TokenType::kU8: return 255;
    case TokenType::kI8: return 127;
    case TokenType::kI16: return 32767;
    case TokenType::kU16: return 65535;
    case TokenType::kI32:
    case TokenType::kI64: return std::numeric_limits<int32_t>::max();
  }
  MW_CHECK(false, "token type {}", static_cast<int>(type));
  return 0;
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

namespace {

// Keeps a broken file of a million entries from giving a million findings.
class Findings {
 public:
  Findings(Diagnostics& out, const std::string& file) : out_(out), file_(file) {}
  ~Findings() {
    if (count_ > kMost) out_.add("{}: and {} more like these", file_, count_ - kMost);
  }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (count_++ < kMost)
      out_.add("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  static constexpr int64_t kMost = 3;
  Diagnostics& out_;
  const std::string& file_;
  int64_t count_ = 0;
};

struct Header {
  TokenType type = TokenType::kU8;
  int64_t sequences = 0;
  int64_t indices = 0;  // D
};

class IndexedDataset : public TokenSource {
 public:
  IndexedDataset(FileSystem& fs, const std::string& prefix)
      : idx_name_(prefix + ".idx"), bin_name_(prefix + ".bin") {
    Diagnostics diagnostics;
    map(fs, idx_name_, idx_, diagnostics);
    map(fs, bin_name_, bin_, diagnostics);
    diagnostics.throw_if_any();
    if (check_header(diagnostics)) {
      check_sequences(diagnostics);
      check_documents(diagnostics);
    }
    diagnostics.throw_if_any();
  }

  const std::string& name() const override { return bin_name_; }
  int64_t num_tokens() const override { return tokens_; }
  int64_t max_token() const override { return max_token_of(header_.type); }
  int64_t num_documents() const override { return header_.indices - 1; }
  int64_t num_sequences() const { return header_.sequences; }
  TokenType type() const { return header_.type; }

  int64_t document_end(int64_t document) const override {
    MW_CHECK(document >= 0 && document < num_documents(), "document {} of {}", document,
             num_documents());
    const int64_t sequence = index(document + 1);
    return sequence == header_.sequences ? tokens_ : pointer(sequence) / token_size(header_.type);
  }

  void read(int64_t offset, int64_t count, int32_t* out) const override {
    MW_CHECK(offset >= 0 && count >= 0 && offset <= tokens_ - count, "{}: [{}, +{}) of {}",
             bin_name_, offset, count, tokens_);
    switch (header_.type) {
      case TokenType::kU8: return read_as<uint8_t>(offset, count, out);
      case TokenType::kI8: return read_as<int8_t>(offset, count, out);
      case TokenType::kI16: return read_as<int16_t>(offset, count, out);
      case TokenType::kU16: return read_as<uint16_t>(offset, count, out);
      case TokenType::kI32: return read_as<int32_t>(offset, count, out);
      case TokenType::kI64: return read_as<int64_t>(offset, count, out);
    }
  }

 private:
  static void map(FileSystem& fs, const std::string& path, MappedFile& file,
                  Diagnostics& diagnostics) {
    try {
      file = fs.map_file(path);
    } catch (const Error& error) {
      diagnostics.absorb(error);
    }
  }

  template <typename T>
  static T load(const MappedFile& file, int64_t at) {
    T value;
    std::memcpy(&value, file.bytes.data() + at, sizeof(T));
    return value;
  }

  int64_t lengths_at() const { return kIdxHeaderSize; }
  int64_t pointers_at() const { return lengths_at() + 4 * header_.sequences; }
  int64_t indices_at() const { return pointers_at() + 8 * header_.sequences; }
  int32_t length(int64_t i) const { return load<int32_t>(idx_, lengths_at() + 4 * i); }
  int64_t pointer(int64_t i) const { return load<int64_t>(idx_, pointers_at() + 8 * i); }
  int64_t index(int64_t i) const { return load<int64_t>(idx_, indices_at() + 8 * i); }

  // Everything up to offset 34 and the file's size; false where what follows cannot be found.
  bool check_header(Diagnostics& out) {
    const int64_t size = static_cast<int64_t>(idx_.bytes.size());
    const std::string_view text = idx_.text();
    if (!text.starts_with(kIdxMagic.substr(0, std::min(text.size(), kIdxMagic.size())))) {
      out.add("{}: offset 0: is {}, must be {} (no Megatron-LM index)", idx_name_,
              quoted(text.substr(0, kIdxMagic.size())), quoted(kIdxMagic));
      return false;
    }
    if (size < kIdxHeaderSize) {
      out.add("{}: has {} bytes, must have at least {} (the header is truncated)", idx_name_, size,
              kIdxHeaderSize);
      return false;
    }
    const size_t before = out.findings().size();
    if (const uint64_t version = load<uint64_t>(idx_, 9); version != 1) {
      out.add("{}: offset 9: version is {}, must be 1", idx_name_, version);
    }
    check_type(out);
    // As unsigned, so that a negative count is a large one.
    const uint64_t sequences = load<uint64_t>(idx_, 18), indices = load<uint64_t>(idx_, 26);
    const uint64_t room = static_cast<uint64_t>(size - kIdxHeaderSize);
    if (sequences > room / 12) {
      out.add("{}: offset 18: {} sequences take {} bytes each, the file has {} bytes (truncated?)",
              idx_name_, sequences, 12, size);
    } else if (indices > (room - 12 * sequences) / 8) {
      out.add(
          "{}: offset 26: {} sequences and {} document indices take {} bytes, the file has {} "
          "(truncated?)",
          idx_name_, sequences, indices, needed_text(sequences, indices), size);
    } else {
      const uint64_t rest = room - 12 * sequences - 8 * indices;
      if (rest != 0 && rest != sequences) {
        out.add(
            "{}: has {} bytes, must have {} for {} sequences and {} document indices, or {} with "
            "modes",
            idx_name_, size, size - static_cast<int64_t>(rest), sequences, indices,
            size - static_cast<int64_t>(rest) + static_cast<int64_t>(sequences));
      }
    }
    if (out.findings().size() != before) return false;
    header_.sequences = static_cast<int64_t>(sequences);
    header_.indices = static_cast<int64_t>(indices);
    return true;
  }

  static std::string needed_text(uint64_t sequences, uint64_t indices) {
    return format_si(34 + 12.0 * static_cast<double>(sequences) +
                     8.0 * static_cast<double>(indices));
  }

  void check_type(Diagnostics& out) {
    const int code = load<uint8_t>(idx_, 17);
    constexpr std::array kTypes = {TokenType::kU8,  TokenType::kI8,  TokenType::kI16,
                                   TokenType::kI32, TokenType::kI64, TokenType::kU16};
    for (const TokenType type : kTypes) {
      if (static_cast<int>(type) == code) {
        header_.type = type;
        return;
      }
    }
    out.add(
        "{}: offset 17: dtype code is {}{}, must be 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 "
        "(u16)",
        idx_name_, code,
        code == 6   ? " (f64)"
        : code == 7 ? " (f32)"
                    : "");
  }

  void check_sequences(Diagnostics& out) {
    const int64_t item = token_size(header_.type);
    bool lengths_right = true;
    int64_t next = 0;
    {
      Findings lengths(out, idx_name_);
      for (int64_t i = 0; i < header_.sequences; ++i) {
        if (length(i) >= 0) continue;
        lengths_right = false;
        lengths.add("offset {}: length of sequence {} is {}, must not be negative",
                    lengths_at() + 4 * i, i, length(i));
      }
    }
    if (!lengths_right) return;  // no pointer can be judged
    {
      Findings pointers(out, idx_name_);
      for (int64_t i = 0; i < header_.sequences; ++i) {
        if (pointer(i) != next) {
          pointers.add(
              "offset {}: pointer of sequence {} is {}, must be {} (sequences lie back to back)",
              pointers_at() + 8 * i, i, pointer(i), next);
        }
        next += item * length(i);
      }
    }
    tokens_ = next / item;
    const int64_t size = static_cast<int64_t>(bin_.bytes.size());
    if (size != next) {
      out.add("{}: has {} bytes, must have {} for the {} tokens ({}) of {}{}", bin_name_, size,
              next, tokens_, token_type_name(header_.type), idx_name_,
              size < next ? " (truncated)" : "");
    }
  }

  void check_documents(Diagnostics& out) {
    if (header_.indices == 0) {
      out.add("{}: offset 26: 0 document indices, must be at least 1", idx_name_);
      return;
    }
    Findings findings(out, idx_name_);
    if (index(0) != 0) {
      findings.add("offset {}: document index 0 is {}, must be 0", indices_at(), index(0));
    }
    for (int64_t i = 1; i < header_.indices; ++i) {
      if (index(i) < index(i - 1)) {
        findings.add("offset {}: document index {} is {}, must not be below the one before, {}",
                     indices_at() + 8 * i, i, index(i), index(i - 1));
      }
    }
    const int64_t last = header_.indices - 1;
    if (index(last) != header_.sequences) {
      findings.add("offset {}: the last document index is {}, must be the number of sequences, {}",
                   indices_at() + 8 * last, index(last), header_.sequences);
    }
  }

  template <typename T>
  void read_as(int64_t offset, int64_t count, int32_t* out) const {
    const std::byte* from = bin_.bytes.data() + offset * static_cast<int64_t>(sizeof(T));
    if constexpr (sizeof(T) < 4 && std::is_unsigned_v<T>) {
      for (int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
        out[i] = value;
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
        if (value < 0 || static_cast<int64_t>(value) > std::numeric_limits<int32_t>::max()) {
          throw_error("{}: offset {}: token {} is {}, must be from 0 to {}", bin_name_,
                      (offset + i) * static_cast<int64_t>(sizeof(T)), offset + i, value,
                      std::numeric_limits<int32_t>::max());
        }
        out[i] = static_cast<int32_t>(value);
      }
    }
  }

  std::string idx_name_, bin_name_;
  MappedFile idx_, bin_;
  Header header_;
  int64_t tokens_ = 0;
};

std::string prefix_of(const std::string& path) {
  const bool named = ends_with(path, ".bin") || ends_with(path, ".idx");
  return named ? path.substr(0, path.size() - 4) : path;
}

}  // namespace

std::unique_ptr<TokenSource> open_indexed(FileSystem& fs, const std::string& path) {
  return std::make_unique<IndexedDataset>(fs, prefix_of(path));
}

IndexedInfo indexed_info(FileSystem& fs, const std::string& path) {
  const IndexedDataset dataset(fs, prefix_of(path));
  IndexedInfo info{dataset.type(),
                   dataset.num_sequences(),
                   dataset.num_documents(),
                   dataset.num_tokens(),
                   0,
                   scan_tokens(dataset)};
  int64_t start = 0;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    const int64_t end = dataset.document_end(i);
    info.longest_document = std::max(info.longest_document, end - start);
    start = end;
  }
  return info;
}

}  // namespace mw::data

#include "data/token_source.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/indexed_dataset.h"

namespace mw::data {
namespace {

class TextDataset : public TokenSource {
 public:
  TextDataset(FileSystem& fs, const std::string& path) : name_(path), file_(fs.map_file(path)) {}

  const std::string& name() const override { return name_; }
  int64_t num_tokens() const override { return static_cast<int64_t>(file_.bytes.size()); }
  int64_t max_token() const override { return 255; }

  void read(int64_t offset, int64_t count, int32_t* out) const override {
    MW_CHECK(offset >= 0 && count >= 0 && offset <= num_tokens() - count, "{}: [{}, +{}) of {}",
             name_, offset, count, num_tokens());
    const std::byte* bytes = file_.bytes.data() + offset;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(bytes[i]);
  }

  int64_t num_documents() const override { return num_tokens() > 0 ? 1 : 0; }
  int64_t document_end(int64_t) const override { return num_tokens(); }

 private:
  std::string name_;
  MappedFile file_;
};

}  // namespace

std::unique_ptr<TokenSource> open_text(FileSystem& fs, const std::string& path) {
  return std::make_unique<TextDataset>(fs, path);
}

std::unique_ptr<TokenSource> open_corpus(FileSystem& fs, const std::string& path) {
  const bool indexed = ends_with(path, ".bin") || ends_with(path, ".idx") ||
                       (!fs.exists(path) && fs.exists(path + ".idx"));
  if (indexed) return open_indexed(fs, path);
  return open_text(fs, path);
}

std::string fingerprint(const TokenSource& source) {
  constexpr int64_t kPiece = 1 << 14, kMostPieces = 1 << 10;
  const int64_t tokens = source.num_tokens(), documents = source.num_documents();
  Hasher128 hasher;
  const auto add = [&hasher](int64_t number) { hasher.update(std::to_string(number) + "\n"); };
  add(tokens);
  add(documents);
  const int64_t apart = (documents + kMostPieces - 1) / kMostPieces;
  for (int64_t d = 0; d < documents; d += apart) add(source.document_end(d));
  const int64_t pieces = std::min((tokens + kPiece - 1) / kPiece, kMostPieces);
  std::vector<int32_t> piece(static_cast<size_t>(std::min(kPiece, tokens)));
  for (int64_t i = 0; i < pieces; ++i) {
    // The last one ends where the corpus does.
    const int64_t last = tokens - std::ssize(piece);
    source.read(pieces == 1 ? 0 : last / (pieces - 1) * i + last % (pieces - 1) * i / (pieces - 1),
                std::ssize(piece), piece.data());
    hasher.update(std::as_bytes(std::span(piece)));
  }
  return hasher.digest().hex();
}

TokenRange scan_tokens(const TokenSource& source) {
  TokenRange range;
  std::vector<int32_t> block(1 << 16);
  for (int64_t offset = 0; offset < source.num_tokens();) {
    const int64_t count =
        std::min<int64_t>(static_cast<int64_t>(block.size()), source.num_tokens() - offset);
    source.read(offset, count, block.data());
    const auto [min, max] = std::minmax_element(block.begin(), block.begin() + count);
    range = offset == 0 ? TokenRange{*min, *max}
                        : TokenRange{std::min(range.min, *min), std::max(range.max, *max)};
    offset += count;
  }
  return range;
}

}  // namespace mw::data

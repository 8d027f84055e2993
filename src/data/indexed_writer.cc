#include "data/indexed_dataset.h"

#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "data/indexed_format.h"

namespace mw::data {
namespace {

template <typename T>
void append_raw(std::string& out, const T& value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void append_token(std::string& out, TokenType type, int32_t token) {
  switch (type) {
    case TokenType::kU8: return append_raw(out, static_cast<uint8_t>(token));
    case TokenType::kI8: return append_raw(out, static_cast<int8_t>(token));
    case TokenType::kI16: return append_raw(out, static_cast<int16_t>(token));
    case TokenType::kU16: return append_raw(out, static_cast<uint16_t>(token));
    case TokenType::kI32: return append_raw(out, token);
    case TokenType::kI64: return append_raw(out, static_cast<int64_t>(token));
  }
}

// One past the end of the document that starts at `start`.
size_t document_end(std::string_view text, size_t start, DocumentSplit split) {
  if (split == DocumentSplit::kNone) return text.size();
  size_t end = text.find('\n', start);
  if (split == DocumentSplit::kBlankLines)
    end = std::min(text.find("\n\n", start), text.find("\n\r\n", start));
  if (end == std::string_view::npos) return text.size();
  if (split == DocumentSplit::kLines) return end + 1;
  end = text.find_first_not_of("\r\n", end);
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace

IndexedWriter::IndexedWriter(FileSystem& fs, std::string prefix, TokenType type)
    : fs_(fs), prefix_(std::move(prefix)), type_(type) {
  fs_.make_directories(parent_path(prefix_));
  bin_ = fs_.create_file_alone(part());
  try {
    idx_ = fs_.create_file_alone(index_part());  // another writer may be between its two renames
  } catch (...) {
    fs_.remove(part());
    throw;
  }
}

IndexedWriter::~IndexedWriter() {
  if (!bin_) return;
  // Before another writer may have them.
  for (const std::string& left : {part(), index_part()}) {
    try {
      if (fs_.exists(left)) fs_.remove(left);
    } catch (const std::exception&) {  // it stays beside what was there
    }
  }
}

std::string IndexedWriter::part() const { return prefix_ + ".bin.tmp"; }
std::string IndexedWriter::index_part() const { return prefix_ + ".idx.tmp"; }

void IndexedWriter::add_sequence(std::span<const int32_t> tokens) {
  MW_CHECK(bin_, "{}: added after finish()", prefix_);
  MW_CHECK(tokens.size() <= std::numeric_limits<int32_t>::max(), "{} tokens", tokens.size());
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<size_t>(token_size(type_)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > max_token_of(type_)) {
      throw_error("{}.bin: token {} of sequence {} is {}, must be from 0 to {} for {}", prefix_, i,
                  lengths_.size(), tokens[i], max_token_of(type_), token_type_name(type_));
    }
    append_token(bytes, type_, tokens[i]);
  }
  bin_->write(bytes);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
}

void IndexedWriter::end_document() { documents_.push_back(static_cast<int64_t>(lengths_.size())); }

void IndexedWriter::finish() {
  MW_CHECK(bin_, "{}: finished twice", prefix_);
  if (documents_.back() != static_cast<int64_t>(lengths_.size())) end_document();
  bin_->sync();
  std::string idx(kIdxMagic);
  append_raw(idx, uint64_t{1});
  append_raw(idx, static_cast<uint8_t>(type_));
  append_raw(idx, static_cast<uint64_t>(lengths_.size()));
  append_raw(idx, static_cast<uint64_t>(documents_.size()));
  for (const int32_t length : lengths_) append_raw(idx, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    append_raw(idx, pointer);
    pointer += token_size(type_) * length;
  }
  for (const int64_t index : documents_) append_raw(idx, index);
  const std::string index = prefix_ + ".idx";
  idx_->write(idx);
  idx_->sync();
  // The index of an older data set would not fit the new tokens. Who reads them now keeps the old
  // file. Another writer begins when both are there.
  if (fs_.exists(index)) fs_.remove(index);
  fs_.rename(part(), prefix_ + ".bin");
  fs_.rename(index_part(), index);
  bin_->close();
  idx_->close();
  bin_.reset();
  fs_.sync_directory(parent_path(prefix_));
}

void write_indexed_text(FileSystem& fs, const std::string& text_path, const std::string& prefix,
                        DocumentSplit split, std::optional<TokenType> type) {
  const MappedFile file = fs.map_file(text_path);
  const std::string_view text = file.text();
  Diagnostics diagnostics;
  if (text.empty()) diagnostics.add("{}: is empty; give a text of at least one byte", text_path);
  if (prefix.empty() || ends_with(prefix, "/")) {
    diagnostics.add(
        "--output: must be a prefix such as data/kjv, for data/kjv.bin and data/kjv.idx, is '{}'",
        prefix);
  }
  for (const char* end : kWrittenEnds) {
    if (text_path != prefix + end) continue;
    diagnostics.add("--output: {} would write over the text {}; choose another prefix", prefix,
                    text_path);
  }
  diagnostics.throw_if_any();
  IndexedWriter writer(fs, prefix, type.value_or(token_type_for(256)));
  std::vector<int32_t> tokens;
  // A longer document becomes several sequences.
  constexpr size_t kLongestSequence = size_t{1} << 20;
  for (size_t start = 0; start < text.size();) {
    const size_t end = document_end(text, start, split);
    for (; start < end; start += tokens.size()) {
      const std::string_view piece = text.substr(start, std::min(end - start, kLongestSequence));
      tokens.clear();
      for (const char c : piece) tokens.push_back(static_cast<unsigned char>(c));
      writer.add_sequence(tokens);
    }
    writer.end_document();
  }
  writer.finish();
}

}  // namespace mw::data

// Megatron-LM's indexed dataset: tokens in PREFIX.bin, where sequences and documents begin in
// PREFIX.idx.
//
// PREFIX.idx, all little-endian [megatron/core/datasets/indexed_dataset.py]:
//   0   9 bytes "MMIDIDX\0\0"        17  u8 dtype code        34  i32 lengths[S]
//   9   u64 version = 1              18  u64 S sequences          i64 byte pointers[S]
//                                    26  u64 D                    i64 document indices[D]
//                                                                 i8 modes[S], optional, not read
// D is the number of documents plus one: document d is the sequences [indices[d], indices[d+1]).
// PREFIX.bin is the tokens of all sequences, back to back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "data/token_source.h"

namespace mw::data {

// The value is the code in the file. Codes 6 and 7 are floats, which are no tokens.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t token_size(TokenType type);  // bytes
std::string_view token_type_name(TokenType type);
int64_t max_token_of(TokenType type);
// As Megatron-LM chooses: u16 for a vocabulary below 65500, else i32.
TokenType token_type_for(int64_t vocab_size);

struct IndexedInfo {
  TokenType type;
  int64_t sequences;
  int64_t documents;
  int64_t tokens;
  int64_t longest_document;  // tokens
  TokenRange range;
};

// Both files mapped. Throws Error with everything that is wrong with the two, each finding with
// file, offset, what is and what must be. `path` is the prefix, or ends in .bin or .idx. Costs one
// pass over the .idx.
std::unique_ptr<TokenSource> open_indexed(FileSystem& fs, const std::string& path);

// Reads all of both files.
IndexedInfo indexed_info(FileSystem& fs, const std::string& path);

// What follows the prefix in the names of the files that a writer makes, also for a while.
constexpr const char* kWrittenEnds[] = {".bin", ".idx", ".bin.tmp", ".idx.tmp"};

// Writes both files; the .idx comes last and appears at once, so that a torn write is never opened.
// Until both are written what lies at the prefix stays as it was; without finish() nothing is left.
// Throws Error where another writer is at the prefix.
class IndexedWriter {
 public:
  IndexedWriter(FileSystem& fs, std::string prefix, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;
  // One sequence of the current document. Throws Error for a token that the type cannot hold.
  void add_sequence(std::span<const int32_t> tokens);
  void end_document();
  // Ends an open document and writes the .idx. REQUIRES: nothing is added afterwards.
  void finish();

 private:
  std::string part() const;        // the tokens, until they are whole
  std::string index_part() const;  // the index, until it takes the old one's place

  FileSystem& fs_;
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<WritableFile> bin_, idx_;  // nobody else has them
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
};

enum class DocumentSplit {
  kNone,       // the file is one document
  kLines,      // every line is one, its '\n' with it
  kBlankLines  // every paragraph is one, the blank lines after it with it
};

// The bytes of a text file as tokens; the tokens in order are the text whatever the split. Empty
// documents are not written. Without a type, token_type_for(256). Throws Error, before anything is
// written, for an empty text, a prefix without a name, and files that would lie over the text.
void write_indexed_text(FileSystem& fs, const std::string& text_path, const std::string& prefix,
                        DocumentSplit split, std::optional<TokenType> type = std::nullopt);

}  // namespace mw::data

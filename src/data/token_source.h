// A corpus as one long row of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/fs.h"

namespace mw::data {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // The file, for messages.
  virtual const std::string& name() const = 0;
  virtual int64_t num_tokens() const = 0;
  // No token is above that. Known from the format alone (255 for bytes); not a scan.
  virtual int64_t max_token() const = 0;
  // Tokens [offset, offset + count). Throws Error for a token below 0 or beyond int32_t.
  // REQUIRES: the range lies in the corpus. Safe from several threads.
  virtual void read(int64_t offset, int64_t count, int32_t* out) const = 0;
  virtual int64_t num_documents() const = 0;
  // Document i is the tokens [document_end(i-1), document_end(i)).
  virtual int64_t document_end(int64_t document) const = 0;
};

// A plain text file: a token is a byte, the vocabulary 256, the file one document.
std::unique_ptr<TokenSource> open_text(FileSystem& fs, const std::string& path);

// `path` with an .idx beside its .bin (or either name, or their common prefix) as indexed dataset,
// any other file as text.
std::unique_ptr<TokenSource> open_corpus(FileSystem& fs, const std::string& path);

// What tells one corpus from another, whatever its file is called: a hash of the number of tokens,
// the ends of the documents and the tokens, beyond 16 M of them in evenly spaced pieces.
std::string fingerprint(const TokenSource& source);

struct TokenRange {
  int32_t min = 0;
  int32_t max = -1;
};
// The least and the greatest token that occur; reads the whole corpus.
TokenRange scan_tokens(const TokenSource& source);

}  // namespace mw::data

#include "data/indexed_dataset.h"

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/rng.h"
#include "base/test_thrown_by.h"

using namespace mw;
using namespace mw::data;

namespace {

std::vector<int32_t> all_tokens(const TokenSource& source) {
  std::vector<int32_t> tokens(source.num_tokens());
  source.read(0, source.num_tokens(), tokens.data());
  return tokens;
}

const std::vector<std::vector<int32_t>> kSequences = {{1, 2, 3}, {}, {4}, {5, 6, 100, 7}};

// Two documents: the first two sequences, the other two.
void write_sample(FileSystem& fs, TokenType type) {
  IndexedWriter writer(fs, "d/corpus", type);
  for (size_t i = 0; i < kSequences.size(); ++i) {
    writer.add_sequence(kSequences[i]);
    if (i == 1) writer.end_document();
  }
  writer.finish();
}

template <typename T>
void poke(FileSystem& fs, const std::string& path, size_t at, T value) {
  std::string bytes = fs.read_file(path);
  std::memcpy(bytes.data() + at, &value, sizeof(T));
  fs.write_file(path, bytes);
}

std::string failure(FileSystem& fs, const std::string& path = "d/corpus") {
  return mw::test::thrown_by([&] { open_indexed(fs, path); });
}

constexpr size_t kLengthsAt = 34, kPointersAt = 34 + 4 * 4, kIndicesAt = 34 + 12 * 4;

}  // namespace

TEST_CASE("what is written is read back, in every token type") {
  for (const TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32,
                               TokenType::kI64, TokenType::kU16}) {
    CAPTURE(token_type_name(type));
    FakeFileSystem fs;
    write_sample(fs, type);
    for (const char* name : {"d/corpus", "d/corpus.bin", "d/corpus.idx"}) {
      const auto source = open_corpus(fs, name);
      CHECK(all_tokens(*source) == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 100, 7});
      CHECK(source->num_documents() == 2);
      CHECK(source->document_end(0) == 3);
      CHECK(source->document_end(1) == 8);
      int32_t two[2];
      source->read(5, 2, two);
      CHECK(two[0] == 6);
      CHECK(two[1] == 100);
      CHECK_THROWS_AS(source->read(7, 2, two), CheckFailure);
    }
    const IndexedInfo info = indexed_info(fs, "d/corpus");
    CHECK(info.type == type);
    CHECK(info.sequences == 4);
    CHECK(info.documents == 2);
    CHECK(info.tokens == 8);
    CHECK(info.longest_document == 5);
    CHECK(info.range.min == 1);
    CHECK(info.range.max == 100);
  }
}

TEST_CASE("the bytes are Megatron-LM's") {
  FakeFileSystem fs;
  IndexedWriter writer(fs, "c", TokenType::kU16);
  writer.add_sequence(std::vector<int32_t>{1, 0x0203});
  writer.end_document();
  writer.finish();
  CHECK(fs.read_file("c.bin") == std::string("\1\0\3\2", 4));
  const std::string expected(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\x08"
      "\1\0\0\0\0\0\0\0"
      "\2\0\0\0\0\0\0\0"
      "\2\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\1\0\0\0\0\0\0\0",
      9 + 8 + 1 + 8 + 8 + 4 + 8 + 8 + 8);
  CHECK(fs.read_file("c.idx") == expected);
}

TEST_CASE("the type follows Megatron-LM's rule") {
  CHECK(token_type_for(256) == TokenType::kU16);
  CHECK(token_type_for(65499) == TokenType::kU16);
  CHECK(token_type_for(65500) == TokenType::kI32);
}

TEST_CASE("a text becomes documents and stays the same text") {
  const std::string text = "one\ntwo\n\n\nthree\nfour\n\nfive";
  FakeFileSystem fs;
  fs.write_file("t.txt", text);
  const auto documents = [&](DocumentSplit split) {
    write_indexed_text(fs, "t.txt", "t", split);
    const auto source = open_indexed(fs, "t");
    const std::vector<int32_t> tokens = all_tokens(*source);
    CHECK(std::string(tokens.begin(), tokens.end()) == text);
    std::vector<std::string> result;
    int64_t start = 0;
    for (int64_t i = 0; i < source->num_documents(); ++i) {
      result.push_back(text.substr(start, source->document_end(i) - start));
      start = source->document_end(i);
    }
    return result;
  };
  using Texts = std::vector<std::string>;
  CHECK(documents(DocumentSplit::kNone) == Texts{text});
  CHECK(documents(DocumentSplit::kLines) ==
        Texts{"one\n", "two\n", "\n", "\n", "three\n", "four\n", "\n", "five"});
  CHECK(documents(DocumentSplit::kBlankLines) ==
        Texts{"one\ntwo\n\n\n", "three\nfour\n\n", "five"});
}

TEST_CASE("lines that end in CR LF are lines, and blank ones part documents") {
  FakeFileSystem fs;
  fs.write_file("t.txt", "a\r\nb\r\n\r\nc\r\n");
  write_indexed_text(fs, "t.txt", "t", DocumentSplit::kBlankLines);
  CHECK(open_indexed(fs, "t")->num_documents() == 2);
  CHECK(open_indexed(fs, "t")->document_end(0) == 8);
  write_indexed_text(fs, "t.txt", "t", DocumentSplit::kLines);
  CHECK(open_indexed(fs, "t")->num_documents() == 4);
  CHECK(open_indexed(fs, "t")->num_tokens() == 11);
}

TEST_CASE("nothing is written for an empty text, without a name, or over the text") {
  FakeFileSystem fs;
  fs.write_file("t.txt", "");
  fs.write_file("u.bin", "text");
  const auto error_of = [&](const std::string& text, const std::string& prefix) {
    return mw::test::thrown_by([&] { write_indexed_text(fs, text, prefix, DocumentSplit::kNone); });
  };
  CHECK(error_of("t.txt", "t") == "t.txt: is empty; give a text of at least one byte");
  CHECK(error_of("u.bin", "d/") ==
        "--output: must be a prefix such as data/kjv, for data/kjv.bin and data/kjv.idx, is 'd/'");
  CHECK(error_of("u.bin", "u") ==
        "--output: u would write over the text u.bin; choose another prefix");
  CHECK_FALSE(fs.exists("t.bin"));
  CHECK(fs.read_file("u.bin") == "text");
}

TEST_CASE("a document of more than a million tokens is several sequences") {
  FakeFileSystem fs;
  fs.write_file("t.txt", std::string((1 << 20) + 1, 'a'));
  write_indexed_text(fs, "t.txt", "t", DocumentSplit::kNone);
  const IndexedInfo info = indexed_info(fs, "t");
  CHECK(info.sequences == 2);
  CHECK(info.documents == 1);
  CHECK(info.longest_document == (1 << 20) + 1);
}

TEST_CASE("a text is itself, though a dataset of its name lies beside it") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kU16);
  CHECK(open_corpus(fs, "d/corpus")->num_tokens() == 8);
  fs.write_file("d/corpus", "text");
  CHECK(open_corpus(fs, "d/corpus")->num_tokens() == 4);
}

TEST_CASE("a text file is its bytes") {
  FakeFileSystem fs;
  fs.write_file("t.txt", "a\xff\n");
  const auto source = open_corpus(fs, "t.txt");
  CHECK(all_tokens(*source) == std::vector<int32_t>{'a', 255, '\n'});
  CHECK(source->max_token() == 255);
  CHECK(source->num_documents() == 1);
  CHECK_THROWS_WITH_AS(open_corpus(fs, "t.tx"), "t.tx: does not exist, did you mean 't.txt'?",
                       Error);
}

TEST_CASE("both missing files are reported together") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kU16);
  CHECK(failure(fs, "d/corpse") ==
        "d/corpse.idx: does not exist, did you mean 'corpus.idx'?\n"
        "d/corpse.bin: does not exist, did you mean 'corpus.bin'?");
}

TEST_CASE("a foreign or damaged header is named with its offset") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kU16);
  const std::string idx = "d/corpus.idx", good = fs.read_file(idx);
  fs.write_file(idx, "TNTIDX\0\0 and more");
  CHECK(failure(fs) ==
        "d/corpus.idx: offset 0: is \"TNTIDX\", must be \"MMIDIDX\\u0000\\u0000\" (no Megatron-LM "
        "index)");
  fs.write_file(idx, "");
  CHECK(failure(fs) ==
        "d/corpus.idx: has 0 bytes, must have at least 34 (the header is truncated)");
  fs.write_file(idx, good);
  poke<uint64_t>(fs, idx, 9, 2);
  poke<uint8_t>(fs, idx, 17, 6);
  poke<uint64_t>(fs, idx, 18, ~uint64_t{0});
  CHECK(failure(fs) ==
        "d/corpus.idx: offset 9: version is 2, must be 1\n"
        "d/corpus.idx: offset 17: dtype code is 6 (f64), must be 1 (u8), 2 (i8), 3 (i16), 4 (i32), "
        "5 (i64) "
        "or 8 (u16)\n"
        "d/corpus.idx: offset 18: 18446744073709551615 sequences take 12 bytes each, the file has "
        "106 bytes "
        "(truncated?)");
  fs.write_file(idx, good);
  poke<uint64_t>(fs, idx, 26, 4);
  CHECK(failure(fs) ==
        "d/corpus.idx: offset 26: 4 sequences and 4 document indices take 114 bytes, the file has "
        "106 "
        "(truncated?)");
  fs.write_file(idx, good + "12345");
  CHECK(failure(fs) ==
        "d/corpus.idx: has 111 bytes, must have 106 for 4 sequences and 3 document indices, or 110 "
        "with "
        "modes");
  fs.write_file(idx, good + "1234");
  CHECK(failure(fs) == "no error");
}

TEST_CASE("damaged lengths, pointers and documents are all reported") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kU16);
  const std::string idx = "d/corpus.idx", good = fs.read_file(idx);
  poke<int32_t>(fs, idx, kLengthsAt + 8, -1);
  CHECK(failure(fs) == "d/corpus.idx: offset 42: length of sequence 2 is -1, must not be negative");
  fs.write_file(idx, good);
  poke<int64_t>(fs, idx, kPointersAt + 16, 1'000'000);
  poke<int64_t>(fs, idx, kIndicesAt, 3);
  poke<int64_t>(fs, idx, kIndicesAt + 16, 5);
  fs.write_file("d/corpus.bin", "abc");
  CHECK(
      failure(fs) ==
      "d/corpus.idx: offset 66: pointer of sequence 2 is 1000000, must be 6 (sequences lie back to "
      "back)\n"
      "d/corpus.bin: has 3 bytes, must have 16 for the 8 tokens (u16) of d/corpus.idx (truncated)\n"
      "d/corpus.idx: offset 82: document index 0 is 3, must be 0\n"
      "d/corpus.idx: offset 90: document index 1 is 2, must not be below the one before, 3\n"
      "d/corpus.idx: offset 98: the last document index is 5, must be the number of sequences, 4");
}

TEST_CASE("many findings of one kind are counted, not listed") {
  FakeFileSystem fs;
  IndexedWriter writer(fs, "c", TokenType::kU8);
  for (int i = 0; i < 10; ++i) writer.add_sequence(std::vector<int32_t>{i});
  writer.finish();
  poke<int32_t>(fs, "c.idx", 34, 2);
  CHECK(failure(fs, "c") ==
        "c.idx: offset 82: pointer of sequence 1 is 1, must be 2 (sequences lie back to back)\n"
        "c.idx: offset 90: pointer of sequence 2 is 2, must be 3 (sequences lie back to back)\n"
        "c.idx: offset 98: pointer of sequence 3 is 3, must be 4 (sequences lie back to back)\n"
        "c.idx: and 6 more like these\n"
        "c.bin: has 10 bytes, must have 11 for the 11 tokens (u8) of c.idx (truncated)");
}

TEST_CASE("a token that is no token is an Error where it is read or written") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kI32);
  poke<int32_t>(fs, "d/corpus.bin", 8, -7);
  const auto source = open_indexed(fs, "d/corpus");
  CHECK_THROWS_WITH_AS(all_tokens(*source),
                       "d/corpus.bin: offset 8: token 2 is -7, must be from 0 to 2147483647",
                       Error);
  IndexedWriter writer(fs, "c", TokenType::kU8);
  CHECK_THROWS_WITH_AS(writer.add_sequence(std::vector<int32_t>{1, 256}),
                       "c.bin: token 1 of sequence 0 is 256, must be from 0 to 255 for u8", Error);
}

TEST_CASE("an interrupted writer leaves what was there, and nothing of its own") {
  FakeFileSystem fs;
  write_sample(fs, TokenType::kU16);
  const std::string bin = fs.read_file("d/corpus.bin"), idx = fs.read_file("d/corpus.idx");
  {
    IndexedWriter writer(fs, "d/corpus", TokenType::kU16);
    writer.add_sequence(kSequences[0]);
    CHECK(fs.read_file("d/corpus.bin") == bin);
  }
  CHECK(failure(fs) == "no error");
  CHECK(fs.read_file("d/corpus.bin") == bin);
  CHECK(fs.read_file("d/corpus.idx") == idx);
  CHECK(fs.list("d").size() == 2);
  // Whole, it takes the place of both.
  IndexedWriter writer(fs, "d/corpus", TokenType::kU16);
  writer.add_sequence(kSequences[0]);
  writer.finish();
  CHECK(fs.list("d").size() == 2);
  CHECK(all_tokens(*open_indexed(fs, "d/corpus")) == kSequences[0]);
}

TEST_CASE("new tokens are never read by the index of older ones, wherever a disk fails") {
  using Tokens = std::vector<int32_t>;
  const auto write = [](FileSystem& fs, const Tokens& first, const Tokens& second) {
    IndexedWriter writer(fs, "c", TokenType::kU8);
    for (const Tokens& document : {first, second}) {
      writer.add_sequence(document);
      writer.end_document();
    }
    writer.finish();
  };
  bool failed = true;
  for (int64_t n = 0; failed; ++n) {
    CAPTURE(n);
    FakeFileSystem fs;
    write(fs, {1, 2}, {3});
    fs.fail_at(fs.operations() + n);
    failed = false;
    try {
      write(fs, {4}, {5, 6});
    } catch (const RunError&) {
      failed = true;
    }
    fs.fail_at(-1);
    if (failure(fs, "c") != "no error") continue;
    const auto source = open_indexed(fs, "c");
    CHECK(source->document_end(0) == (all_tokens(*source)[0] == 1 ? 2 : 1));
  }
}

TEST_CASE("no truncation and no flipped byte of an index crashes the reader") {
  for (const TokenType type : {TokenType::kU8, TokenType::kU16, TokenType::kI32}) {
    FakeFileSystem fs;
    write_sample(fs, type);
    const std::string idx = "d/corpus.idx", good = fs.read_file(idx);
    const std::vector<int32_t> expected = all_tokens(*open_indexed(fs, "d/corpus"));
    const auto try_open = [&](const std::string& bytes) {
      fs.write_file(idx, bytes);
      try {
        const auto source = open_indexed(fs, "d/corpus");
        CHECK(all_tokens(*source) == expected);
        for (int64_t i = 0; i < source->num_documents(); ++i) CHECK(source->document_end(i) <= 8);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    for (size_t length = 0; length < good.size(); ++length)
      CHECK_FALSE(try_open(good.substr(0, length)));
    for (size_t at = 0; at < good.size(); ++at) {
      for (int flip = 1; flip < 256; ++flip) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ flip);
        try_open(bytes);
      }
    }
    const RngKey key{1, 0, rng_site("idx fuzz")};
    for (uint64_t i = 0; i < 5000; ++i) {
      std::string bytes = good;
      for (uint64_t k = 0; k < 4; ++k) {
        const uint32_t word = random_u32(key, 4 * i + k);
        bytes[word % bytes.size()] = static_cast<char>(word >> 24);
      }
      try_open(bytes);
    }
    fs.write_file(idx, good);
    const std::string bin = fs.read_file("d/corpus.bin");
    for (size_t length = 0; length < bin.size(); ++length) {
      fs.write_file("d/corpus.bin", bin.substr(0, length));
      CHECK(failure(fs) != "no error");
    }
  }
}

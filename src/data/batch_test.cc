#include "data/batch.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/test_close_to.h"
#include "data/indexed_dataset.h"

using namespace mw;
using namespace mw::data;

namespace {

struct Batch {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> samples;
};

Batch fill(const SampleSet& set, const SampleOrder& order, int64_t first, int64_t count) {
  Batch batch;
  batch.tokens.resize(count * set.sequence_length);
  batch.targets.resize(count * set.sequence_length);
  batch.samples.resize(count);
  fill_batch(set, order, first, count, 256,
             {batch.tokens.data(), batch.targets.data(), batch.samples.data()});
  return batch;
}

std::string text_of(int64_t size) {
  std::string text;
  for (int64_t i = 0; i < size; ++i) text += static_cast<char>(i * 7 + i / 256);
  return text;
}

std::unique_ptr<TokenSource> source_of(FileSystem& fs, int64_t size) {
  fs.write_file("corpus.txt", text_of(size));
  return open_text(fs, "corpus.txt");
}

}  // namespace

TEST_CASE("a corpus is told from another by its tokens, not by its name") {
  FakeFileSystem fs;
  const auto of = [&](const std::string& text, const std::string& path) {
    fs.write_file(path, text);
    return fingerprint(*open_text(fs, path));
  };
  for (const int64_t size : {0, 1, 16384, 16385, 49154, 100'000}) {
    CAPTURE(size);
    const std::string text = text_of(size), known = of(text, "a.txt");
    CHECK(of(text, "b.txt") == known);
    CHECK(of(text + "x", "a.txt") != known);
    for (const int64_t at : {int64_t{0}, size / 2, size - 1}) {
      if (at < 0 || at >= size) continue;
      std::string other = text;
      other[static_cast<size_t>(at)] ^= 1;
      CHECK(of(other, "a.txt") != known);
    }
  }
}

TEST_CASE("a corpus is told from another by where any of its documents ends") {
  FakeFileSystem fs;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  std::set<std::string> all;
  for (const std::vector<size_t>& ends :
       {std::vector<size_t>{6}, {1, 6}, {2, 6}, {1, 3, 6}, {1, 2, 6}, {1, 3, 4, 6}, {1, 3, 5, 6}}) {
    IndexedWriter writer(fs, "c", TokenType::kU8);
    size_t begin = 0;
    for (const size_t end : ends) {
      writer.add_sequence(std::span(tokens).subspan(begin, end - begin));
      writer.end_document();
      begin = end;
    }
    writer.finish();
    all.insert(fingerprint(*open_indexed(fs, "c")));
  }
  CHECK(all.size() == 7);
}

TEST_CASE("the range of a corpus is that of all its blocks") {
  FakeFileSystem fs;
  for (const size_t at : {size_t{5}, size_t{65535}, size_t{65536}, size_t{139'999}}) {
    std::string text(140'000, 'b');
    text[at] = 'z';
    text[139'999 - at] = 'a';
    fs.write_file("corpus.txt", text);
    const TokenRange range = scan_tokens(*open_text(fs, "corpus.txt"));
    CHECK(range.min == 'a');
    CHECK(range.max == 'z');
  }
}

TEST_CASE("a permutation is a bijection at every size") {
  for (int64_t size = 1; size < 300; ++size) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation permutation(42, epoch, size);
      std::vector<int> seen(size, 0);
      for (int64_t i = 0; i < size; ++i) ++seen[permutation(i)];
      REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
  }
  const int64_t size = 1'000'003;
  const Permutation permutation(1, 0, size);
  std::vector<bool> seen(size, false);
  for (int64_t i = 0; i < size; ++i) seen[permutation(i)] = true;
  CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
  const Permutation huge(1, 0, int64_t{1} << 62);
  CHECK(huge(0) != huge(1));
}

TEST_CASE("a permutation mixes: it has about one fixed point and no drift") {
  double fixed = 0, displacement = 0;
  const int64_t size = 1000;
  const int trials = 400;
  for (uint64_t seed = 0; seed < trials; ++seed) {
    const Permutation permutation(seed, 0, size);
    for (int64_t i = 0; i < size; ++i) {
      fixed += permutation(i) == i;
      displacement += std::abs(static_cast<double>(permutation(i) - i));
    }
  }
  // A random permutation has one fixed point and moves an element by size/3 on average.
  CHECK(fixed / trials == mw::test::close_to(1).epsilon(0.2));
  CHECK(displacement / trials / size == mw::test::close_to(size / 3.0).epsilon(0.02));
}

TEST_CASE("the positions of one sample over epochs and seeds are uniform") {
  const int64_t size = 7;
  const int trials = 14'000;
  std::vector<int> counts(size, 0);
  for (int epoch = 0; epoch < trials; ++epoch) ++counts[Permutation(5, epoch, size)(3)];
  for (const int count : counts) CHECK(count == mw::test::close_to(trials / 7.0).epsilon(0.1));
}

TEST_CASE("an order draws every sample once an epoch, differently in every epoch") {
  const SampleOrder order(3, 100);
  std::vector<int64_t> epochs[2];
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t sample = order.sample(100 * epoch + i);
      seen.insert(sample);
      epochs[epoch].push_back(sample);
    }
    CHECK(seen.size() == 100);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(order.epoch(199) == 1);
  CHECK(SampleOrder(4, 100).sample(0) * 100 + SampleOrder(4, 100).sample(1) !=
        order.sample(0) * 100 + order.sample(1));
  CHECK(SampleOrder::sequential(10).sample(23) == 3);
  // Frozen: a resumed run must find the same samples after an update of the program.
  CHECK(epochs[0][0] == 23);
  CHECK(epochs[0][1] == 2);
  CHECK(epochs[0][2] == 79);
  const SampleOrder larger(3, 1000);  // of an even number of bits
  CHECK(larger.sample(0) == 690);
  CHECK(larger.sample(1) == 9);
  CHECK(larger.sample(1000) == 138);
  const SampleOrder power(3, 64);  // the largest index has a bit less than the size
  CHECK(power.sample(0) == 42);
  CHECK(power.sample(1) == 26);
  CHECK(power.sample(64) == 3);
}

TEST_CASE("a batch is the same however it is split") {
  FakeFileSystem fs;
  const auto source = source_of(fs, 1000);
  const SampleSet set = split_samples(*source, 16, 0).train;
  CHECK(set.num_samples == 62);
  const SampleOrder order(9, set.num_samples);
  const Batch whole = fill(set, order, 5, 120);  // runs into the second epoch
  for (const int64_t piece : {1, 7, 40}) {
    Batch joined;
    for (int64_t first = 5; first < 125; first += piece) {
      const Batch part = fill(set, order, first, std::min<int64_t>(piece, 125 - first));
      joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
      joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
      joined.samples.insert(joined.samples.end(), part.samples.begin(), part.samples.end());
    }
    CHECK(joined.tokens == whole.tokens);
    CHECK(joined.targets == whole.targets);
    CHECK(joined.samples == whole.samples);
  }
}

TEST_CASE("targets are the inputs one further") {
  FakeFileSystem fs;
  const auto source = source_of(fs, 100);
  const std::string text = text_of(100);
  const SampleSet set = split_samples(*source, 8, 0).train;
  const Batch batch = fill(set, SampleOrder::sequential(set.num_samples), 0, set.num_samples);
  for (int64_t i = 0; i < set.num_samples * 8; ++i) {
    CHECK(batch.tokens[i] == static_cast<unsigned char>(text[i]));
    CHECK(batch.targets[i] == static_cast<unsigned char>(text[i + 1]));
  }
}

TEST_CASE("training and held-out samples share no token and waste less than a sample") {
  FakeFileSystem fs;
  for (const int64_t size : {18, 19, 25, 26, 100, 997, 1000}) {
    const auto source = source_of(fs, size);
    for (const double fraction : {0.01, 0.1, 0.5, 0.99}) {
      CAPTURE(size);
      CAPTURE(fraction);
      const SampleSplit split = split_samples(*source, 8, fraction);
      CHECK(split.train.num_samples >= 1);
      CHECK(split.valid.num_samples >= 1);
      const int64_t train_end = split.train.num_samples * 8 + 1;
      const int64_t valid_end = split.valid.first_token + split.valid.num_samples * 8 + 1;
      CHECK(train_end <= split.valid.first_token);
      CHECK(valid_end <= size);
      CHECK(size - valid_end < 8);
    }
  }
  const auto source = source_of(fs, 8002);
  CHECK(split_samples(*source, 8, 0.1).valid.num_samples == 100);
  CHECK(split_samples(*source, 8, 0).valid.num_samples == 0);
  CHECK(split_samples(*source, 8, 0.0126).valid.num_samples == 13);  // the nearest
}

TEST_CASE("a corpus that is too short is an Error that says the lengths") {
  FakeFileSystem fs;
  const auto source = source_of(fs, 12);
  CHECK_THROWS_WITH_AS(
      split_samples(*source, 128, 0),
      "corpus.txt: has 12 tokens, must have at least 129 for one sample of "
      "data.seq_len=128 (a sample is one token longer); use a longer text or data.seq_len=11 or "
      "less",
      Error);
  CHECK_THROWS_WITH_AS(
      split_samples(*source, 6, 0.1),
      "corpus.txt: has 12 tokens, must have at least 14 for one training and one held-out "
      "sample of data.seq_len=6 (a sample is one token longer); use a longer text or "
      "data.seq_len=5 or less",
      Error);
  CHECK(split_samples(*source, 11, 0).train.num_samples == 1);
  CHECK(split_samples(*source, 5, 0.1).valid.num_samples == 1);
  CHECK_THROWS_WITH_AS(split_samples(*source, 5, 1.0),
                       "data.valid_fraction=1 must be at least 0 and below 1", Error);
  const auto empty = source_of(fs, 0);
  CHECK_THROWS_WITH_AS(split_samples(*empty, 4, 0),
                       "corpus.txt: has 0 tokens, must have at least 5 for one sample of "
                       "data.seq_len=4 (a sample is one token longer); use a longer text",
                       Error);
}

TEST_CASE("a token outside the vocabulary is an Error that names it") {
  FakeFileSystem fs;
  IndexedWriter writer(fs, "c", TokenType::kU16);
  const std::vector<int32_t> tokens = {1, 2, 300, 4, 5, 6};
  writer.add_sequence(tokens);
  writer.finish();
  const auto source = open_indexed(fs, "c");
  const SampleSet set = split_samples(*source, 5, 0).train;
  const SampleOrder order = SampleOrder::sequential(1);
  CHECK_THROWS_WITH_AS(
      fill(set, order, 0, 1),
      "c.bin: token 2 is 300, must be below the model's vocabulary of 256; was the corpus "
      "made with another tokenizer?",
      Error);
}

TEST_CASE("the vocabulary ends before its size, for the last target too") {
  FakeFileSystem fs;
  IndexedWriter writer(fs, "c", TokenType::kU8);
  const std::vector<int32_t> wanted = {1, 2, 254, 4, 5, 255};
  writer.add_sequence(wanted);
  writer.finish();
  const auto source = open_indexed(fs, "c");
  const SampleSet set = split_samples(*source, 5, 0).train;
  const auto fill_with = [&](int64_t vocab_size) {
    std::vector<int32_t> tokens(5), targets(5);
    fill_batch(set, SampleOrder::sequential(1), 0, 1, vocab_size,
               {tokens.data(), targets.data(), nullptr});
  };
  CHECK_NOTHROW(fill_with(256));
  const auto text = [](int64_t token, int64_t value, int64_t vocab_size) {
    return fmt::format(
        "c.bin: token {} is {}, must be below the model's vocabulary of {}; was the corpus made "
        "with another tokenizer?",
        token, value, vocab_size);
  };
  CHECK_THROWS_WITH_AS(fill_with(255), text(5, 255, 255).c_str(), Error);
  CHECK_THROWS_WITH_AS(fill_with(254), text(2, 254, 254).c_str(), Error);
}

#include "pipeline/buffer_lives.h"

#include <random>

#include <doctest/doctest.h>

namespace mw::pipeline {
namespace {

// What buffer_uses says of itself, buffer by buffer.
std::vector<BufferUse> seen_one_by_one(const RankProgram& rank) {
  std::vector<BufferUse> uses(rank.buffers.size());
  for (size_t c = 0; c < rank.commands.size(); ++c) {
    for (const BufferId id : rank.commands[c].buffers) {
      BufferUse& use = uses[root_buffer(rank, id).index()];
      if (use.first < 0) use.first = static_cast<int32_t>(c);
      use.last = static_cast<int32_t>(c);
    }
  }
  return uses;
}

}  // namespace

TEST_CASE("a buffer's uses are the first and the last command that name it or a view of it") {
  std::mt19937 engine(7);
  const auto below = [&](size_t count) { return static_cast<size_t>(engine()) % count; };
  const auto buffer_below = [&](size_t count) {
    return BufferId(static_cast<int64_t>(below(count)));
  };
  for (int turn = 0; turn < 200; ++turn) {
    RankProgram rank;
    for (int b = 0; b < 12; ++b) {
      Buffer& buffer = rank.buffers.emplace_back();
      if (b < 8 || below(2) == 0) continue;
      buffer.storage.kind = Storage::Kind::kView;
      buffer.storage.parent = buffer_below(static_cast<size_t>(b));
    }
    for (int c = 0; c < 25; ++c) {
      Command& command = rank.commands.emplace_back();
      for (size_t left = 1 + below(6); left > 0; --left)
        command.buffers.push_back(buffer_below(12));
    }
    const std::vector<BufferUse> uses = buffer_uses(rank), wanted = seen_one_by_one(rank);
    REQUIRE(uses.size() == wanted.size());
    for (size_t b = 0; b < uses.size(); ++b) {
      CAPTURE(turn);
      CAPTURE(b);
      CHECK(uses[b].first == wanted[b].first);
      CHECK(uses[b].last == wanted[b].last);
    }
  }
}

TEST_CASE("what is alive at a command is the same of uses, of lists, and counted one by one") {
  std::mt19937 engine(11);
  const auto below = [&](size_t count) { return static_cast<size_t>(engine()) % count; };
  for (int turn = 0; turn < 50; ++turn) {
    Program program;
    program.channels = {
        {.name = "there", .from = 0, .to = 1, .type = {DType::kF32, {3}}, .slots = 2},
        {.name = "back", .from = 1, .to = 0, .type = {DType::kF32, {5}}, .slots = 1}};
    RankProgram& rank = program.ranks.emplace_back();
    for (int b = 0; b < 10; ++b) {
      Buffer& buffer = rank.buffers.emplace_back();
      buffer.layout = Shared<Layout>({{DType::kF32, {static_cast<int64_t>(1 + below(9))}}, {}, {}});
      buffer.storage.kind = b < 2 ? Storage::Kind::kState : Storage::Kind::kArena;
      buffer.category = static_cast<Category>(below(kCategories));
    }
    for (int c = 0; c < 12; ++c)
      rank.commands.emplace_back().buffers = {BufferId(static_cast<int64_t>(below(9)))};
    const std::vector<BufferUse> uses = buffer_uses(rank);  // nobody uses the last buffer
    const std::vector<int64_t> alive = alive_bytes(program, 0, uses);
    CHECK(alive == alive_bytes(buffer_lives(program, 0, uses), rank.commands.size()));
    REQUIRE(alive.size() == rank.commands.size());
    for (int32_t c = 0; c < 12; ++c) {
      int64_t wanted = 5 * 4;  // the slot that it receives in
      for (size_t b = 0; b < rank.buffers.size(); ++b) {
        if (b < 2 || (uses[b].first <= c && c <= uses[b].last))
          wanted += rank.buffers[b].bytes().value;
      }
      CAPTURE(turn);
      CHECK(alive[static_cast<size_t>(c)] == wanted);
    }
  }
}

TEST_CASE("what is alive is told by category, slots where they are received") {
  Program program;
  program.ranks.resize(2);
  program.channels = {{"y0", 0, 1, ir::make_type(DType::kF32, {4}), 3}};
  RankProgram& rank = program.ranks[0];
  for (const Category category :
       {Category::kActivations, Category::kBoundary, Category::kActivations}) {
    Buffer& buffer = rank.buffers.emplace_back();
    buffer.layout.edit().type = ir::make_type(DType::kF32, {2});
    buffer.category = category;
  }
  rank.commands.emplace_back().buffers = {BufferId(0), BufferId(1), BufferId(2)};
  const BufferLives lives = buffer_lives(program, 0);
  for (const std::vector<LiveBytes>& changes : {lives.born, lives.died}) {
    REQUIRE(changes.size() == 2);
    for (const LiveBytes& change : changes)
      CHECK(change.bytes == (change.category == Category::kActivations ? 16 : 8));
  }
  const auto slots = static_cast<size_t>(Category::kBoundary);
  CHECK(lives.fixed[slots] == 0);
  CHECK(buffer_lives(program, 1).fixed[slots] == 3 * 16);
}

}  // namespace mw::pipeline

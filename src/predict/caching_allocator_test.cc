#include "predict/caching_allocator.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "base/error.h"

using namespace mw;
using mw::cluster::Allocator;
using mw::predict::CachingAllocator;
using Block = CachingAllocator::Block;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Blocks by number, in MiB; "reserved" after each step.
struct Step {
  int block;
  int64_t allocates;  // MiB; 0: releases
  int64_t reserved;   // MiB
  int stream = 0;
};
void replay(Allocator kind, int64_t capacity, const std::vector<Step>& steps) {
  CachingAllocator allocator(kind, Bytes(capacity * kMiB));
  std::vector<Block> blocks(16);
  for (size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    const Step& step = steps[i];
    Block& block = blocks[static_cast<size_t>(step.block)];
    if (step.allocates > 0) {
      block = allocator.allocate(step.allocates * kMiB, step.stream);
    } else {
      allocator.release(block);
    }
    CHECK(allocator.reserved().value == step.reserved * kMiB);
  }
}

}  // namespace

TEST_CASE("segments are as large as what was asked for, and do not join") {
  replay(Allocator::kSegments, 1000,
         {{0, 3, 20},   // less than 10 MiB: a segment of 20
          {1, 16, 20},  // in what is left of it
          {2, 15, 36},  // rounded to 2 MiB, and what is left, 1 MiB, is not split off
          {3, 15, 52},
          {2, 0, 52},
          {3, 0, 52},
          {4, 30, 82},  // 2 and 3 are free, and apart
          {5, 15, 82}});
}

TEST_CASE("segments side by side stay apart, whichever is freed first") {
  for (const int first : {0, 1}) {
    replay(Allocator::kSegments, 1000,
           {{0, 16, 16}, {1, 16, 32}, {first, 0, 32}, {1 - first, 0, 32}, {2, 30, 62}});
  }
}

TEST_CASE("10 MiB are a segment of their own, and a small block leaves as little as 512 bytes") {
  replay(Allocator::kSegments, 1000, {{0, 10, 10}, {1, 9, 30}});
  CachingAllocator allocator(Allocator::kSegments, Bytes(1000 * kMiB));
  for (const int64_t bytes : {kMiB, kMiB - 512, int64_t{512}}) allocator.allocate(bytes, 0);
  CHECK(allocator.reserved().value == 2 * kMiB);
}

TEST_CASE("what is free is kept as long as all has just room, and the most is remembered") {
  replay(Allocator::kSegments, 100, {{0, 16, 16}, {1, 64, 80}, {0, 0, 80}, {2, 20, 100}});
  CachingAllocator allocator(Allocator::kSegments, Bytes(100 * kMiB));
  allocator.release(allocator.allocate(90 * kMiB, 0));
  allocator.allocate(16 * kMiB, 1);
  CHECK(allocator.reserved().value == 16 * kMiB);
  CHECK(allocator.most_reserved().value == 90 * kMiB);
}

TEST_CASE("the last free block, which can grow, is left alone as long as another fits") {
  replay(Allocator::kExpandable, 1000,
         {{0, 6, 20},
          {1, 9, 20},     // 5 MiB are left at the end
          {0, 0, 20},     // 6 MiB before
          {2, 4, 20},     // there
          {3, 22, 40}});  // at the end, with a page more
}

TEST_CASE("an expandable segment grows behind its last free block") {
  replay(Allocator::kExpandable, 1000,
         {{0, 3, 20},
          {1, 16, 20},
          {2, 15, 40},  // 1 MiB is left of the first page
          {3, 15, 60},
          {2, 0, 60},
          {3, 0, 60},
          {4, 30, 60},  // where 2 and 3 were
          {5, 12, 80},  // 11 MiB are left
          {4, 0, 80},
          {6, 20, 80},     // in the hole
          {7, 25, 100},    // the 10 MiB that are left of it do not do
          {8, 10, 100}});  // now they do
}

TEST_CASE("what a stream has freed no other gets, and small blocks are apart") {
  for (const Allocator kind : {Allocator::kSegments, Allocator::kExpandable}) {
    replay(
        kind, 1000,
        {{0, 40, 40}, {0, 0, 40}, {1, 40, 80, 1}, {2, 40, 80}, {3, 1, 82}, {4, 1, 82}, {5, 1, 84}});
  }
}

TEST_CASE("what is free goes back where the device has no room") {
  replay(
      Allocator::kSegments, 100,
      {{0, 40, 40}, {1, 40, 80}, {0, 0, 80}, {2, 50, 90}, {3, 40, 130}, {1, 0, 130}, {4, 45, 136}});
  // Pages inside a free block: of the first 40 MiB all, and they are the first to be mapped again.
  replay(Allocator::kExpandable, 100,
         {{0, 40, 40},
          {1, 40, 80},
          {0, 0, 80},
          {2, 60, 100},
          {3, 20, 120},
          {4, 20, 140},
          {1, 0, 140},
          {5, 60, 160}});
}

TEST_CASE("a free block at the end that grows takes room for what it lacks alone") {
  // 41 MiB are 20 that are free and two pages, for which there is room: nothing goes back.
  replay(Allocator::kExpandable, 130,
         {{0, 40, 40}, {1, 20, 60}, {2, 20, 80}, {2, 0, 80}, {0, 0, 80}, {3, 41, 120}});
}

TEST_CASE("blocks never overlap, and all that is reserved is in use or free") {
  std::mt19937 random(7);
  for (const Allocator kind : {Allocator::kSegments, Allocator::kExpandable}) {
    for (int run = 0; run < 30; ++run) {
      CAPTURE(run);
      const int64_t capacity = run % 2 == 0 ? 400 * kMiB : int64_t{1} << 40;
      CachingAllocator allocator(kind, Bytes(capacity));
      struct Live {
        Block block;
        int64_t bytes;
      };
      std::vector<Live> live;
      int64_t asked = 0;
      for (int step = 0; step < 400; ++step) {
        if (live.empty() || random() % 5 < 3) {
          const int64_t bytes = random() % 3 == 0 ? static_cast<int64_t>(1 + random() % (2 * kMiB))
                                                  : static_cast<int64_t>(random() % (60 * kMiB));
          live.push_back({allocator.allocate(bytes, static_cast<int32_t>(random() % 2)), bytes});
          asked += bytes;
        } else {
          const size_t i = random() % live.size();
          allocator.release(live[i].block);
          asked -= live[i].bytes;
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
        REQUIRE(allocator.allocated().value >= asked);
        REQUIRE(allocator.reserved() >= allocator.allocated());
        REQUIRE(allocator.most_reserved() >= allocator.reserved());
        for (size_t a = 0; a < live.size(); ++a) {
          for (size_t b = 0; b < a; ++b) {
            const CachingAllocator::Place x = allocator.place(live[a].block);
            const CachingAllocator::Place y = allocator.place(live[b].block);
            if (x.pool < 0 || x.pool != y.pool) continue;
            const bool apart =
                x.address + live[a].bytes <= y.address || y.address + live[b].bytes <= x.address;
            REQUIRE(apart);
          }
        }
      }
      for (const Live& one : live) allocator.release(one.block);
      CHECK(allocator.allocated().value == 0);
      // One block that has no room beside what is kept: all of it goes back.
      const Block last = allocator.allocate(int64_t{1} << 41, 0);
      CHECK(allocator.reserved().value - (int64_t{1} << 41) < 40 * kMiB);
      allocator.release(last);
    }
  }
}

TEST_CASE("what was not given out is not taken back") {
  CachingAllocator allocator(Allocator::kSegments, Bytes(100 * kMiB));
  const Block block = allocator.allocate(2 * kMiB, 0);
  allocator.release(block);
  CHECK_THROWS_AS(allocator.release(block), CheckFailure);
  CHECK(allocator.allocate(0, 0) == -1);
}

#include "predict/caching_allocator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/round.h"

namespace mw::predict {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kUnit = 512;         // every block is a multiple
constexpr int64_t kSmallBlock = kMiB;  // at most this: of the small pool
constexpr int64_t kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB;
constexpr int64_t kOwnSegment = 10 * kMiB;  // from here on a segment is what was asked for,
constexpr int64_t kSegmentUnit = 2 * kMiB;  // rounded to this
constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 4;

}  // namespace

CachingAllocator::CachingAllocator(cluster::Allocator kind, Bytes capacity)
    : kind_(kind), capacity_(capacity.value) {
  MW_CHECK(kind != cluster::Allocator::kPlan, "no allocator");
}

CachingAllocator::Pool& CachingAllocator::pool(int32_t index) {
  const auto [it, is_new] = pools_.try_emplace(index);
  if (is_new) it->second.page = index % 2 == 1 ? kSmallSegment : kLargeSegment;
  return it->second;
}

CachingAllocator::Place CachingAllocator::place(Block block) const {
  if (block < 0) return {};
  return {part(block).pool, part(block).address};
}

void CachingAllocator::write_layout(std::vector<int64_t>& to) const {
  for (const auto& [index, pool] : pools_) {
    to.push_back(-1 - index);
    to.push_back(pool.end);
    for (Block block = pool.last; block >= 0; block = part(block).before) {
      to.push_back(4 * part(block).bytes + static_cast<int64_t>(part(block).state));
      to.push_back(part(block).begins_segment ? 1 : 0);
    }
  }
}

CachingAllocator::Block CachingAllocator::allocate(int64_t bytes, int32_t stream) {
  if (bytes <= 0) return -1;
  bytes = round_up(bytes, kUnit);
  const int32_t index = 2 * stream + (bytes <= kSmallBlock ? 1 : 0);
  Block block = best_fit(pool(index), bytes);
  if (block < 0) {
    block = kind_ == cluster::Allocator::kExpandable ? map_pages(index, bytes)
                                                     : new_segment(index, bytes);
  }
  unset_free(block);
  split(block, bytes);
  part(block).state = State::kUsed;
  allocated_ += part(block).bytes;
  return block;
}

void CachingAllocator::release(Block block) {
  if (block < 0) return;
  MW_CHECK(static_cast<size_t>(block) < parts_.size() && part(block).state == State::kUsed,
           "block {} is not given out", block);
  allocated_ -= part(block).bytes;
  const Block behind = part(block).behind, before = part(block).before;
  if (behind >= 0 && part(behind).state == State::kFree && !part(behind).begins_segment) {
    unset_free(behind);
    take_in_behind(block);
  }
  if (before >= 0 && part(before).state == State::kFree && !part(block).begins_segment) {
    unset_free(before);
    take_in_behind(before);
    block = before;
  }
  set_free(block);
}

// Behind `before`, or as the first.
CachingAllocator::Block CachingAllocator::add_part(int32_t pool, Block before, int64_t bytes,
                                                   State state) {
  Block made = static_cast<Block>(parts_.size());
  if (unused_.empty()) {
    parts_.emplace_back();
  } else {
    made = unused_.back();
    unused_.pop_back();
  }
  Part& to = part(made);
  to = {.bytes = bytes, .before = before, .pool = pool, .state = state};
  if (before >= 0) {
    to.address = part(before).address + part(before).bytes;
    to.behind = part(before).behind;
    part(before).behind = made;
  }
  if (to.behind >= 0) {
    part(to.behind).before = made;
  } else {
    pools_[pool].last = made;
  }
  return made;
}

void CachingAllocator::remove_part(Block block) {
  const Part& gone = part(block);
  if (gone.before >= 0) part(gone.before).behind = gone.behind;
  if (gone.behind >= 0) {
    part(gone.behind).before = gone.before;
  } else {
    pool_of(block).last = gone.before;
  }
  part(block).state = State::kFree;
  unused_.push_back(block);
}

// The next part becomes part of this one.
void CachingAllocator::take_in_behind(Block block) {
  const Block behind = part(block).behind;
  part(block).bytes += part(behind).bytes;
  remove_part(behind);
}

// The first free part that is no smaller.
std::vector<CachingAllocator::Free>::iterator CachingAllocator::by_size(Pool& pool, int64_t bytes,
                                                                        int64_t address) {
  return std::lower_bound(pool.free.begin(), pool.free.end(), std::pair(bytes, address),
                          [](const Free& free, const std::pair<int64_t, int64_t>& least) {
                            return std::pair(free.bytes, free.address) < least;
                          });
}
void CachingAllocator::set_free(Block block) {
  Pool& in = pool_of(block);
  part(block).state = State::kFree;
  const Free free{part(block).bytes, part(block).address, block};
  in.free.insert(by_size(in, free.bytes, free.address), free);
}
void CachingAllocator::unset_free(Block block) {
  Pool& in = pool_of(block);
  in.free.erase(by_size(in, part(block).bytes, part(block).address));
}
void CachingAllocator::set_unmapped(Block block) {
  Parts& parts = pool_of(block).unmapped;
  part(block).state = State::kUnmapped;
  parts.insert(
      std::upper_bound(parts.begin(), parts.end(), block,
                       [&](Block a, Block b) { return part(a).address < part(b).address; }),
      block);
}
void CachingAllocator::unset_unmapped(Block block) {
  Parts& parts = pool_of(block).unmapped;
  parts.erase(std::find(parts.begin(), parts.end(), block));
}

// The smallest free part that is large enough. One that could grow counts as what it could grow
// to, so that it is left alone as long as others fit.
CachingAllocator::Block CachingAllocator::best_fit(const Pool& from, int64_t bytes) {
  auto it = std::lower_bound(from.free.begin(), from.free.end(), bytes,
                             [](const Free& free, int64_t least) { return free.bytes < least; });
  if (it == from.free.end()) return -1;
  int64_t most = grown(from, it->block);
  for (auto next = std::next(it); next != from.free.end(); ++next) {
    const int64_t more = grown(from, next->block);
    if (more >= most) break;
    it = next;
    most = more;
  }
  return it->block;
}
int64_t CachingAllocator::grown(const Pool& in, Block block) const {
  const Part& free = part(block);
  if (kind_ != cluster::Allocator::kExpandable) return free.bytes;
  if (block == in.last) return kEndless;
  const Part& behind = part(free.behind);
  return free.bytes + (behind.state == State::kUnmapped ? behind.bytes : 0);
}

// What is left of a part that is given out becomes a free one, if it is large enough.
void CachingAllocator::split(Block block, int64_t bytes) {
  const int64_t rest = part(block).bytes - bytes;
  const bool fine = kind_ == cluster::Allocator::kExpandable || part(block).pool % 2 == 1;
  if (fine ? rest < kUnit : rest <= kSmallBlock) return;
  part(block).bytes = bytes;
  set_free(add_part(part(block).pool, block, rest, State::kFree));
}

CachingAllocator::Block CachingAllocator::new_segment(int32_t index, int64_t bytes) {
  const int64_t segment = index % 2 == 1        ? kSmallSegment
                          : bytes < kOwnSegment ? kLargeSegment
                                                : round_up(bytes, kSegmentUnit);
  make_room(segment);
  reserve(segment);
  Pool& to = pool(index);
  const Block made = add_part(index, to.last, segment, State::kFree);
  part(made).begins_segment = true;
  part(made).address = to.end;
  to.end += segment;
  set_free(made);
  return made;
}

// Where as many bytes lie together that are free or not mapped, the lowest address first: from a
// free part before what is not mapped. There is always room at the end.
CachingAllocator::Block CachingAllocator::place_to_map(int32_t index, int64_t bytes) {
  Pool& in = pool(index);
  for (const Block unmapped : in.unmapped) {
    const Block before = part(unmapped).before;
    const Block from = before >= 0 && part(before).state == State::kFree ? before : unmapped;
    int64_t room = 0;
    for (Block at = from; room < bytes && at >= 0 && part(at).state != State::kUsed;
         at = part(at).behind)
      room += part(at).bytes;
    if (room >= bytes) return from;
  }
  const Block last = in.last;
  const bool free = last >= 0 && part(last).state == State::kFree;
  const int64_t more = round_up(bytes - (free ? part(last).bytes : 0), in.page);
  const Block made = add_part(index, last, more, State::kUnmapped);
  in.end += more;
  set_unmapped(made);
  return free ? last : made;
}

// The first pages of a part that is not mapped, as many as hold `bytes`. It is in no list then.
void CachingAllocator::map_front(Block block, int64_t bytes) {
  unset_unmapped(block);
  const int64_t all = part(block).bytes;
  const int64_t mapped = std::min(all, round_up(bytes, pool_of(block).page));
  part(block).bytes = mapped;
  if (mapped < all) set_unmapped(add_part(part(block).pool, block, all - mapped, State::kUnmapped));
  part(block).state = State::kFree;
  reserve(mapped);
}

// A free part of at least so many bytes, made of what is there and of new pages.
CachingAllocator::Block CachingAllocator::map_pages(int32_t index, int64_t bytes) {
  int64_t there = 0;
  for (Block at = place_to_map(index, bytes); at >= 0 && part(at).state != State::kUsed;
       at = part(at).behind)
    there += part(at).state == State::kFree ? part(at).bytes : 0;
  make_room(round_up(std::max<int64_t>(0, bytes - there), pool(index).page));
  const Block block = place_to_map(index, bytes);
  if (part(block).state == State::kFree) {
    unset_free(block);
  } else {
    map_front(block, bytes);
  }
  while (part(block).bytes < bytes) {
    const Block behind = part(block).behind;
    if (part(behind).state == State::kFree) {
      unset_free(behind);
    } else {
      map_front(behind, bytes - part(block).bytes);
    }
    take_in_behind(block);
  }
  set_free(block);
  return block;
}

void CachingAllocator::make_room(int64_t bytes) {
  if (reserved_ + bytes <= capacity_) return;
  const bool expandable = kind_ == cluster::Allocator::kExpandable;
  for (auto& [index, pool] : pools_) {
    // None smaller has a page or is a segment.
    const std::vector<Free> all(by_size(pool, expandable ? pool.page : kSegmentUnit, 0),
                                pool.free.end());
    for (const auto& [bytes, address, block] : all) {
      if (expandable) {
        unmap(block);
      } else {
        give_back(block);
      }
    }
  }
}

void CachingAllocator::reserve(int64_t bytes) {
  reserved_ += bytes;
  most_reserved_ = std::max(most_reserved_, reserved_);
}

// A segment in which nothing is given out.
void CachingAllocator::give_back(Block block) {
  const Part& free = part(block);
  if (!free.begins_segment || (free.behind >= 0 && !part(free.behind).begins_segment)) return;
  reserved_ -= free.bytes;
  unset_free(block);
  remove_part(block);
}

// The pages that lie inside a free part.
void CachingAllocator::unmap(Block block) {
  const int64_t page = pool_of(block).page;
  const int64_t begin = part(block).address, end = begin + part(block).bytes;
  const int64_t first = round_up(begin, page), last = end / page * page;
  if (first >= last) return;
  unset_free(block);
  reserved_ -= last - first;
  Block hole = block;
  if (begin < first) {
    part(block).bytes = first - begin;
    set_free(block);
    hole = add_part(part(block).pool, block, last - first, State::kUnmapped);
  } else {
    part(hole).bytes = last - first;
  }
  if (last < end) set_free(add_part(part(hole).pool, hole, end - last, State::kFree));
  // Neighbours that are not mapped either are one part with it.
  if (const Block behind = part(hole).behind;
      behind >= 0 && part(behind).state == State::kUnmapped) {
    unset_unmapped(behind);
    take_in_behind(hole);
  }
  if (const Block before = part(hole).before;
      before >= 0 && part(before).state == State::kUnmapped) {
    take_in_behind(before);
  } else {
    set_unmapped(hole);
  }
}

}  // namespace mw::predict

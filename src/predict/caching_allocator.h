// What PyTorch's caching allocator takes from a device: more than is alive, since what is freed
// stays with its stream and is given out again in pieces.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.h"
#include "cluster/hardware.h"

namespace mw::predict {

// [PyTorch c10/cuda/CUDACachingAllocator.cpp] The block of its stream that fits best is given out,
// and split; blocks of up to 1 MiB are apart from larger ones. Without expandable segments a
// segment is 2 MiB for small blocks, 20 MiB for those of up to 10 MiB, else as large as what was
// asked for; blocks of different segments never join. With them a stream has one segment that grows
// by pages of 20 MiB (2 MiB for small blocks). Where the device has no room, what is free goes back
// to it.
class CachingAllocator {
 public:
  // `capacity`: of the device.
  CachingAllocator(cluster::Allocator kind, Bytes capacity);

  using Block = int32_t;  // -1: of no bytes
  Block allocate(int64_t bytes, int32_t stream);
  // REQUIRES: allocated, and not yet released.
  void release(Block block);

  // Taken from the device: beyond `capacity` where even without what is free there is no room.
  Bytes reserved() const { return Bytes(reserved_); }
  Bytes most_reserved() const { return Bytes(most_reserved_); }
  // Given out, rounded to 512 bytes or to the block.
  Bytes allocated() const { return Bytes(allocated_); }
  // Where a block begins among those of its stream and kind (small ones, large ones).
  struct Place {
    int32_t pool = -1;
    int64_t address = 0;
  };
  Place place(Block block) const;
  // What will be given out depends on this alone: the parts of every pool, in order.
  void write_layout(std::vector<int64_t>& to) const;

 private:
  enum class State : uint8_t { kUsed, kFree, kUnmapped };
  using Parts = std::vector<Block>;
  struct Free {
    int64_t bytes = 0, address = 0;
    Block block = -1;
  };
  // Parts of a pool's addresses, each linked with its neighbours.
  struct Part {
    int64_t bytes = 0, address = 0;
    Block before = -1, behind = -1;
    int32_t pool = 0;
    State state = State::kFree;
    bool begins_segment = false;
  };
  // Of one stream, of small blocks or large ones.
  struct Pool {
    std::vector<Free> free;  // by bytes, then address
    Parts unmapped;          // by address
    Block last = -1;
    int64_t end = 0;   // addresses behind it were never given out
    int64_t page = 0;  // of an expandable segment
  };

  Part& part(Block block) { return parts_[static_cast<size_t>(block)]; }
  const Part& part(Block block) const { return parts_[static_cast<size_t>(block)]; }
  Pool& pool(int32_t index);
  Pool& pool_of(Block block) { return pools_.find(part(block).pool)->second; }
  static std::vector<Free>::iterator by_size(Pool& pool, int64_t bytes, int64_t address);

  Block add_part(int32_t pool, Block before, int64_t bytes, State state);
  void remove_part(Block block);
  void set_free(Block block);
  void unset_free(Block block);
  void set_unmapped(Block block);
  void unset_unmapped(Block block);
  void take_in_behind(Block block);

  Block best_fit(const Pool& pool, int64_t bytes);
  int64_t grown(const Pool& pool, Block block) const;
  void split(Block block, int64_t bytes);
  Block new_segment(int32_t index, int64_t bytes);
  Block map_pages(int32_t index, int64_t bytes);
  Block place_to_map(int32_t index, int64_t bytes);
  void map_front(Block block, int64_t bytes);
  void make_room(int64_t bytes);
  void reserve(int64_t bytes);
  void give_back(Block block);
  void unmap(Block block);

  cluster::Allocator kind_;
  int64_t capacity_;
  int64_t reserved_ = 0, most_reserved_ = 0, allocated_ = 0;
  std::map<int32_t, Pool> pools_;  // twice the stream, and 1 for small blocks
  std::vector<Part> parts_;
  std::vector<Block> unused_;  // of parts_
};

}  // namespace mw::predict

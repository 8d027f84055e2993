#include "pipeline/buffer_lives.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace mw::pipeline {
namespace {

void merge(std::vector<LiveBytes>& changes) {
  std::sort(changes.begin(), changes.end(), [](const LiveBytes& a, const LiveBytes& b) {
    return std::tie(a.command, a.category) < std::tie(b.command, b.category);
  });
  size_t kept = 0;
  for (const LiveBytes& change : changes) {
    LiveBytes* last = kept == 0 ? nullptr : &changes[kept - 1];
    if (last != nullptr && last->command == change.command && last->category == change.category) {
      last->bytes += change.bytes;
    } else {
      changes[kept++] = change;
    }
  }
  changes.resize(kept);
}

// Of the bytes that are alive, from command to command.
class Changes {
 public:
  explicit Changes(size_t commands) : at_(commands + 1, 0) {}
  void always(int64_t bytes) { at_[0] += bytes; }
  void begin(int32_t command, int64_t bytes) { at_[static_cast<size_t>(command)] += bytes; }
  void end(int32_t command, int64_t bytes) { at_[static_cast<size_t>(command) + 1] -= bytes; }
  // [command]
  std::vector<int64_t> sums() && {
    std::partial_sum(at_.begin(), at_.end(), at_.begin());
    at_.pop_back();
    return std::move(at_);
  }

 private:
  std::vector<int64_t> at_;
};

// The states and slots of a rank to fixed(category, bytes), what its step makes to
// made(use, category, bytes).
template <typename Fixed, typename Made>
void each_held(const Program& program, size_t rank, const std::vector<BufferUse>& uses,
               const Fixed& fixed, const Made& made) {
  const RankProgram& from = program.ranks[rank];
  for (size_t b = 0; b < uses.size(); ++b) {
    const Buffer& buffer = from.buffers[b];
    if (buffer.storage.kind == Storage::Kind::kState) {
      fixed(buffer.category, buffer.bytes().value);
    } else if (buffer.storage.kind == Storage::Kind::kArena && uses[b].first >= 0) {
      made(uses[b], buffer.category, buffer.bytes().value);
    }
  }
  for (const Channel& channel : program.channels) {
    if (channel.to == static_cast<int32_t>(rank))
      fixed(Category::kBoundary, channel.type.bytes().value * channel.slots);
  }
}

}  // namespace

// Views are few, and small numbers are read faster than buffers.
BufferUses::BufferUses(const RankProgram& rank)
    : root_(rank.buffers.size()), uses_(rank.buffers.size()) {
  for (size_t b = 0; b < root_.size(); ++b) {
    const bool is_view = rank.buffers[b].storage.kind == Storage::Kind::kView;
    root_[b] =
        is_view ? root_buffer(rank, rank.buffers[b].storage.parent).value : static_cast<int32_t>(b);
  }
}

std::vector<BufferUse> buffer_uses(const RankProgram& rank) {
  BufferUses uses(rank);
  for (size_t c = 0; c < rank.commands.size(); ++c)
    uses.see(static_cast<int32_t>(c), rank.commands[c]);
  return uses.take();
}

BufferLives buffer_lives(const Program& program, size_t rank) {
  return buffer_lives(program, rank, buffer_uses(program.ranks[rank]));
}

BufferLives buffer_lives(const Program& program, size_t rank, const std::vector<BufferUse>& uses) {
  BufferLives lives;
  lives.born.reserve(uses.size());
  lives.died.reserve(uses.size());
  each_held(
      program, rank, uses,
      [&](Category category, int64_t bytes) {
        lives.fixed[static_cast<size_t>(category)] += bytes;
      },
      [&](const BufferUse& use, Category category, int64_t bytes) {
        lives.born.push_back({use.first, category, bytes});
        lives.died.push_back({use.last, category, bytes});
      });
  merge(lives.born);
  merge(lives.died);
  return lives;
}

std::vector<int64_t> alive_bytes(const Program& program, size_t rank,
                                 const std::vector<BufferUse>& uses) {
  Changes changes(program.ranks[rank].commands.size());
  each_held(
      program, rank, uses, [&](Category, int64_t bytes) { changes.always(bytes); },
      [&](const BufferUse& use, Category, int64_t bytes) {
        changes.begin(use.first, bytes);
        changes.end(use.last, bytes);
      });
  return std::move(changes).sums();
}

std::vector<int64_t> alive_bytes(const BufferLives& lives, size_t commands) {
  Changes changes(commands);
  for (const int64_t bytes : lives.fixed) changes.always(bytes);
  for (const LiveBytes& born : lives.born) changes.begin(born.command, born.bytes);
  for (const LiveBytes& died : lives.died) changes.end(died.command, died.bytes);
  return std::move(changes).sums();
}

BufferId root_buffer(const RankProgram& rank, BufferId id) {
  while (rank.buffers[id.index()].storage.kind == Storage::Kind::kView)
    id = rank.buffers[id.index()].storage.parent;
  return id;
}

int64_t workspace_end(const Fragment& fragment) {
  int64_t end = 0;
  for (size_t v = 0; v < fragment.workspace_offset.size(); ++v) {
    if (fragment.workspace_offset[v] == Fragment::kNotPlanned) continue;
    end = std::max(end, fragment.workspace_offset[v] + fragment.graph.values[v].type.bytes().value);
  }
  return end;
}

}  // namespace mw::pipeline

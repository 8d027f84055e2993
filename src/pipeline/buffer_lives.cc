#include "pipeline/buffer_lives.h"

#include <algorithm>
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

}  // namespace

// Views are few, and small numbers are read faster than buffers.
BufferUses::BufferUses(const RankProgram& rank)
    : root_(rank.buffers.size()), uses_(rank.buffers.size()) {
  for (size_t b = 0; b < root_.size(); ++b)
    root_[b] = root_buffer(rank, BufferId(static_cast<int32_t>(b))).value;
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
  const RankProgram& from = program.ranks[rank];
  BufferLives lives;
  lives.born.reserve(uses.size());
  lives.died.reserve(uses.size());
  for (size_t b = 0; b < uses.size(); ++b) {
    const Buffer& buffer = from.buffers[b];
    if (buffer.storage.kind == Storage::Kind::kState) {
      lives.fixed[static_cast<size_t>(buffer.category)] += buffer.bytes().value;
    } else if (buffer.storage.kind == Storage::Kind::kArena && uses[b].first >= 0) {
      const int64_t bytes = buffer.bytes().value;
      lives.born.push_back({uses[b].first, buffer.category, bytes});
      lives.died.push_back({uses[b].last, buffer.category, bytes});
    }
  }
  for (const Channel& channel : program.channels) {
    if (channel.to == static_cast<int32_t>(rank))
      lives.fixed[static_cast<size_t>(Category::kBoundary)] +=
          channel.type.bytes().value * channel.slots;
  }
  merge(lives.born);
  merge(lives.died);
  return lives;
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

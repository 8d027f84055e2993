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

BufferLives buffer_lives(const Program& program, size_t rank) {
  const RankProgram& from = program.ranks[rank];
  const size_t buffers = from.buffers.size();
  std::vector<int32_t> first(buffers, -1), last(buffers, -1);
  for (size_t c = 0; c < from.commands.size(); ++c) {
    for (const BufferId id : from.commands[c].buffers) {
      const size_t b = root_buffer(from, id).index();
      if (first[b] < 0) first[b] = static_cast<int32_t>(c);
      last[b] = static_cast<int32_t>(c);
    }
  }
  BufferLives lives;
  for (size_t b = 0; b < buffers; ++b) {
    const Buffer& buffer = from.buffers[b];
    const int64_t bytes = buffer.bytes().value;
    if (buffer.storage.kind == Storage::Kind::kState) {
      lives.fixed[static_cast<size_t>(buffer.category)] += bytes;
    } else if (buffer.storage.kind == Storage::Kind::kArena && first[b] >= 0) {
      lives.born.push_back({first[b], buffer.category, bytes});
      lives.died.push_back({last[b], buffer.category, bytes});
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

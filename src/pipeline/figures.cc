#include "pipeline/figures.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "pipeline/buffer_lives.h"
#include "pipeline/groups.h"
#include "pipeline/verify.h"
#include "pipeline/volume.h"

namespace mw::pipeline {
namespace {

class FigureMaker {
 public:
  FigureMaker(const Checked& checked, int32_t r)
      : checked_(checked),
        program_(checked.program),
        rank_(checked.rank(r)),
        r_(r),
        traffic_(program_.fragments.size()) {}

  RankFigures make() {
    OrderHash hash;
    for (size_t c = 0; c < rank_.commands.size(); ++c) {
      const Command& command = rank_.commands[c];
      if (command.kind == Command::Kind::kPublish) publish(command);
      if (command.kind == Command::Kind::kLoad) reach(command.buffers[0]);
      if (command.kind != Command::Kind::kCall) continue;
      const auto& ops = checked_.fragment(command).graph.ops;
      for (size_t o = 0; o < ops.size(); ++o)
        hash.add(static_cast<int64_t>(c), static_cast<int64_t>(o), ops[o].kind);
      figures_.instructions += static_cast<int64_t>(ops.size());
      call(command);
    }
    figures_.order_hash = hash.value();
    figures_.state_bytes = rank_.state_arena;
    find_peak();
    return std::move(figures_);
  }

 private:
  struct Traffic {
    std::string group;
    Bytes sent;
  };

  void publish(const Command& command) {
    const Bytes bytes = program_.channels[static_cast<size_t>(command.channel)].type.bytes();
    figures_.bytes_sent += bytes;
    figures_.bytes_by_group["pp"] += bytes;
  }

  void call(const Command& command) {
    const FragmentInfo& info = checked_.info_of(command);
    std::optional<std::vector<Traffic>>& traffic = traffic_[command.fragment.index()];
    if (!traffic) {
      traffic.emplace();
      for (const CollectiveInfo& collective : info.collectives) {
        const int64_t n = std::max<int64_t>(1, group_size(program_, *collective.group));
        if (n > 1)
          traffic->push_back({group_label(*collective.group),
                              collective_volume(collective.kind, collective.whole, n)});
      }
    }
    for (const Traffic& t : *traffic) {
      figures_.bytes_sent += t.sent;
      figures_.bytes_by_group[t.group] += t.sent;
      ++figures_.collectives_by_group[t.group];
    }
    for (size_t p = 0; p < info.ports.size(); ++p) {
      if (info.uses[p].touched) reach(command.buffers[p]);
    }
    if (info.workspace_end > 0) reach(command.workspace_offset + info.workspace_end);
  }

  void reach(BufferId id) {
    const Buffer& buffer = rank_.buffers[root_buffer(rank_, id).index()];
    if (buffer.storage.kind == Storage::Kind::kArena)
      reach(buffer.storage.offset + buffer.bytes().value);
  }
  void reach(int64_t end) { figures_.arena_peak = std::max(figures_.arena_peak, Bytes(end)); }

  // The command at which most bytes are alive, the first of equals.
  void find_peak() {
    const std::vector<BufferUse> uses = buffer_uses(rank_);
    const std::vector<int64_t> alive = alive_bytes(program_, static_cast<size_t>(r_), uses);
    int64_t most = -1, workspace = 0;
    size_t at = 0;
    for (size_t c = 0; c < alive.size(); ++c) {
      const int64_t inside = workspace_of(rank_.commands[c]);
      if (alive[c] + inside <= most) continue;
      most = alive[c] + inside;
      workspace = inside;
      at = c;
    }
    auto& by_category = figures_.peak_by_category;
    if (workspace > 0) by_category[Category::kWorkspace] += Bytes(workspace);
    for (size_t b = 0; b < rank_.buffers.size(); ++b) {
      const Buffer& buffer = rank_.buffers[b];
      const bool alive_then = buffer.storage.kind == Storage::Kind::kArena && uses[b].first >= 0 &&
                              static_cast<size_t>(uses[b].first) <= at &&
                              at <= static_cast<size_t>(uses[b].last);
      if (buffer.storage.kind == Storage::Kind::kState || alive_then)
        by_category[buffer.category] += buffer.bytes();
    }
    for (const Channel& channel : program_.channels) {
      if (channel.to == r_)
        by_category[Category::kBoundary] += channel.type.bytes() * channel.slots;
    }
  }
  int64_t workspace_of(const Command& command) const {
    return command.kind == Command::Kind::kCall ? checked_.info_of(command).workspace_end : 0;
  }

  const Checked& checked_;
  const Program& program_;
  const RankProgram& rank_;
  int32_t r_;
  std::vector<std::optional<std::vector<Traffic>>> traffic_;  // [fragment]
  RankFigures figures_;
};

}  // namespace

std::vector<RankFigures> make_figures(const Checked& checked) {
  std::vector<RankFigures> figures;
  for (size_t r = 0; r < checked.program.ranks.size(); ++r)
    figures.push_back(FigureMaker(checked, static_cast<int32_t>(r)).make());
  return figures;
}

Bytes memory_of(const Program& program, const RankFigures& figures, int32_t rank) {
  Bytes bytes = figures.state_bytes + figures.arena_peak;
  for (const Channel& channel : program.channels) {
    if (channel.to == rank) bytes += channel.type.bytes() * channel.slots;
  }
  return bytes;
}

}  // namespace mw::pipeline

// The arenas of a rank, byte by byte: what a call reads must be what was written there last under
// that name, or as part of it; ports of a call do not overwrite each other, nor does what it works
// in; everything lies inside its arena.
#include <algorithm>

#include "pipeline/memory_plan.h"
#include "pipeline/verify.h"
#include "sharding/sharding.h"

namespace mw::pipeline {
namespace {

constexpr int32_t kNothing = -1;  // nobody wrote these bytes
constexpr int32_t kBefore = -2;   // a state as the call finds it
constexpr int32_t kSpent = -3;    // a consumed input that its reader wrote over
constexpr int32_t kWorked = -4;   // a call worked there

class MemoryChecker {
 public:
  MemoryChecker(const Checked& checked, int32_t r, Diagnostics& out)
      : checked_(checked), program_(checked.program), rank_(checked.rank(r)), r_(r), out_(out) {}

  void run() {
    place_buffers();
    check_bounds();
    make_pieces();
    for (command_ = 0; command_ < rank_.commands.size(); ++command_) {
      const Command& command = rank_.commands[command_];
      if (command.kind == Command::Kind::kLoad) write(command.buffers[0]);
      if (command.kind == Command::Kind::kCall) call(command);
    }
  }

 private:
  // Where a buffer lies, on the first device of every group that it is sharded over.
  struct Place {
    BufferId root;
    Storage::Kind space = Storage::Kind::kArena;  // of the root
    int64_t begin = 0, end = 0;
    bool whole =
        true;  // no link to the root is a shard: writing it writes the same bytes on all devices
    size_t first = 0, last = 0;  // pieces [first, last) of its space
    bool in_arenas() const { return space != Storage::Kind::kSlot; }
  };

  const Buffer& buffer(BufferId id) const { return rank_.buffers[id.index()]; }
  const Place& place(BufferId id) const { return places_[id.index()]; }
  std::vector<int32_t>& owners(const Place& p) {
    return p.space == Storage::Kind::kState ? states_ : arena_;
  }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", place_text(program_, r_, command_),
             fmt::format(format, std::forward<Args>(args)...));
  }
  void add_buffer(size_t b, const std::string& what) {
    out_.add("pipeline rank {}, buffer {} '{}' {}", r_, b, rank_.buffers[b].name(), what);
  }

  void place_buffers() {
    for (size_t b = 0; b < rank_.buffers.size(); ++b) {
      const Storage& storage = rank_.buffers[b].storage;
      const int64_t bytes = rank_.buffers[b].bytes().value;
      Place p{BufferId(static_cast<int64_t>(b)), storage.kind, storage.offset,
              storage.offset + bytes};
      if (storage.kind == Storage::Kind::kView) {
        const Place& parent = place(storage.parent);
        const int64_t shards = sharding::shards(storage.part->axes, program_.mesh);
        const int64_t behind = storage.offset + (shards - 1) * storage.part->stride + bytes;
        if (behind > buffer(storage.parent).bytes().value || storage.part->stride < 0) {
          add_buffer(
              b, fmt::format("ends at byte {} of '{}', which has {}", behind,
                             buffer(storage.parent).name(), buffer(storage.parent).bytes().value));
        }
        p = parent;
        p.begin += storage.offset;
        p.end = p.begin + bytes;
        p.whole = parent.whole && shards == 1;
      }
      places_.push_back(p);
    }
  }

  void check_bounds() {
    std::vector<size_t> states;
    std::vector<bool> used(rank_.buffers.size(), false);
    bool outside = false;
    for (const Command& command : rank_.commands) {
      for (const BufferId id : command.buffers) used[place(id).root.index()] = true;
      if (!outside && workspace_of(command) > 0) outside = !check_workspace(command);
    }
    for (size_t b = 0; b < rank_.buffers.size(); ++b) {
      const Storage::Kind kind = rank_.buffers[b].storage.kind;
      const Place& p = places_[b];
      if (kind == Storage::Kind::kState) {
        states.push_back(b);
        if (p.end > rank_.state_arena.value)
          add_buffer(b, fmt::format("ends at byte {} of {} of the states", p.end,
                                    rank_.state_arena.value));
      }
      if (kind == Storage::Kind::kArena && used[b] && p.end > rank_.arena.value) {
        add_buffer(
            b, fmt::format("ends at byte {} of {} of the step arena", p.end, rank_.arena.value));
      }
      const bool is_root = kind == Storage::Kind::kState || kind == Storage::Kind::kArena;
      if (is_root && p.begin % kAlignment != 0)
        add_buffer(b, fmt::format("begins at byte {}, not a multiple of {}", p.begin, kAlignment));
    }
    std::sort(states.begin(), states.end(),
              [&](size_t a, size_t b) { return places_[a].begin < places_[b].begin; });
    for (size_t i = 1; i < states.size(); ++i) {
      if (places_[states[i]].begin < places_[states[i - 1]].end) {
        add_buffer(states[i],
                   fmt::format("overlaps state '{}'", rank_.buffers[states[i - 1]].name()));
      }
    }
  }

  int64_t workspace_of(const Command& command) const {
    if (command.kind != Command::Kind::kCall) return 0;
    return checked_.fragment(command).workspace.value;
  }
  bool check_workspace(const Command& command) {
    const int64_t at = command.workspace_offset, bytes = workspace_of(command);
    if (at >= 0 && at % kAlignment == 0 && at + bytes <= rank_.arena.value) return true;
    out_.add("pipeline rank {}: a workspace of {} bytes at byte {} does not lie in the arena of {}",
             r_, bytes, at, rank_.arena.value);
    return false;
  }

  // Cuts both arenas at all borders of buffers and workspaces, so that each is a run of pieces.
  void make_pieces() {
    std::vector<int64_t> state_cuts, arena_cuts;
    const auto cuts = [&](const Place& p) -> std::vector<int64_t>& {
      return p.space == Storage::Kind::kState ? state_cuts : arena_cuts;
    };
    for (const Place& p : places_) {
      if (!p.in_arenas() || p.begin == p.end) continue;
      cuts(p).push_back(p.begin);
      cuts(p).push_back(p.end);
    }
    for (const Command& command : rank_.commands) {
      const int64_t bytes = workspace_of(command);
      if (bytes == 0) continue;
      arena_cuts.push_back(command.workspace_offset);
      arena_cuts.push_back(command.workspace_offset + bytes);
    }
    for (std::vector<int64_t>* list : {&state_cuts, &arena_cuts}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    states_.assign(state_cuts.size(), kBefore);
    arena_.assign(arena_cuts.size(), kNothing);
    for (Place& p : places_) {
      if (!p.in_arenas() || p.begin == p.end) continue;
      p.first = piece(cuts(p), p.begin);
      p.last = piece(cuts(p), p.end);
    }
    arena_cuts_ = std::move(arena_cuts);
  }

  static size_t piece(const std::vector<int64_t>& cuts, int64_t byte) {
    return static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), byte) - cuts.begin());
  }

  void write(BufferId id, int32_t owner) {
    const Place& p = place(id);
    if (!p.in_arenas()) return;
    std::fill(owners(p).begin() + static_cast<int64_t>(p.first),
              owners(p).begin() + static_cast<int64_t>(p.last), owner);
  }
  void write(BufferId id) { write(id, id.value); }

  // Whether bytes that were written under the name of `owner` are what `id` means.
  bool is_content_of(int32_t owner, BufferId id) const {
    if (owner == id.value || owner == kBefore) return true;
    if (owner < 0) return false;
    const BufferId written(owner);
    if (place(written).root != place(id).root) return false;
    if (place(written).whole) return true;
    for (BufferId up = id; buffer(up).storage.kind == Storage::Kind::kView;) {
      up = buffer(up).storage.parent;
      if (up == written) return true;
    }
    return false;
  }

  void read(BufferId id, const Port& port) {
    const Place& p = place(id);
    if (!p.in_arenas()) return;
    const std::vector<int32_t>& owner = owners(p);
    for (size_t i = p.first; i < p.last; ++i) {
      if (is_content_of(owner[i], id)) continue;
      add("reads '{}' for port '{}', but {}", buffer(id).name(), port.name,
          what_is_there(owner[i], id));
      return;
    }
  }
  std::string what_is_there(int32_t owner, BufferId id) const {
    if (owner == kNothing) return "nothing was written there";
    if (owner == kSpent) return "a call that consumed it wrote over it";
    if (owner == kWorked) return "a call worked there";
    const bool part = place(BufferId(owner)).root == place(id).root;
    return fmt::format("its bytes hold '{}'{}", buffer(BufferId(owner)).name(),
                       part ? ", which is one device's part of it: a gather is missing" : "");
  }

  void call(const Command& command) {
    const FragmentInfo& info = checked_.info_of(command);
    check_overlaps(command, info);
    for (size_t p = 0; p < info.inputs; ++p) {
      if (info.uses[p].reads()) read(command.buffers[p], info.ports[p]);
    }
    work(command, info);
    std::vector<size_t> writers;
    for (size_t p = 0; p < info.ports.size(); ++p) {
      if (info.uses[p].writes()) writers.push_back(p);
    }
    std::sort(writers.begin(), writers.end(), [&](size_t a, size_t b) {
      return std::pair(info.uses[a].last_write, a) < std::pair(info.uses[b].last_write, b);
    });
    for (const size_t p : writers) {
      const bool spent = p < info.inputs && info.update_of[p] < 0;
      write(command.buffers[p], spent ? kSpent : command.buffers[p].value);
    }
  }

  // What lies where the call works is gone; none of its ports may.
  void work(const Command& command, const FragmentInfo& info) {
    const int64_t begin = command.workspace_offset, end = begin + workspace_of(command);
    if (begin == end) return;
    for (size_t p = 0; p < info.ports.size(); ++p) {
      const Place& at = place(command.buffers[p]);
      if (at.space != Storage::Kind::kArena || !info.uses[p].touched) continue;
      if (at.begin < end && begin < at.end)
        add("works over '{}', its port '{}'", buffer(command.buffers[p]).name(),
            info.ports[p].name);
    }
    std::fill(arena_.begin() + static_cast<int64_t>(piece(arena_cuts_, begin)),
              arena_.begin() + static_cast<int64_t>(piece(arena_cuts_, end)), kWorked);
  }

  // Two ports over the same bytes, one of which is written.
  void check_overlaps(const Command& command, const FragmentInfo& info) {
    order_.clear();
    for (size_t p = 0; p < info.ports.size(); ++p) {
      const Place& at = place(command.buffers[p]);
      if (at.in_arenas() && at.begin < at.end && info.uses[p].touched) order_.push_back(p);
    }
    const auto key = [&](size_t p) {
      const Place& at = place(command.buffers[p]);
      return std::tuple(at.space, at.begin, p);
    };
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    for (size_t i = 0; i < order_.size(); ++i) {
      const Place& a = place(command.buffers[order_[i]]);
      for (size_t j = i + 1; j < order_.size(); ++j) {
        const Place& b = place(command.buffers[order_[j]]);
        if (b.space != a.space || b.begin >= a.end) break;
        check_pair(command, info, order_[i], order_[j]);
        check_pair(command, info, order_[j], order_[i]);
      }
    }
  }

  // Port `a` is written: all that is done with `b` must come before, or begin with writing it
  // afterwards. A gather reads the own part of what it writes, a scatter writes the own part of
  // what it reads.
  void check_pair(const Command& command, const FragmentInfo& info, size_t a, size_t b) {
    const PortUse &wa = info.uses[a], &ub = info.uses[b];
    if (!wa.writes()) return;
    if (ub.last() < wa.first_write) return;
    if (ub.last() == wa.first_write && in_place(command, wa.first_write)) return;
    const bool written_after = ub.first_write > wa.last_write || (ub.first_write == wa.last_write &&
                                                                  in_place(command, wa.last_write));
    if (ub.writes() && written_after && (!ub.reads() || ub.first_read > ub.first_write)) return;
    // A gather into `b` reads `a` where it was written before.
    if (ub.writes() && written_after && ub.first_read == ub.first_write) return;
    add("writes '{}' for port '{}' over '{}', which port '{}' still uses",
        buffer(command.buffers[a]).name(), info.ports[a].name, buffer(command.buffers[b]).name(),
        info.ports[b].name);
  }
  bool in_place(const Command& command, int32_t op) const {
    const ir::OpKind kind = checked_.fragment(command).graph.ops[static_cast<size_t>(op)].kind;
    return kind == ir::OpKind::kAllGather || kind == ir::OpKind::kReduceScatter;
  }

  const Checked& checked_;
  const Program& program_;
  const RankProgram& rank_;
  int32_t r_;
  Diagnostics& out_;
  size_t command_ = 0;
  std::vector<Place> places_;            // [buffer]
  std::vector<int32_t> states_, arena_;  // [piece] the buffer that was written there last
  std::vector<int64_t> arena_cuts_;      // [piece] its first byte
  std::vector<size_t> order_;            // ports of a call by place
};

}  // namespace

void check_memory(const Checked& checked, Diagnostics& out) {
  for (size_t r = 0; r < checked.program.ranks.size(); ++r)
    MemoryChecker(checked, static_cast<int32_t>(r), out).run();
}

}  // namespace mw::pipeline

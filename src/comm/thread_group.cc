// The groups of the threads backend. An operation is: post what I am about to do, wait until all
// members have, compare, do my share of the work directly on everyone's buffers, wait until all are
// done. In a started one nobody waits: the last member to post compares and does all the work.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce.h"
#include "comm/thread_state.h"

namespace mw::comm {

void Posted::assign(const Collective& c, bool is_split) {
  split = is_split;
  kind = c.kind;
  dtype = c.dtype;
  op = c.op;
  root = c.root;
  pairs.assign(c.pairs.begin(), c.pairs.end());
  in.assign(c.in.begin(), c.in.end());
  out.assign(c.out.begin(), c.out.end());
}

std::string Posted::text() const {
  return describe(view()) + (split ? ", to be finished later" : "");
}

bool Posted::matches(const Posted& other) const {
  const auto same_count = [](const Buffer& a, const Buffer& b) { return a.count == b.count; };
  return kind == other.kind && split == other.split && dtype == other.dtype && op == other.op &&
         root == other.root && pairs == other.pairs &&
         std::equal(in.begin(), in.end(), other.in.begin(), other.in.end(), same_count);
}

GroupState::GroupState(AbortState& abort, std::string group_name, std::vector<RankId> group_members)
    : name(std::move(group_name)),
      members(std::move(group_members)),
      point(abort),
      table(members.size()) {}

void GroupState::fail(std::string text) {
  {
    std::lock_guard lock(mutex_);
    if (failed.load()) return;
    failure_ = std::move(text);
    failed.store(true);
  }
  point.notify();
}

void GroupState::check() const {
  if (!failed.load()) return;
  std::lock_guard lock(mutex_);
  throw RunError(failure_);
}

namespace {

std::byte* at(const Buffer& buffer, int64_t element, DType dtype) {
  return static_cast<std::byte*>(buffer.data) + element * dtype_size(dtype);
}

void copy(std::byte* to, const std::byte* from, int64_t count, DType dtype) {
  // An operation in place finds its own part where it belongs.
  if (to != from && count > 0) std::memcpy(to, from, count * dtype_size(dtype));
}

class ThreadCommunicator final : public Communicator, private ThreadHandle {
 public:
  ThreadCommunicator(ThreadEndpoint& endpoint, std::shared_ptr<GroupState> group, int rank,
                     ThreadWorldState::GroupKey key)
      : Communicator(group->name, rank, group->members),
        ThreadHandle(endpoint),
        group_(std::move(group)),
        key_(std::move(key)),
        in_(group_->members.size()),
        out_(group_->members.size()) {}

  ~ThreadCommunicator() override {
    if (group_->closed.fetch_add(1) + 1 < size()) return;
    ThreadWorldState& world = endpoint_.world();
    std::lock_guard lock(world.mutex);
    auto found = world.groups.find(key_);
    std::erase(found->second, group_);
    if (found->second.empty()) world.groups.erase(found);
  }

  // Waits for the other members to create the group.
  void join() {
    enter();
    group_->table[rank()].joined.store(true);
    group_->joined.fetch_add(1);
    group_->point.notify();
    wait_or_throw(group_->point, WaitKind::kGroup, 0,
                  [&] { return group_->joined.load() == size() || group_->failed.load(); });
    group_->check();
  }

 private:
  void do_run(const Collective& op) override {
    enter();
    group_->check();
    group_->table[rank()].posted[operation_ % 2].assign(op, false);
    meet();
    compare();
    if (op.kind != CollectiveKind::kBarrier) {
      work(op);
      // Everyone who met works and then comes here, so this wait is short and must not be aborted:
      // others may still read and write this rank's buffers.
      arrive();
      wait(group_->point, WaitKind::kCollective, operation_, [&] { return all_here(); }, false);
    }
    ++operation_;
  }

  void do_start(const Collective& op) override {
    enter();
    group_->check();
    GroupState::Member& own = group_->table[rank()];
    own.posted[operation_ % 2].assign(op, true);
    target_ += size();
    own.arrived.fetch_add(2);  // nobody waits for it a second time
    if (group_->arrivals.fetch_add(1) + 1 < target_) return;
    compare();
    all_reduce_part(0, elements(posted(rank()).in));
    group_->arrivals.fetch_add(size());
    group_->point.notify();
  }

  void do_finish() override {
    const int64_t met = target_;
    target_ += size();
    const auto done = [&] { return all_here() || group_->failed.load(); };
    if (!wait(group_->point, WaitKind::kCollective, operation_, done)) {
      take_back(met);
      // All have met: the last one is at work on this rank's buffers.
      wait(group_->point, WaitKind::kCollective, operation_, done, false);
    }
    group_->check();
    ++operation_;
  }

  void arrive() {
    target_ += size();
    group_->table[rank()].arrived.fetch_add(1);
    // Only the last one can have made a condition true.
    if (group_->arrivals.fetch_add(1) + 1 == target_) group_->point.notify();
  }

  bool all_here() const { return group_->arrivals.load() >= target_; }

  // The first synchronization of an operation: after it the others may touch this rank's buffers.
  void meet() {
    arrive();
    if (wait(group_->point, WaitKind::kCollective, operation_, [&] { return all_here(); })) return;
    take_back(target_);
  }

  // Aborted. Takes the arrival back and throws, so that no latecomer counts on buffers that are
  // about to die; where the last member came in this very moment, the operation runs as if there
  // had been no abort.
  void take_back(int64_t target) {
    int64_t count = group_->arrivals.load();
    while (count < target) {
      if (group_->arrivals.compare_exchange_weak(count, count - 1)) endpoint_.world().abort.check();
    }
  }

  // All members compare everyone with the first, so all throw the same text.
  void compare() {
    const Posted& first = posted(0);
    for (int member = 1; member < size(); ++member) {
      if (posted(member).matches(first)) continue;
      group_->fail(
          fmt::format("group '{}', operation {}: rank {} calls {}, rank {} calls {}; all members "
                      "must call the same operation",
                      name(), operation_, members()[0].value, first.text(), members()[member].value,
                      posted(member).text()));
      group_->check();
    }
  }

  void work(const Collective& op) {
    switch (op.kind) {
      case CollectiveKind::kAllReduce: return all_reduce_share();
      case CollectiveKind::kReduceScatter: return reduce_scatter_part(op);
      case CollectiveKind::kAllGather: return all_gather_own(op);
      case CollectiveKind::kAllToAll: return all_to_all_own(op);
      case CollectiveKind::kBroadcast: return broadcast_own(op);
      case CollectiveKind::kPermute: return permute_own(op);
      case CollectiveKind::kBarrier: return;
    }
  }

  // Each rank reduces one n-th of all elements, wherever the borders of the buffers lie, and writes
  // the result into the buffers of all: one pass over memory.
  void all_reduce_share() {
    const Posted& own = posted(rank());
    if (size() == 1) return;
    const int64_t total = elements(own.in);
    // Borders at multiples of 64 elements: no two ranks write to one cache line of an aligned
    // buffer.
    const auto border = [&](int64_t r) {
      return r == size() ? total : std::min(total, (total / 64 + 1) * r / size() * 64);
    };
    all_reduce_part(border(rank()), border(rank() + 1));
  }

  static int64_t elements(const std::vector<Buffer>& buffers) {
    int64_t total = 0;
    for (const Buffer& buffer : buffers) total += buffer.count;
    return total;
  }

  // Elements [begin, end) of all members' buffers, counted through the list.
  void all_reduce_part(int64_t begin, int64_t end) {
    const Posted& own = posted(rank());
    if (size() == 1) return;
    int64_t start = 0;  // of the buffer, counted through the list
    for (size_t i = 0; i < own.in.size(); start += own.in[i].count, ++i) {
      const int64_t from = std::max(begin - start, int64_t{0});
      const int64_t to = std::min(end - start, own.in[i].count);
      if (from >= to) continue;
      for (int member = 0; member < size(); ++member) {
        out_[member] = at(posted(member).in[i], from, own.dtype);
        in_[member] = out_[member];
      }
      reduce(own.dtype, own.op, in_, out_, to - from);
    }
  }

  void reduce_scatter_part(const Collective& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
      const int64_t part = op.out[i].count;
      for (int member = 0; member < size(); ++member) {
        in_[member] = at(posted(member).in[i], rank() * part, op.dtype);
      }
      void* out = op.out[i].data;
      if (size() == 1) {
        copy(static_cast<std::byte*>(out), at(op.in[i], 0, op.dtype), part, op.dtype);
      } else if (part > 0) {
        reduce(op.dtype, op.op, in_, {&out, 1}, part);
      }
    }
  }

  void all_gather_own(const Collective& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
      const int64_t part = op.in[i].count;
      for (int member = 0; member < size(); ++member) {
        copy(at(op.out[i], member * part, op.dtype), at(posted(member).in[i], 0, op.dtype), part,
             op.dtype);
      }
    }
  }

  void all_to_all_own(const Collective& op) {
    for (size_t i = 0; i < op.in.size(); ++i) {
      const int64_t part = op.in[i].count / size();
      for (int member = 0; member < size(); ++member) {
        copy(at(op.out[i], member * part, op.dtype),
             at(posted(member).in[i], rank() * part, op.dtype), part, op.dtype);
      }
    }
  }

  void broadcast_own(const Collective& op) {
    for (size_t i = 0; i < op.out.size(); ++i) {
      copy(at(op.out[i], 0, op.dtype), at(posted(op.root).in[i], 0, op.dtype), op.out[i].count,
           op.dtype);
    }
  }

  void permute_own(const Collective& op) {
    int source = -1;
    for (auto [from, to] : op.pairs) {
      if (to == rank()) source = from;
    }
    for (size_t i = 0; i < op.out.size(); ++i) {
      std::byte* out = at(op.out[i], 0, op.dtype);
      const int64_t count = op.out[i].count;
      if (source >= 0) {
        copy(out, at(posted(source).in[i], 0, op.dtype), count, op.dtype);
      } else if (count > 0) {
        std::memset(out, 0, count * dtype_size(op.dtype));
      }
    }
  }

  const Posted& posted(int member) const { return group_->table[member].posted[operation_ % 2]; }

  void describe_wait(Waiting& waiting) const override {
    waiting.where = fmt::format("group '{}'", name());
    const bool creating = waiting.kind == WaitKind::kGroup;
    if (!creating) waiting.operation = describe(posted(rank()).view());
    const int64_t mine = group_->table[rank()].arrived.load();
    for (int member = 0; member < size(); ++member) {
      const GroupState::Member& other = group_->table[member];
      const bool here = creating ? other.joined.load() : other.arrived.load() >= mine;
      if (!here) waiting.peers.push_back(members()[member]);
    }
  }

  std::shared_ptr<GroupState> group_;
  ThreadWorldState::GroupKey key_;
  int64_t operation_ = 0;
  int64_t target_ = 0;           // arrivals that complete the synchronization this rank has reached
  std::vector<const void*> in_;  // scratch
  std::vector<void*> out_;
};

std::string world_ranks(const std::vector<RankId>& ranks) {
  std::string text;
  for (RankId rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank.value);
  return text;
}

// The group among those of one name that has these members; a new one where none has. Throws
// RunError where one has other members but shares some.
std::shared_ptr<GroupState> find_or_make(std::vector<std::shared_ptr<GroupState>>& groups,
                                         AbortState& abort, const std::string& name, RankId caller,
                                         const std::vector<RankId>& members) {
  for (const auto& group : groups) {
    if (group->members == members) return group;
    const auto shared = std::find_first_of(members.begin(), members.end(), group->members.begin(),
                                           group->members.end());
    if (shared == members.end()) continue;
    const size_t joined = std::find_if(group->table.begin(), group->table.end(),
                                       [](const auto& m) { return m.joined.load(); }) -
                          group->table.begin();
    const RankId other = group->members[std::min(joined, group->members.size() - 1)];
    group->fail(fmt::format(
        "group '{}': rank {} creates it of ranks {}, rank {} of ranks {}; give one of them another "
        "name",
        name, other.value, world_ranks(group->members), caller.value, world_ranks(members)));
    group->check();
  }
  return groups.emplace_back(std::make_shared<GroupState>(abort, name, members));
}

}  // namespace

std::unique_ptr<Communicator> ThreadEndpoint::group(std::vector<RankId> members, std::string name,
                                                    StreamHandle) {
  const auto self = std::find(members.begin(), members.end(), rank_);
  MW_CHECK(self != members.end(), "rank {} creates group '{}' of ranks {} without itself",
           rank_.value, name, world_ranks(members));
  std::vector<RankId> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  MW_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() &&
               sorted.front().value >= 0 && sorted.back().value < world_size(),
           "group '{}' of ranks {} in a world of {}", name, world_ranks(members), world_size());
  ThreadWorldState::GroupKey key{name, 0};
  {
    std::lock_guard lock(mutex_);
    key.second = groups_made_[name]++;
  }
  const int position = static_cast<int>(self - members.begin());
  std::unique_ptr<ThreadCommunicator> handle;
  {
    std::lock_guard lock(world_.mutex);
    handle = std::make_unique<ThreadCommunicator>(
        *this, find_or_make(world_.groups[key], world_.abort, name, rank_, members), position, key);
  }
  handle->join();
  return handle;
}

}  // namespace mw::comm

#include <algorithm>

#include "base/error.h"
#include "pipeline/buffer_lives.h"
#include "pipeline/memory_plan.h"
#include "pipeline/sharing.h"
#include "pipeline/streams.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;

// Bytes of a root value's memory. A root is a port, or a value with memory of its own.
struct Place {
  ValueId root;
  int64_t offset = 0;
};

class FragmentPlanner {
 public:
  explicit FragmentPlanner(Fragment& fragment)
      : fragment_(fragment),
        graph_(fragment.graph),
        order_(fragment),
        users_(graph_.users()),
        roots_(graph_.values.size()) {}

  void share() {
    find_ports();
    for (size_t o = 0; o < graph_.ops.size(); ++o) place_op(static_cast<int32_t>(o));
    for (const ir::StateUpdate& update : graph_.updates) place_update(update);
    for (const ValueId output : graph_.outputs) place_output(output);
    for (size_t o = 0; o < graph_.ops.size(); ++o) place_own_parts(static_cast<int32_t>(o));
    write_sharing();
  }
  // REQUIRES: share() before.
  void place() {
    std::vector<Interval> lives;
    for (const ValueId owner : owners_) lives.push_back(life(owner));
    const Packing packing = pack(lives);
    for (size_t i = 0; i < owners_.size(); ++i)
      fragment_.workspace_offset[owners_[i].index()] = packing.offsets[i];
    fragment_.workspace = Bytes(workspace_end(fragment_));
  }

 private:
  struct Root {
    Place link;        // valid: the memory is part of another root's
    ValueIds members;  // values in this memory, the value itself included
    bool is_input = false;
    bool writable = true;  // not an input, or a state that is updated here, or a consumed port
    bool consumed = false;
    bool is_output = false;  // the value of an output port
    bool kept = false;       // the value of an output or an update: alive until the end
  };

  Root& root(ValueId v) { return roots_[v.index()]; }
  int64_t bytes(ValueId v) const { return graph_.type(v).bytes().value; }
  const ir::Op& op(int32_t o) const { return graph_.ops[static_cast<size_t>(o)]; }
  static int32_t number(OpId id) { return id.value; }

  void find_ports() {
    for (size_t v = 0; v < roots_.size(); ++v)
      roots_[v].members = {ValueId(static_cast<int64_t>(v))};
    for (const ir::StateUpdate& update : graph_.updates) root(update.value).kept = true;
    for (const ValueId output : graph_.outputs) {
      MW_CHECK(!root(output).is_output, "fragment '{}': {} is an output twice", fragment_.name,
               graph_.label(output));
      root(output).is_output = root(output).kept = true;
    }
    for (const ir::Input& input : graph_.inputs) {
      root(input.value).is_input = true;
      root(input.value).writable = input.state.valid() && is_updated(input.state);
    }
    for (const Port& port : fragment_.inputs) {
      if (port.consumed) root(port.value).writable = root(port.value).consumed = true;
    }
  }

  bool is_updated(StateId state) const {
    return std::any_of(graph_.updates.begin(), graph_.updates.end(),
                       [&](const ir::StateUpdate& update) { return update.state == state; });
  }

  Place resolve(ValueId v) {
    Place place{v, 0};
    while (root(place.root).link.root.valid()) {
      const Place link = root(place.root).link;
      place = {link.root, place.offset + link.offset};
    }
    if (place.root != v) root(v).link = place;
    return place;
  }

  // `from` is a root; its memory becomes part of `to`'s.
  void link(ValueId from, Place to) {
    root(from).link = to;
    ValueIds& members = root(to.root).members;
    members.insert(members.end(), root(from).members.begin(), root(from).members.end());
    if (from != to.root) root(from).members.clear();
  }

  // Every op but `o` that uses a value in this memory has ended before `o` starts, and nobody wants
  // it afterwards.
  bool free_at(ValueId memory, int32_t o) {
    for (const ValueId member : root(memory).members) {
      if (root(member).kept) return false;
      for (const OpId user : users_[member.index()]) {
        if (number(user) != o && !(number(user) < o && order_.before(number(user), o)))
          return false;
      }
    }
    return true;
  }

  void place_op(int32_t o) {
    const ir::Op& here = op(o);
    if (here.kind == OpKind::kAssemble) place_parts(o);
    for (size_t i = 0; i < here.results.size(); ++i) {
      const ValueId v = here.results[i];
      const Sharing sharing = sharing_of(graph_, here, static_cast<int>(i));
      switch (sharing.kind) {
        case Sharing::Kind::kNone: place_in_place(o, static_cast<int>(i)); break;
        case Sharing::Kind::kView: place_view(here, v, sharing); break;
        case Sharing::Kind::kAssembly:
        case Sharing::Kind::kOverwrite: place_over(o, v, sharing); break;
      }
    }
  }

  void place_view(const ir::Op& here, ValueId v, const Sharing& sharing) {
    const ValueId x = here.operands[0];
    Place at = resolve(x);
    at.offset += sharing.offset;
    if (root(v).is_output) {
      // An output lies in its own buffer; its operand can only be made there too if they are the
      // same bytes.
      const Root& memory = root(at.root);
      const bool moves = !memory.is_input && at.offset == 0 && bytes(at.root) == bytes(v) &&
                         !holds_output(at.root);
      if (!moves) return;
    }
    link(v, at);
  }

  bool holds_output(ValueId memory) {
    const ValueIds& members = root(memory).members;
    return std::any_of(members.begin(), members.end(),
                       [&](ValueId v) { return root(v).is_output; });
  }

  void place_over(int32_t o, ValueId v, const Sharing& sharing) {
    const ir::Op& here = op(o);
    const ValueId x = here.operands[static_cast<size_t>(sharing.operand)];
    const Place at = resolve(x);
    const Root& memory = root(at.root);
    MW_CHECK(!memory.is_input || memory.writable,
             "fragment '{}': op {} ({}) writes over {}, which is an input that is no updated state "
             "and not consumed",
             fragment_.name, o, ir::op_name(here.kind), graph_.label(at.root));
    MW_CHECK(!memory.is_input || !root(v).is_output,
             "fragment '{}': output {} lies in the memory of input {}", fragment_.name,
             graph_.label(v), graph_.label(at.root));
    link(v, at);
  }

  // Result `i` over the operand that the op allows, if it is free; otherwise the result keeps
  // memory of its own. Over a state only what the state takes may lie: place_update sees to that.
  void place_in_place(int32_t o, int i) {
    const ir::Op& here = op(o);
    const ValueId v = here.results[static_cast<size_t>(i)];
    for (size_t x = 0; x < here.operands.size(); ++x) {
      if (!may_overwrite(here, i, static_cast<int>(x))) continue;
      const Place at = resolve(here.operands[x]);
      const Root& memory = root(at.root);
      if (memory.is_input && (!memory.consumed || root(v).is_output)) continue;
      if (at.offset != 0 || bytes(at.root) != bytes(v) || bytes(here.operands[x]) != bytes(v))
        continue;
      const auto uses =
          std::count_if(here.operands.begin(), here.operands.end(),
                        [&](ValueId operand) { return resolve(operand).root == at.root; });
      if (uses != 1 || !free_at(at.root, o)) continue;
      link(v, at);
      return;
    }
  }

  // The op that first writes a root's memory, -1 for an input.
  int32_t first_write(ValueId memory) {
    int32_t first = static_cast<int32_t>(graph_.ops.size());
    for (const ValueId member : root(memory).members) {
      const OpId producer = graph_.value(member).producer;
      first = std::min(first, producer.valid() ? number(producer) : -1);
    }
    return first;
  }

  // Whether the memory of root `from` may be the bytes at `to`: nothing reads what lay there before
  // at or after the first write, but the writing op itself where it may work in place, and op
  // `except`.
  bool may_place(ValueId from, Place to, int32_t except) {
    const int32_t start = first_write(from);
    const int64_t end = to.offset + bytes(from);
    if (to.offset < 0 || end > bytes(to.root)) return false;
    for (const ValueId member : ValueIds(root(to.root).members)) {
      const int64_t at = resolve(member).offset;
      if (at >= end || at + bytes(member) <= to.offset) continue;
      if (root(member).is_output) return false;
      for (const OpId user : users_[member.index()]) {
        const int32_t u = number(user);
        if (u == except || order_.before(u, start)) continue;
        if (!may_read_during(u, start, member, at == to.offset, from)) return false;
      }
    }
    return true;
  }

  // Op `u` uses `member`, whose bytes op `start` overwrites with the memory of `from`.
  bool may_read_during(int32_t u, int32_t start, ValueId member, bool same_place, ValueId from) {
    const ir::Op& user = op(u);
    for (size_t x = 0; x < user.operands.size(); ++x) {
      if (user.operands[x] != member || !reads_bytes(user, static_cast<int>(x))) continue;
      if (u != start || !same_place) return false;
      for (size_t i = 0; i < user.results.size(); ++i) {
        const bool made_here = resolve(user.results[i]).root == from;
        if (made_here && !may_overwrite(user, static_cast<int>(i), static_cast<int>(x)))
          return false;
      }
    }
    return true;
  }

  void place_parts(int32_t o) {
    const ir::Op& here = op(o);
    const std::vector<int64_t>& offsets = here.as<ir::AssembleAttrs>().offsets;
    const int64_t element = dtype_size(graph_.type(here.operands[0]).dtype);
    for (size_t i = 0; i < offsets.size(); ++i) {
      const ValueId part = here.operands[i + 1];
      const Place flat = resolve(here.operands[0]), at = resolve(part);
      const int64_t wanted = flat.offset + offsets[i] * element;
      if (at.root == flat.root) {
        MW_CHECK(at.offset == wanted,
                 "fragment '{}': op {} assembles {} at byte {}, but it lies at byte {}",
                 fragment_.name, o, graph_.label(part), wanted, at.offset);
        continue;
      }
      const Place to{flat.root, wanted - at.offset};
      const bool possible =
          !root(at.root).is_input && !holds_output(at.root) && may_place(at.root, to, o);
      MW_CHECK(
          possible,
          "fragment '{}': op {} assembles {}, which is not a view of {} and cannot be made in it",
          fragment_.name, o, graph_.label(part), graph_.label(here.operands[0]));
      link(at.root, to);
    }
  }

  void place_update(const ir::StateUpdate& update) {
    const auto input = std::find_if(graph_.inputs.begin(), graph_.inputs.end(),
                                    [&](const ir::Input& i) { return i.state == update.state; });
    MW_CHECK(input != graph_.inputs.end(), "fragment '{}': {} updates a state that is no input",
             fragment_.name, graph_.label(update.value));
    const Place at = resolve(update.value);
    if (at.root == input->value && at.offset == 0) return;
    const bool possible = at.root != input->value && at.offset == 0 && !root(at.root).is_input &&
                          !holds_output(at.root) && may_place(at.root, {input->value, 0}, -1);
    MW_CHECK(possible, "fragment '{}': {} cannot be made in the state {} that it updates",
             fragment_.name, graph_.label(update.value), graph_.label(input->value));
    link(at.root, {input->value, 0});
  }

  // The memory of an output is its port's buffer.
  void place_output(ValueId output) {
    const Place at = resolve(output);
    MW_CHECK(!root(at.root).is_input,
             "fragment '{}': output {} lies in the memory of input {}; a copy must be between",
             fragment_.name, graph_.label(output), graph_.label(at.root));
    if (at.root == output) return;
    MW_CHECK(at.offset == 0 && bytes(at.root) == bytes(output) && !root(at.root).is_output,
             "fragment '{}': output {} is part of {}", fragment_.name, graph_.label(output),
             graph_.label(at.root));
    root(output).link = Place();
    root(output).members.clear();
    link(at.root, {output, 0});
  }

  // Last, so that nothing else is placed in these parts.
  void place_own_parts(int32_t o) {
    const ir::Op& here = op(o);
    for (size_t i = 0; i < here.results.size(); ++i) {
      const ValueId v = here.results[i];
      if (!may_keep_own_part(here, static_cast<int>(i), static_cast<int>(i))) continue;
      const Place at = resolve(here.operands[i]);
      const bool alone = root(v).members.size() == 1 && !root(v).kept;
      if (!alone || !root(at.root).is_input || !root(at.root).writable || root(at.root).consumed)
        continue;
      const auto uses =
          std::count_if(here.operands.begin(), here.operands.end(),
                        [&](ValueId operand) { return resolve(operand).root == at.root; });
      if (uses == 1 && is_over_at(at.root, o, v)) link(v, at);
    }
  }

  // Whether nobody wants what lies in this memory once op `o` has run: other uses have ended before
  // it starts, or only write zeros behind the last use of `v`.
  bool is_over_at(ValueId memory, int32_t o, ValueId v) {
    const auto zeroes_behind = [&](int32_t later) {
      return op(later).kind == OpKind::kZero &&
             std::all_of(users_[v.index()].begin(), users_[v.index()].end(),
                         [&](OpId user) { return order_.before(number(user), later); });
    };
    for (const ValueId member : root(memory).members) {
      const OpId producer = graph_.value(member).producer;
      const bool is_later = producer.valid() && number(producer) > o;
      if (is_later ? !zeroes_behind(number(producer)) : root(member).kept) return false;
      for (const OpId user : users_[member.index()]) {
        const int32_t u = number(user);
        if (u != o && !order_.before(u, o) && !zeroes_behind(u)) return false;
      }
    }
    return true;
  }

  void write_sharing() {
    const size_t values = graph_.values.size();
    fragment_.alias_of.assign(values, ValueId());
    fragment_.alias_offset.assign(values, 0);
    fragment_.workspace_offset.assign(values, Fragment::kNotPlanned);
    fragment_.workspace = Bytes(0);
    for (size_t i = 0; i < values; ++i) {
      const ValueId v(static_cast<int64_t>(i));
      const Place at = resolve(v);
      if (at.root != v) {
        fragment_.alias_of[i] = at.root;
        fragment_.alias_offset[i] = at.offset;
      } else if (!root(v).is_input && !root(v).is_output) {
        owners_.push_back(v);
      }
    }
  }

  // From the first write until every stream is known to be behind the last use.
  Interval life(ValueId memory) {
    Interval interval{static_cast<int64_t>(graph_.ops.size()), 0, bytes(memory)};
    for (const ValueId member : root(memory).members) {
      const int32_t producer = number(graph_.value(member).producer);
      interval.first = std::min<int64_t>(interval.first, producer);
      interval.last = std::max<int64_t>(interval.last, order_.settled(producer));
      for (const OpId user : users_[member.index()]) {
        interval.last = std::max<int64_t>(interval.last, order_.settled(number(user)));
      }
    }
    return interval;
  }

  Fragment& fragment_;
  const ir::Graph& graph_;
  StreamOrder order_;
  std::vector<ir::OpIds> users_;
  std::vector<Root> roots_;
  ValueIds owners_;  // values with workspace memory of their own
};

void check_launches(const Fragment& fragment) {
  const std::vector<std::string> bad = launch_findings(fragment);
  MW_CHECK(bad.empty(), "fragment '{}' {}", fragment.name, bad.front());
}

}  // namespace

void plan_fragment(Fragment& fragment) {
  check_launches(fragment);
  FragmentPlanner planner(fragment);
  planner.share();
  planner.place();
}

void plan_sharing(Fragment& fragment) {
  check_launches(fragment);
  FragmentPlanner(fragment).share();
}

bool lies_in_own_part(const Fragment& fragment, ValueId v) {
  const ir::Graph& graph = fragment.graph;
  const OpId producer = graph.value(v).producer;
  const ValueId memory = fragment.alias_of[v.index()];
  if (!memory.valid() || !producer.valid()) return false;
  const ir::Op& op = graph.op(producer);
  const auto i =
      static_cast<size_t>(std::find(op.results.begin(), op.results.end(), v) - op.results.begin());
  if (!may_keep_own_part(op, static_cast<int>(i), static_cast<int>(i))) return false;
  const ValueId scattered = fragment.alias_of[op.operands[i].index()];
  return memory == (scattered.valid() ? scattered : op.operands[i]);
}

}  // namespace mw::pipeline

// Random single edits of compiled programs: what the independent executor finds wrong
// (field_machine.h) the verifier refuses, too.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "field_plans.h"
#include "pipeline/verifier.h"

namespace mw::field {
namespace {

using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;
using pipeline::test::Edit;
using pipeline::test::NamedEditor;

template <typename List>
auto& any_of(List& list, Random& random) {
  return list[random.below(list.size())];
}

// What the verifier knows the meaning of, op by op: the step, not the model.
Fragment* step_fragment(Program& program, Random& random) {
  Fragment& fragment = any_of(program.fragments, random);
  using pipeline::ActionKind;
  const bool computes = fragment.kind == ActionKind::kF || fragment.kind == ActionKind::kB ||
                        fragment.kind == ActionKind::kI || fragment.kind == ActionKind::kW;
  return computes || fragment.graph.ops.empty() ? nullptr : &fragment;
}

std::optional<Edit> on_op(const Fragment& fragment, const ir::Op& op, const std::string& what) {
  return Edit{fmt::format("{}: {} -> {} of '{}'", what, ir::op_name(op.kind),
                          op.results.empty() ? "" : fragment.graph.label(op.results[0]),
                          fragment.name)};
}

std::optional<Edit> swap_operands(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr) return std::nullopt;
  ir::Op& op = any_of(fragment->graph.ops, random);
  if (op.operands.size() < 2) return std::nullopt;
  ValueId &a = any_of(op.operands, random), &b = any_of(op.operands, random);
  if (a == b || !(fragment->graph.type(a) == fragment->graph.type(b))) return std::nullopt;
  std::swap(a, b);
  return on_op(*fragment, op,
               fmt::format("swap {} and {}", fragment->graph.label(b), fragment->graph.label(a)));
}

std::optional<Edit> other_operand(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr) return std::nullopt;
  ir::Op& op = any_of(fragment->graph.ops, random);
  if (op.operands.empty()) return std::nullopt;
  ValueId& operand = any_of(op.operands, random);
  std::vector<ValueId> alike;
  for (size_t v = 0; v < op.results[0].index(); ++v) {
    const ValueId other(static_cast<int64_t>(v));
    if (other != operand && fragment->graph.type(other) == fragment->graph.type(operand))
      alike.push_back(other);
  }
  if (alike.empty()) return std::nullopt;
  const ValueId before = operand;
  operand = any_of(alike, random);
  return on_op(
      *fragment, op,
      fmt::format("take {} for {}", fragment->graph.label(operand), fragment->graph.label(before)));
}

// Whoever reads the result reads an operand instead.
std::optional<Edit> skip_op(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr) return std::nullopt;
  ir::Graph& graph = fragment->graph;
  const ir::Op op = any_of(graph.ops, random);
  if (op.operands.empty()) return std::nullopt;
  const ValueId from = op.results[random.below(op.results.size())],
                to = op.operands[random.below(op.operands.size())];
  if (!(graph.type(from) == graph.type(to))) return std::nullopt;
  for (ir::Op& reader : graph.ops)
    std::replace(reader.operands.begin(), reader.operands.end(), from, to);
  std::replace(graph.outputs.begin(), graph.outputs.end(), from, to);
  for (size_t i = 0; i < graph.outputs.size(); ++i) fragment->outputs[i].value = graph.outputs[i];
  return on_op(*fragment, op, "skip");
}

std::optional<Edit> swap_outputs(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr || fragment->graph.outputs.size() < 2) return std::nullopt;
  ir::Graph& graph = fragment->graph;
  const size_t a = random.below(graph.outputs.size()), b = random.below(graph.outputs.size());
  if (a == b || !(graph.type(graph.outputs[a]) == graph.type(graph.outputs[b])))
    return std::nullopt;
  std::swap(graph.outputs[a], graph.outputs[b]);
  std::swap(fragment->outputs[a].value, fragment->outputs[b].value);
  return Edit{fmt::format("swap outputs '{}' and '{}' of '{}'", fragment->outputs[a].name,
                          fragment->outputs[b].name, fragment->name)};
}

std::optional<Edit> swap_updates(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr || fragment->graph.updates.size() < 2) return std::nullopt;
  ir::Graph& graph = fragment->graph;
  ir::StateUpdate &a = any_of(graph.updates, random), &b = any_of(graph.updates, random);
  if (a.value == b.value || !(graph.type(a.value) == graph.type(b.value))) return std::nullopt;
  std::swap(a.value, b.value);
  for (size_t u = 0; u < graph.updates.size(); ++u)
    fragment->outputs[graph.outputs.size() + u].value = graph.updates[u].value;
  return Edit{fmt::format("swap updates of '{}'", fragment->name)};
}

std::optional<Edit> swap_buffers(Program& program, Random& random) {
  const size_t r = pipeline::test::any_rank(program, random);
  pipeline::RankProgram& rank = program.ranks[r];
  const size_t c = random.below(rank.commands.size());
  BufferIds& buffers = rank.commands[c].buffers;
  if (rank.commands[c].kind != Command::Kind::kCall || buffers.empty()) return std::nullopt;
  BufferId &a = any_of(buffers, random), &b = any_of(buffers, random);
  if (a == b || rank.buffers[a.index()].type() != rank.buffers[b.index()].type())
    return std::nullopt;
  std::swap(a, b);
  return pipeline::test::on_command(
      program, r, c,
      fmt::format("swap '{}' and '{}'", rank.buffers[a.index()].name(),
                  rank.buffers[b.index()].name())
          .c_str());
}

std::optional<Edit> other_load(Program& program, Random& random) {
  const size_t r = pipeline::test::any_rank(program, random);
  pipeline::RankProgram& rank = program.ranks[r];
  const size_t c = random.below(rank.commands.size()), d = random.below(rank.commands.size());
  Command &load = rank.commands[c], &other = rank.commands[d];
  if (load.kind != Command::Kind::kLoad || other.kind != Command::Kind::kLoad ||
      load.name == other.name ||
      rank.buffers[load.buffers[0].index()].type() != rank.buffers[other.buffers[0].index()].type())
    return std::nullopt;
  load.name = other.name;
  return pipeline::test::on_command(program, r, c, "other data");
}

std::optional<Edit> other_reduction(Program& program, Random& random) {
  Fragment& fragment = any_of(program.fragments, random);
  if (fragment.graph.ops.empty()) return std::nullopt;
  ir::Op& op = any_of(fragment.graph.ops, random);
  if (!ir::is_collective(op.kind)) return std::nullopt;
  auto& attrs = std::get<ir::CollectiveAttrs>(op.attrs);
  attrs.op = attrs.op == ir::Reduction::kSum ? ir::Reduction::kMax : ir::Reduction::kSum;
  return on_op(fragment, op, "other reduction");
}

// Of the layout that an op of the update works on, or what it makes of it.
std::optional<Edit> other_layout(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr) return std::nullopt;
  ir::Op& op = any_of(fragment->graph.ops, random);
  auto* attrs = std::get_if<ir::FlatAttrs>(&op.attrs);
  if (attrs == nullptr) return std::nullopt;
  int alike = 0;  // alone it is another optimizer
  for (const Fragment& other : program.fragments)
    for (const ir::Op& of : other.graph.ops) alike += of.kind == op.kind ? 1 : 0;
  switch (alike > 1 ? random.below(7) : 5) {
    case 0: attrs->max_norm = attrs->max_norm > 0 ? 0 : 1; break;
    case 1: attrs->beta1 /= 2; break;
    case 2: attrs->beta2 /= 2; break;
    case 3: attrs->epsilon *= 2; break;
    case 4: attrs->weight_decay *= 2; break;
    default: {
      if (attrs->groups.empty()) return std::nullopt;
      std::vector<ir::Segment>& group = any_of(attrs->groups, random);
      if (group.empty()) return std::nullopt;
      ir::Segment& segment = any_of(group, random);
      switch (random.below(4)) {
        case 0: segment.decay = !segment.decay; break;
        case 1: segment.counts = !segment.counts; break;
        case 2: segment.end -= 1; break;
        default:
          if (segment.counted_at_origin_of.empty())
            segment.counted_at_origin_of = {"tp"};
          else
            segment.counted_at_origin_of.clear();
      }
    }
  }
  return on_op(*fragment, op, "other layout");
}

std::optional<Edit> other_constant(Program& program, Random& random) {
  Fragment* fragment = step_fragment(program, random);
  if (fragment == nullptr) return std::nullopt;
  ir::Op& op = any_of(fragment->graph.ops, random);
  auto* attrs = std::get_if<ir::ConstantAttrs>(&op.attrs);
  if (attrs == nullptr) return std::nullopt;
  attrs->value += 1;
  return on_op(*fragment, op, "other constant");
}

std::optional<Edit> other_repeat(Program& program, Random& random) {
  const size_t r = pipeline::test::any_rank(program, random);
  pipeline::RankProgram& rank = program.ranks[r];
  if (rank.repeatable == 0) return std::nullopt;
  if (random.below(2) == 0)
    rank.repeatable += random.below(2) == 0 ? 1 : -1;
  else
    rank.amended = BufferId(static_cast<int64_t>(random.below(rank.buffers.size())));
  return Edit{fmt::format("repeats {} by {} on rank {}", rank.repeatable, rank.amended.value, r),
              static_cast<int32_t>(r)};
}

std::vector<NamedEditor> all_editors() {
  std::vector<NamedEditor> editors = pipeline::test::editors();
  editors.insert(editors.end(), {{"swap_operands", swap_operands},
                                 {"other_operand", other_operand},
                                 {"skip_op", skip_op},
                                 {"swap_outputs", swap_outputs},
                                 {"swap_updates", swap_updates},
                                 {"swap_buffers", swap_buffers},
                                 {"other_load", other_load},
                                 {"other_reduction", other_reduction},
                                 {"other_layout", other_layout},
                                 {"other_constant", other_constant},
                                 {"other_repeat", other_repeat}});
  return editors;
}

struct Tally {
  int refused = 0, harmless = 0;
  std::map<std::string, std::pair<int, int>> found;  // [editor] of those looked at, by the executor
};

// Editors choose among what there is.
bool can_be_edited(const Program& program) {
  return program.fragments.size() > 1 && program.channels.size() != 1 &&
         std::all_of(program.fragments.begin(), program.fragments.end(),
                     [](const Fragment& fragment) { return !fragment.graph.values.empty(); }) &&
         std::all_of(program.ranks.begin(), program.ranks.end(),
                     [](const auto& rank) { return !rank.commands.empty(); });
}

bool refused(const compile::CompiledPlan& compiled) {
  pipeline::VerifyOptions options;
  options.module = &compiled.module;
  for (const Program* program : {&compiled.train, compiled.validate ? &*compiled.validate : nullptr,
                                 compiled.amend ? &*compiled.amend : nullptr})
    if (program != nullptr && !pipeline::verify(*program, options).sound()) return true;
  return compiled.amend && !pipeline::amendment_findings(compiled.train, *compiled.amend).empty();
}

void check_edits(const Compiled& sound, uint64_t seed, int rounds, Tally& tally) {
  CAPTURE(to_string(sound.training));
  REQUIRE(!refused(sound.plan));
  for (const NamedEditor& editor : all_editors()) {
    for (int round = 0, tries = 0; round < rounds && tries < 40 * rounds; ++tries) {
      Random random{.seed = mix_bits(seed ^ rng_site(editor.name)) + static_cast<uint64_t>(tries)};
      const compile::CompiledPlan& plan = sound.plan;
      const Program* source = &plan.train;
      if (plan.validate && random.below(2) == 0)
        source = random.below(2) == 0 ? &*plan.validate : &*plan.amend;
      if (!can_be_edited(*source)) continue;
      Program program = *source;
      const std::optional<Edit> edit = editor.edit(program, random);
      if (!edit) continue;
      compile::CompiledPlan edited = plan;
      (source == &plan.train    ? edited.train
       : source == &*plan.amend ? *edited.amend
                                : *edited.validate) = std::move(program);
      ++round;
      const MachineOptions options{.seed = random.seed, .copying = round % 2 == 0};
      if (refused(edited)) {
        // What the executor finds is also looked at by itself, now and then.
        ++tally.refused;
        auto& [found, looked] = tally.found[editor.name];
        if (random.below(10) != 0) continue;
        ++looked;
        found += wrong_with(sound.training, edited, options) != "" ? 1 : 0;
        continue;
      }
      ++tally.harmless;
      const std::string wrong = wrong_with(sound.training, edited, options);
      if (!wrong.empty())
        FAIL_CHECK(std::string(editor.name)
                   << ", " << edit->text << " ('" << source->name << "'): accepted, but " << wrong);
    }
  }
}

TEST_CASE("what the exact executor finds wrong in an edited program, the verifier refuses") {
  const char* all = std::getenv("MESHWRIGHT_TEST_ALL");
  const bool everything = all != nullptr && std::string(all) == "1";
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  Tally tally;
  for (uint64_t i = 0; i < (everything ? 2 * kinds.size() : 4); ++i) {
    Random random{.seed = mix_bits(i + 77)};
    const std::string& kind = kinds[everything ? i % kinds.size() : random.below(kinds.size())];
    // A value without a name is known by what the calls of other microbatches take.
    Compiled sound = draw_compiled(kind, random);
    while (sound.training.plan.units() == 1) sound = draw_compiled(kind, random);
    check_edits(sound, i, everything ? 5 : 2, tally);
  }
  MESSAGE(tally.refused, " edits refused, ", tally.harmless, " harmless");
  for (const auto& [name, counts] : tally.found)
    MESSAGE(fmt::format("{}: the executor finds {} of {}", name, counts.first, counts.second));
}

}  // namespace
}  // namespace mw::field

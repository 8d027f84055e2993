#include "compile/cut.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace mw::compile {
namespace {

constexpr int32_t kEverywhere = -1;

class Cutter {
 public:
  Cutter(const ir::Graph& whole, const std::vector<int32_t>& stage_of_layer, int32_t stages)
      : whole_(whole),
        stage_of_layer_(stage_of_layer),
        stages_(static_cast<size_t>(stages)),
        input_of_(whole.values.size(), nullptr) {
    for (const ir::Input& input : whole.inputs) input_of_[input.value.index()] = &input;
    for (size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].stage = StageId(static_cast<int64_t>(s));
      stages_[s].graph.name = fmt::format("{} stage {}", whole.name, s);
      local_.emplace_back(whole.values.size());
    }
  }

  std::vector<StageGraph> run() {
    for (const ir::Op& op : whole_.ops) {
      if (home(op) != kEverywhere) place(op, static_cast<size_t>(home(op)));
    }
    for (const ValueId output : whole_.outputs) {
      const size_t s = home_of_output(output);
      stages_[s].graph.outputs.push_back(get(s, output));
      stages_[s].results.push_back(stages_[s].graph.outputs.back());
    }
    for (const ir::StateUpdate& update : whole_.updates) {
      const size_t s = home_of_output(update.value);
      stages_[s].graph.updates.push_back({update.state, get(s, update.value)});
    }
    return std::move(stages_);
  }

 private:
  int32_t home(const ir::Op& op) const {
    return op.layer.valid() ? stage_of_layer_[op.layer.index()] : kEverywhere;
  }
  size_t home_of_output(ValueId v) const {
    const OpId producer = whole_.value(v).producer;
    if (!producer.valid() || home(whole_.op(producer)) == kEverywhere) return stages_.size() - 1;
    return static_cast<size_t>(home(whole_.op(producer)));
  }

  // The value in a stage: there already, an input of the whole graph, a clone, or received.
  ValueId get(size_t s, ValueId v) {
    ValueId& here = local_[s][v.index()];
    if (here.valid()) return here;
    const ir::Value& value = whole_.value(v);
    StageGraph& stage = stages_[s];
    if (!value.producer.valid()) {
      const ir::Input* input = input_of_[v.index()];
      MW_CHECK(input != nullptr, "{} has no producer and is no input", whole_.label(v));
      here = stage.graph.add_input(value.type, value.name, input->state);
    } else {
      const ir::Op& producer = whole_.op(value.producer);
      const int32_t at = home(producer);
      if (at == kEverywhere) {
        place(producer, s);
        return local_[s][v.index()];
      }
      MW_CHECK(static_cast<size_t>(at) != s, "{} is used in stage {} before it is made",
               whole_.label(v), s);
      here = stage.graph.add_input(value.type, value.name);
      const bool backward = producer.work != ir::Work::kForward;
      const ValueId sent = get(static_cast<size_t>(at), v);
      stage.receives.push_back({here, v, StageId(at), backward});
      stages_[static_cast<size_t>(at)].sends.push_back(
          {sent, v, StageId(static_cast<int64_t>(s)), backward});
    }
    stage.graph.value(here).logical = value.logical;
    stage.whole.resize(stage.graph.values.size());
    stage.whole[here.index()] = v;
    return here;
  }

  void place(const ir::Op& op, size_t s) {
    ir::Op clone = op;
    for (ValueId& v : clone.operands) v = get(s, v);
    StageGraph& stage = stages_[s];
    const OpId id = stage.graph.add_copy(std::move(clone), whole_);
    stage.whole.resize(stage.graph.values.size());
    for (size_t i = 0; i < op.results.size(); ++i) {
      const ValueId made = stage.graph.op(id).results[i];
      stage.graph.value(made).logical = whole_.value(op.results[i]).logical;
      stage.whole[made.index()] = op.results[i];
      local_[s][op.results[i].index()] = made;
    }
  }

  const ir::Graph& whole_;
  const std::vector<int32_t>& stage_of_layer_;
  std::vector<StageGraph> stages_;
  std::vector<const ir::Input*> input_of_;  // [whole value] null: it is none
  std::vector<ValueIds> local_;             // [stage][whole value]
};

}  // namespace

std::vector<StageGraph> cut(const ir::Graph& whole, const std::vector<int32_t>& stage_of_layer,
                            int32_t stages) {
  return Cutter(whole, stage_of_layer, stages).run();
}

}  // namespace mw::compile

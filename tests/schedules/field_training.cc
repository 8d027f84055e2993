#include "field_training.h"

#include <fmt/format.h>

#include "base/error.h"
#include "models/model.h"

namespace mw::field {
namespace {

using compile::CompiledPlan;
using compile::FlatGroup;

constexpr int64_t kSequence = 4, kVocabulary = 10;

// Sizes that two and four ranks divide, but for the vocabulary.
constexpr std::array<const char*, kModels> kConfigs = {
    R"({"model_type": "gpt2", "vocab_size": 10, "n_positions": 4, "n_embd": 8, "n_layer": 4,
        "n_head": 4, "n_inner": 12, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1})",
    R"({"model_type": "llama", "vocab_size": 10, "max_position_embeddings": 4, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": false})",
    R"({"model_type": "mixtral", "vocab_size": 10, "max_position_embeddings": 4, "hidden_size": 8,
        "intermediate_size": 4, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 4,
        "hidden_act": "silu", "tie_word_embeddings": true})"};

// Everything is a function of the sample and the position in it.
Loader loader(uint64_t step) {
  return [step](const std::string& name, int32_t, const Index& at) -> uint64_t {
    if (name == "seed") return 11;
    if (name == "step") return step;
    if (at.empty()) return hash(Function::kInput, rng_site(name), name == "lr" ? step : 0);
    if (name == "sample_ids") return static_cast<uint64_t>(at[0]);
    if (name == "positions") return static_cast<uint64_t>(at[1]);
    const Num drawn = hash(Function::kInput, rng_site(name), at[0], at[1], step);
    if (name == "targets" && drawn % 8 == 0) return static_cast<uint64_t>(int64_t{-100});
    return drawn / 8 % kVocabulary;
  };
}

struct Trained {
  std::map<std::string, std::array<Array, 3>> states;  // [parameter] weight, moments
  Num loss = 0, norm = 0;
};

std::array<Array, 3> initial(const ir::State& parameter) {
  std::array<Array, 3> made;
  for (size_t which = 0; which < 3; ++which) {
    made[which] = zeros(parameter.type);
    for (size_t i = 0; i < made[which].values.size(); ++i)
      made[which].values[i] = hash(Function::kInput, rng_site(parameter.name), which, i);
  }
  return made;
}

// What initialisation draws.
Num drawn(const ir::State& parameter, size_t element) {
  switch (parameter.init.kind) {
    case ir::Init::Kind::kZeros: return 0;
    case ir::Init::Kind::kOnes: return 1;
    default: break;
  }
  ir::RandomAttrs attrs;
  const bool normal = parameter.init.kind == ir::Init::Kind::kNormal;
  attrs.distribution =
      normal ? ir::RandomAttrs::Distribution::kNormal : ir::RandomAttrs::Distribution::kUniform;
  attrs.scale = parameter.init.scale;
  attrs.site = "init/" + parameter.name;
  return random_value(attrs, loader(0)("seed", -1, {}), element);
}

// One step of the whole batch, op by op at global shapes.
Trained step(const ir::Module& module, const ir::FlatAttrs& optimizer, const Trained& before,
             const Loader& data) {
  const ir::Graph& graph = *module.find_graph("microbatch");
  std::vector<Array> values(graph.values.size());
  for (const ir::Input& input : graph.inputs) {
    Array& array = values[input.value.index()] = zeros(graph.type(input.value));
    if (!input.state.valid()) {
      for_each(array.type, [&](const Index& index, size_t at) {
        array.values[at] = data(graph.value(input.value).name, 0, index);
      });
    } else if (module.state(input.state).kind == ir::StateKind::kWeight) {
      array = before.states.at(module.state(input.state).name)[0];
    }
  }
  const cluster::Mesh one;
  for (const ir::Op& op : graph.ops) {
    std::vector<Array> operands;
    std::vector<ir::TensorType> types;
    for (const ValueId v : op.operands) operands.push_back(values[v.index()]);
    for (const ValueId v : op.results) types.push_back(graph.type(v));
    std::vector<Array> results = evaluate(op, operands, types, {one, RankId(0)});
    for (size_t r = 0; r < results.size(); ++r)
      values[op.results[r].index()] = std::move(results[r]);
  }
  Trained after;
  std::map<std::string, Array> gradients;
  for (const ir::StateUpdate& update : graph.updates) {
    const ir::State& state = module.state(update.state);
    const Array& value = values[update.value.index()];
    if (state.kind == ir::StateKind::kMetric)
      after.loss = mul(value.values[0], data("loss_scale", -1, {}));
    if (state.kind != ir::StateKind::kGradient) continue;
    Array& sum =
        gradients.try_emplace(module.state(state.parameter).name, zeros(value.type)).first->second;
    for (size_t i = 0; i < sum.values.size(); ++i)
      sum.values[i] = add(sum.values[i], value.values[i]);
  }
  Num squares = 0;
  for (const auto& [name, gradient] : gradients)
    for (const Num g : gradient.values) squares = add(squares, mul(g, g));
  after.norm = hash(Function::kSqrt, squares);
  after.states = before.states;
  for (auto& [name, states] : after.states) {
    const ir::State& parameter = module.state(*module.find_state(name));
    for (size_t i = 0; i < states[0].values.size(); ++i) {
      const Moments moments{states[0].values[i], states[1].values[i], states[2].values[i]};
      const Moments next = adamw_step(optimizer, moments, gradients.at(name).values[i],
                                      clip_factor(squares, optimizer.max_norm), data("lr", -1, {}),
                                      data("step", -1, {}), parameter.decay);
      states[0].values[i] = next.weight;
      states[1].values[i] = next.m;
      states[2].values[i] = next.v;
    }
  }
  return after;
}

compile::OptimizerSpec optimizer_of(const Training& training) {
  compile::OptimizerSpec optimizer;
  optimizer.max_norm = training.max_norm;
  return optimizer;
}

// [steps] what one device has.
const std::vector<Trained>& reference(const Training& training) {
  static std::map<std::tuple<size_t, int64_t, double>, std::vector<Trained>> known;
  std::vector<Trained>& steps = known[{training.model, training.batch, training.max_norm}];
  if (!steps.empty()) return steps;
  Training alone = training;
  alone.plan = compile::Plan();
  const ir::Module module = compile_training(alone).module;
  ir::FlatAttrs attrs;
  const compile::OptimizerSpec optimizer = optimizer_of(training);
  attrs.beta1 = optimizer.beta1, attrs.beta2 = optimizer.beta2, attrs.epsilon = optimizer.epsilon;
  attrs.weight_decay = optimizer.weight_decay, attrs.max_norm = optimizer.max_norm;
  steps.emplace_back();
  for (const ir::Input& input : module.find_graph("microbatch")->inputs) {
    if (!input.state.valid() || module.state(input.state).kind != ir::StateKind::kWeight) continue;
    const ir::State& parameter = module.state(input.state);
    steps[0].states[parameter.name] = initial(parameter);
  }
  for (uint64_t s = 1; s <= 2; ++s) steps.push_back(step(module, attrs, steps.back(), loader(s)));
  return steps;
}

// A training's machine and what is asked of it.
class Run {
 public:
  Run(const Training& training, const CompiledPlan& compiled, const MachineOptions& options)
      : wanted_(reference(training)),
        compiled_(compiled),
        mesh_(compiled.train.mesh),
        machine_(compiled.train, options) {}

  void all() {
    machine_.run(compiled_.init, loader(0));
    each_device([&](RankId rank) { check_initial(rank); });
    each_device([&](RankId rank) { start(rank); });
    if (compiled_.validate) {
      call(compiled_.train, 1);
      call(compiled_.train, 2);
      call(*compiled_.validate, 3);
    } else {
      machine_.run(compiled_.train, loader(1));
      each_device([&](RankId rank) { check_metrics(rank, 1); });
    }
    each_device([&](RankId rank) { check_final(rank, compiled_.validate ? 2 : 1); });
  }

 private:
  template <typename Visit>
  void each_device(Visit visit) {
    for (int64_t rank = 0; rank < mesh_.size(); ++rank) visit(RankId(rank));
  }
  size_t coordinate(RankId rank) const { return static_cast<size_t>(mesh_.index(rank, {"pp"})); }
  const std::string& name(StateId state) const { return compiled_.module.state(state).name; }

  // A call that validates the step before, and goes back once at the most.
  void call(const pipeline::Program& program, uint64_t number) {
    const auto validated = [&](RankId rank) {
      if (number > 1) check_metrics(rank, number - 1);
    };
    if (!machine_.run(program, loader(number), validated)) return;
    MW_CHECK(number > 1, "there is no step to amend");
    machine_.run(*compiled_.amend, loader(number - 1));
    if (&program == &*compiled_.validate) return;
    MW_CHECK(!machine_.run(program, loader(number)), "a step is amended twice");
  }

  // Calls visit(buffer, element, parameter, which, global element) for all elements of weights and
  // moments that a device holds.
  template <typename Visit>
  void each_element(RankId rank, Visit visit) {
    for (const FlatGroup& group : compiled_.groups[coordinate(rank)]) {
      const std::array<StateId, 3> states = {group.weight, group.moment, group.variance};
      for (size_t which = 0; which < 3; ++which) {
        const BufferId id = compiled_.states[coordinate(rank)].at(name(states[which]));
        const int64_t local = machine_.rank_program(rank).buffers[id.index()].type().elements();
        const int64_t first =
            local < group.elements ? mesh_.index(rank, group.data_axes) * local : 0;
        for (const compile::GroupMember& member : group.members) {
          for_each(member.local, [&](const Index& index, size_t at) {
            Index global = index;
            bool padding = false;
            for (size_t d = 0; d < index.size(); ++d) {
              global[d] += mesh_.index(rank, member.sharding.dims[d]) * member.local.dims[d].size;
              padding = padding || global[d] >= member.global.dims[d].size;
            }
            const int64_t element = member.offset + static_cast<int64_t>(at) - first;
            if (!padding && element >= 0 && element < local)
              visit(id, static_cast<size_t>(element), name(member.parameter), which,
                    place(member.global, global));
          });
        }
      }
    }
  }

  void start(RankId rank) {
    std::map<BufferId, Array> arrays;
    each_element(rank, [&](BufferId id, size_t element, const std::string& parameter, size_t which,
                           size_t global) {
      Array& array =
          arrays.try_emplace(id, zeros(machine_.rank_program(rank).buffers[id.index()].type()))
              .first->second;
      array.values[element] = wanted_[0].states.at(parameter)[which].values[global];
    });
    for (const auto& [id, array] : arrays) machine_.set_state(rank, id, array);
  }

  template <typename Wanted>
  void check(RankId rank, size_t of, const char* when, Wanted wanted) {
    std::map<BufferId, Array> arrays;
    each_element(rank, [&](BufferId id, size_t element, const std::string& parameter, size_t which,
                           size_t global) {
      if (which >= of) return;
      if (!arrays.contains(id)) arrays[id] = machine_.state(rank, id);
      MW_CHECK(arrays[id].values[element] == wanted(parameter, which, global),
               "device {} {}: state {} of parameter '{}' is another in element {}", rank.value,
               when, which, parameter, global);
    });
  }
  void check_initial(RankId rank) {
    check(rank, 1, "at its begin", [&](const std::string& parameter, size_t, size_t global) {
      return drawn(compiled_.module.state(*compiled_.module.find_state(parameter)), global);
    });
  }
  void check_final(RankId rank, size_t steps) {
    check(rank, 3, "at its end", [&](const std::string& parameter, size_t which, size_t global) {
      return wanted_[steps].states.at(parameter)[which].values[global];
    });
    const pipeline::RankProgram& program = machine_.rank_program(rank);
    for (int32_t b = 0; b < program.states; ++b) {
      const pipeline::Buffer& buffer = program.buffers[static_cast<size_t>(b)];
      if (buffer.storage.kind != pipeline::Storage::Kind::kState) continue;
      if (buffer.category != pipeline::Category::kGradients && buffer.value != "loss") continue;
      for (const Num x : machine_.state(rank, BufferId(b)).values)
        MW_CHECK(x == 0, "device {}: '{}' is not cleared", rank.value, buffer.name());
    }
  }
  void check_metrics(RankId rank, size_t steps) {
    const auto metric = [&](const char* of) {
      return machine_.state(rank, compiled_.states[coordinate(rank)].at(of)).values[0];
    };
    MW_CHECK(metric(compile::kLossValue) == wanted_[steps].loss, "device {}: another loss",
             rank.value);
    MW_CHECK(metric(compile::kGradNorm) == wanted_[steps].norm, "device {}: another norm",
             rank.value);
  }

  const std::vector<Trained>& wanted_;
  const CompiledPlan& compiled_;
  const cluster::Mesh& mesh_;
  Machine machine_;
};

}  // namespace

std::string to_string(const Training& training) {
  return fmt::format("model {}, batch {}, max_norm {}, {}", training.model, training.batch,
                     training.max_norm, short_form(training.plan));
}

CompiledPlan compile_training(const Training& training) {
  const models::ModelConfig config =
      models::parse_config(kConfigs[training.model], fmt::format("model-{}.json", training.model));
  const compile::Plan& plan = training.plan;
  compile::ModelShape shape;
  shape.name = config.source;
  shape.must_divide["heads"] = config.heads;
  if (config.kv_heads != config.heads) shape.must_divide["kv_heads"] = config.kv_heads;
  for (const auto& [axis, size] : shape.must_divide) shape.key[axis] = axis;
  shape.global_batch = training.batch;
  shape.seq_len = kSequence;
  shape.experts = config.mixture.experts, shape.top_k = config.mixture.top_k;
  const std::vector<std::string> findings = compile::plan_findings(plan, config.layers, shape);
  if (!findings.empty()) throw Error(findings);
  const ir::Module module = models::build_model(
      config, {training.batch / plan.units(), kSequence, plan.sequence_slices(), plan.cp > 1});
  return compile::compile({module, nullptr, plan, shape, optimizer_of(training)});
}

std::string wrong_with(const Training& training, const CompiledPlan& compiled,
                       const MachineOptions& options) {
  try {
    Run(training, compiled, options).all();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace mw::field

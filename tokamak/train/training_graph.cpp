#include "tokamak/train/training_graph.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/differentiate.h"
#include "tokamak/ops/accumulate.h"
#include "tokamak/ops/adamw.h"
#include "tokamak/ops/add.h"
#include "tokamak/ops/grad_norm.h"
#include "tokamak/ops/lm_head_loss.h"

namespace tokamak {
namespace {

StateId declare(Graph& g, const std::string& name, DType dtype, Dims dims, StateKind kind) {
  return g.states().declare_once(
      {.name = name, .type = {.dtype = dtype, .dims = std::move(dims)}, .kind = kind});
}

StepState declare_inputs(Graph& g, const std::string& prefix, const TrainingGraphOptions& o) {
  const Dims rows{o.batch, o.seq_len};
  return {.tokens = declare(g, prefix + "tokens", DType::kI32, rows, StateKind::kInput),
          .labels = declare(g, prefix + "labels", DType::kI32, rows, StateKind::kInput),
          .positions = declare(g, prefix + "positions", DType::kI32, rows, StateKind::kInput),
          .loss_scale = declare(g, prefix + "loss_scale", DType::kF32, {1}, StateKind::kInput),
          .loss = declare(g, prefix + "loss", DType::kF64, {1}, StateKind::kResult)};
}

struct Forward {
  Value loss;
  std::vector<Parameter> parameters;
};

// The model and its loss, which accumulates over microbatches into State.
Forward build_forward(Graph& g, const ModelSpec& config, const TrainingGraphOptions& o,
                      const StepState& state, bool with_gradient) {
  Parameters parameters(g, o.master, o.compute);
  const Value loss_into = g.read(state.loss);
  const ModelInputs inputs{.tokens = g.read(state.tokens),
                           .positions = g.read(state.positions),
                           .rows = state.rows.valid() ? g.read(state.rows) : Value{}};
  const Value labels = g.read(state.labels);
  const Value scale = g.read(state.loss_scale);
  const ModelOutputs out = build_model(g, parameters, config, inputs, o.seed);
  const Value loss =
      g.add(LmHeadLoss{.with_gradient = with_gradient}, {out.hidden, out.head, labels, scale})[0];
  g.accumulate(loss, loss_into, AccumulateMode::kFirstMicrobatch);
  return {.loss = loss, .parameters = parameters.all()};
}

bool has_dropout(const ModelSpec& c) {
  return c.embedding_dropout > 0.0 || c.attention_dropout > 0.0 || c.residual_dropout > 0.0;
}

// Every parameter's gradient, accumulated in State of its own.
std::vector<Value> build_gradients(Graph& g, const Forward& forward,
                                   const std::vector<Value>& storage) {
  const auto sum = [](Graph& graph, Value a, Value b) { return graph.apply(Add{}, {a, b}); };
  std::vector<Value> wrt;
  for (const Parameter& p : forward.parameters) wrt.push_back(p.compute);
  const std::vector<Seed> seeds{{.of = forward.loss, .cotangent = forward.loss}};
  const auto contributions = differentiate(g, seeds, wrt, sum);
  std::vector<Value> gradients;
  for (size_t i = 0; i < wrt.size(); ++i) {
    TOK_CHECK(!contributions[i].empty(), "{} has no gradient",
              g.states()[forward.parameters[i].state].name);
    Value total = storage[i];
    auto mode = AccumulateMode::kFirstMicrobatch;
    for (const Value part : contributions[i]) {
      const LabelScope scope(g, g.producer(part).label);
      total = accumulate_into(g, part, total, mode);
      mode = AccumulateMode::kAlways;
    }
    gradients.push_back(total);
  }
  return gradients;
}

void build_update(Graph& g, const Forward& forward, const std::vector<Value>& gradients,
                  const StepState& state, const OptimizerOptions& o) {
  const LabelScope scope(g, {.phase = Phase::kUpdate});
  Value sum = g.read(declare(g, "grad_sum", DType::kF64, {1}, StateKind::kResult));
  const Value norm_into = g.read(state.grad_norm);
  auto mode = AccumulateMode::kFirstMicrobatch;
  for (const Value gradient : gradients) {
    sum = accumulate_into(g, g.apply(SumSquares{}, {gradient}), sum, mode);
    mode = AccumulateMode::kAlways;
  }
  const std::vector<Value> clip = g.add(ClipFactor{.max_norm = o.max_norm}, {sum, forward.loss});
  accumulate_into(g, clip[0], norm_into, AccumulateMode::kFirstMicrobatch);
  const Value scalars = g.read(state.scalars);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const StateDecl decl = g.states()[forward.parameters[i].state];
    const auto moment = [&](char which) {
      return g.read(g.states().declare_once({.name = moment_name(which, decl.name),
                                             .type = decl.type,
                                             .kind = StateKind::kMoment,
                                             .axes = decl.axes,
                                             .block = decl.block}));
    };
    const bool decays = std::none_of(
        o.no_decay.begin(), o.no_decay.end(),
        [&](const std::string& part) { return decl.name.find(part) != std::string::npos; });
    const AdamW adam{.beta1 = o.beta1,
                     .beta2 = o.beta2,
                     .eps = o.eps,
                     .weight_decay = decays ? o.weight_decay : 0.0,
                     .decoupled = o.decoupled_decay};
    const LabelScope block(g, {.phase = Phase::kUpdate, .block = decl.block});
    g.add(adam, {g.read(forward.parameters[i].state), moment('m'), moment('v'), gradients[i],
                 scalars, clip[1]});
  }
}

}  // namespace

std::string moment_name(char which, std::string_view parameter) {
  return fmt::format("optimizer.{}.{}", which, parameter);
}

StepState build_training_graph(Graph& g, const ModelSpec& config, const TrainingGraphOptions& o) {
  StepState state = declare_inputs(g, "", o);
  state.scalars = declare(g, "scalars", DType::kF64, {3}, StateKind::kInput);
  state.grad_norm = declare(g, "grad_norm", DType::kF64, {1}, StateKind::kResult);
  if (has_dropout(config))
    state.rows = declare(g, "rows", DType::kI64, {o.batch}, StateKind::kInput);
  const Forward forward = build_forward(g, config, o, state, true);
  std::vector<Value> storage;
  for (const Parameter& p : forward.parameters) {
    const StateDecl decl = g.states()[p.state];
    storage.push_back(g.read(g.states().declare_once(
        {.name = "grad." + decl.name,
         .type = {.dtype = gradient_dtype(o.compute), .dims = decl.type.dims},
         .kind = StateKind::kGradient,
         .axes = decl.axes,
         .block = decl.block})));
  }
  const std::vector<Value> gradients = build_gradients(g, forward, storage);
  build_update(g, forward, gradients, state, o.optimizer);
  return state;
}

StepState build_validation_graph(Graph& g, const ModelSpec& config, const TrainingGraphOptions& o) {
  const StepState state = declare_inputs(g, "validation.", o);
  build_forward(g, config, o, state, false);
  return state;
}

}  // namespace tokamak

#include "tokamak/run/training_graph.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/graph/differentiate.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/ops/vocab/lm_head_loss.h"

namespace tokamak {
namespace {

using enum LogicalAxis;

StateId declare(Graph& g, const std::string& name, DType dtype, Dims dims, StateKind kind,
                Axes axes = {}) {
  return g.states().declare_once({.name = name,
                                  .type = {.dtype = dtype, .dims = std::move(dims)},
                                  .kind = kind,
                                  .axes = std::move(axes)});
}

StepState declare_inputs(Graph& g, const std::string& prefix, const TrainingGraphOptions& o) {
  const Dims rows{o.batch, o.seq_len};
  const Axes axes{kBatch, kSequence};
  return {.tokens = declare(g, prefix + "tokens", DType::kI32, rows, StateKind::kInput, axes),
          .labels = declare(g, prefix + "labels", DType::kI32, rows, StateKind::kInput, axes),
          .positions = declare(g, prefix + "positions", DType::kI32, rows, StateKind::kInput, axes),
          .loss_scale = declare(g, prefix + "loss_scale", DType::kF32, {1}, StateKind::kInput),
          .loss = declare(g, prefix + "loss", DType::kF64, {1}, StateKind::kResult)};
}

struct Forward {
  Value loss;
  std::vector<Parameter> parameters;
};

// Builds the model and its loss, which accumulates over microbatches into State.
Forward build_forward(Graph& g, const ModelSpec& config, const TrainingGraphOptions& o,
                      const StepState& state, bool with_gradient) {
  Parameters parameters(g, o.master, o.compute, o.has_copies);
  const Value loss_into = g.read(state.loss);
  const ModelInputs inputs{.tokens = g.read(state.tokens),
                           .positions = g.read(state.positions),
                           .rows = state.rows.valid() ? g.read(state.rows) : Value{}};
  const Value labels = g.read(state.labels);
  const Value scale = g.read(state.loss_scale);
  const ModelOutputs out = build_model(g, parameters, config, inputs, o.seed);
  Label label = g.label;
  label.module = head_module(config);
  const LabelScope scope(g, label);
  const Value loss = g.add(LmHeadLoss{.chunk_bytes = o.logits_bytes,
                                      .column_multiple = o.logits_multiple,
                                      .cap = out.logit_cap,
                                      .with_gradient = with_gradient},
                           {out.hidden, out.head, labels, scale})[0];
  g.accumulate(loss, loss_into, AccumulateMode::kFirstMicrobatch);
  return {.loss = loss, .parameters = parameters.all()};
}

bool has_dropout(const ModelSpec& c) {
  return c.dropout.embedding > 0.0 || c.dropout.attention > 0.0 || c.dropout.residual > 0.0;
}

// Builds every parameter's gradient, each accumulated in its own State.
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

// Whether the unit is one whole tensor that no other rank counts. It may have any shape and needs
// no ranges.
bool is_whole(const Graph& g, const UpdateUnit& unit) {
  return unit.tensors.size() == 1 && unit.tensors[0].norm_weight == 1.0 &&
         unit.tensors[0].places == ElementPlaces{} &&
         unit.tensors[0].end - unit.tensors[0].begin == g.type(unit.gradient).numel();
}

// Returns the sum of squares over units, each tensor times its weight, the same on all ranks.
Value sum_of_squares(Graph& g, std::span<const UpdateUnit> units, const NormGroups& groups) {
  Value sum = g.read(declare(g, "grad_sum", DType::kF64, {1}, StateKind::kResult));
  auto mode = AccumulateMode::kFirstMicrobatch;
  for (const UpdateUnit& unit : units) {
    SumSquares squares;
    for (const TensorRange& t : unit.tensors) {
      if (!is_whole(g, unit))
        squares.ranges.push_back({.begin = t.begin, .end = t.end, .weight = t.norm_weight});
    }
    sum = accumulate_into(g, g.apply(squares, {unit.gradient}), sum, mode);
    mode = AccumulateMode::kAlways;
  }
  if (groups.sum.size > 1)
    sum = g.apply(AllReduce{.group = groups.sum, .op = ReduceOp::kSum}, {sum});
  if (groups.copies.size > 1)
    sum = g.apply(AllReduce{.group = groups.copies, .op = ReduceOp::kMax}, {sum});
  return sum;
}

AdamW adamw_of(const Graph& g, const UpdateUnit& unit, const OptimizerOptions& o, uint64_t seed) {
  AdamW adam{.beta1 = o.beta1,
             .beta2 = o.beta2,
             .eps = o.eps,
             .weight_decay = o.weight_decay,
             .decoupled = o.decoupled_decay,
             .has_copy = unit.copy.valid(),
             .is_stochastic = o.state == DType::kBF16,
             .seed = seed};
  for (const TensorRange& t : unit.tensors) {
    const bool decays = std::ranges::none_of(o.no_decay, [&](const std::string& part) {
      return t.tensor.find(part) != std::string::npos;
    });
    adam.ranges.push_back({.begin = t.begin,
                           .end = t.end,
                           .weight_decay = decays ? o.weight_decay : 0.0,
                           .stream = stream_of(t.tensor),
                           .places = t.places});
  }
  if (!is_whole(g, unit)) return adam;
  adam.weight_decay = adam.ranges[0].weight_decay;
  adam.stream = adam.ranges[0].stream;
  adam.ranges.clear();
  return adam;
}

}  // namespace

void build_update(Graph& g, std::span<const UpdateUnit> units, Value loss, const StepState& state,
                  const OptimizerOptions& o, uint64_t seed, const NormGroups& norm) {
  const LabelScope scope(g, {.phase = Phase::kUpdate});
  const Value sum = sum_of_squares(g, units, norm);
  std::vector<Value> of_clip{sum, loss};
  if (state.norm_limit.valid()) of_clip.push_back(g.read(state.norm_limit));
  const std::vector<Value> clip = g.add(ClipFactor{.max_norm = o.max_norm}, std::move(of_clip));
  accumulate_into(g, clip[0], g.read(state.grad_norm), AccumulateMode::kFirstMicrobatch);
  const Value scalars = g.read(state.scalars);
  for (const UpdateUnit& unit : units) {
    const LabelScope block(g, {.phase = Phase::kUpdate, .block = unit.block});
    std::vector<Value> in{g.read(unit.master),
                          g.read(unit.moments[0]),
                          g.read(unit.moments[1]),
                          unit.gradient,
                          scalars,
                          clip[1]};
    if (unit.copy.valid()) in.push_back(g.read(unit.copy));
    g.add(adamw_of(g, unit, o, seed), std::move(in));
  }
}

void build_copies(Graph& g, std::span<const UpdateUnit> units) {
  for (const UpdateUnit& unit : units) {
    if (!unit.copy.valid()) continue;
    const LabelScope block(g, {.phase = Phase::kUpdate, .block = unit.block});
    accumulate_into(g, g.read(unit.master), g.read(unit.copy), AccumulateMode::kNever);
  }
}

GradientGraph build_gradient_graph(Graph& g, const ModelSpec& config,
                                   const TrainingGraphOptions& o) {
  StepState state = declare_inputs(g, "", o);
  state.scalars = declare(g, "scalars", DType::kF64, {4}, StateKind::kInput);
  state.grad_norm = declare(g, "grad_norm", DType::kF64, {1}, StateKind::kResult);
  if (o.optimizer.limits_norm)
    state.norm_limit = declare(g, "norm_limit", DType::kF64, {1}, StateKind::kInput);
  if (has_dropout(config))
    state.rows = declare(g, "rows", DType::kI64, {o.batch}, StateKind::kInput, {kBatch});
  const Forward forward = build_forward(g, config, o, state, true);
  const DType moments = o.optimizer.state.value_or(o.master);
  std::vector<Value> storage;
  std::vector<UpdateUnit> units;
  for (const Parameter& p : forward.parameters) {
    const StateDecl decl = g.states()[p.state];
    const auto like = [&](const std::string& name, DType dtype, StateKind kind) {
      return g.states().declare_once({.name = name,
                                      .type = {.dtype = dtype, .dims = decl.type.dims},
                                      .kind = kind,
                                      .axes = decl.axes,
                                      .block = decl.block,
                                      .module = decl.module});
    };
    storage.push_back(
        g.read(like("grad." + decl.name, gradient_dtype(o.compute), StateKind::kGradient)));
    units.push_back({.block = decl.block,
                     .master = p.state,
                     .moments = {like(moment_name("m", decl.name), moments, StateKind::kMoment),
                                 like(moment_name("v", decl.name), moments, StateKind::kMoment)},
                     .copy = p.copy,
                     .tensors = {{.tensor = decl.name, .end = decl.type.numel()}}});
  }
  const std::vector<Value> gradients = build_gradients(g, forward, storage);
  for (size_t i = 0; i < units.size(); ++i) units[i].gradient = gradients[i];
  return {.state = state, .loss = forward.loss, .units = std::move(units)};
}

StepState build_validation_graph(Graph& g, const ModelSpec& config, const TrainingGraphOptions& o) {
  const StepState state = declare_inputs(g, "validation.", o);
  build_forward(g, config, o, state, false);
  return state;
}

}  // namespace tokamak

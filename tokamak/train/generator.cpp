#include "tokamak/train/generator.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/state/snapshot.h"

namespace tokamak {
namespace {

constexpr int64_t kPromptChunk = 64;

// State and plan of "append S tokens, then the logits of the last one".
struct AppendStep {
  StateId tokens;
  StateId positions;
  std::optional<Plan> plan;
  std::unique_ptr<Executor> executor;
  int64_t length = 0;
};

void require_memory(const Plan& one, const Plan& other, const Backend& backend) {
  const int64_t bytes = peak_bytes(one, &other);
  const auto free = backend.free_bytes();
  TOK_REQUIRE(!free || bytes <= *free,
              "generate: not enough GPU memory: weights and cache want {} bytes, {} are free; use "
              "--dtype bfloat16 or a smaller --seq-len",
              bytes, *free);
  if (!free) {
    require_host_memory(bytes, 1,
                        "generate: not enough memory for weights and cache; use --dtype bfloat16 "
                        "or a smaller --seq-len");
  }
}

// Whether the item makes compute copies of the weights.
bool makes_copies(const Plan& plan, const ScheduleItem& item) {
  return plan.segments[item.segment].runs == Segment::Runs::kOnceBefore;
}

}  // namespace

struct Generator::Impl {
  ModelSpec config;
  int64_t capacity = 0;
  DType compute;
  StateTable states;
  StateId position;
  StateId cached_length;
  StateId logits;
  KvCache cache;
  std::array<AppendStep, 2> steps;  // one token, one chunk
  StateLayout layout;
  std::optional<Memory> memory;
  std::optional<StateAccess> access;

  StateId declare(const std::string& name, DType dtype, Dims dims, StateKind kind) {
    return states.declare_once(
        {.name = name, .type = {.dtype = dtype, .dims = std::move(dims)}, .kind = kind});
  }

  void declare_cache() {
    const Dims dims{1, capacity, config.num_kv_heads, config.head_dim};
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      cache.keys.push_back(
          declare(fmt::format("cache.{}.keys", layer), compute, dims, StateKind::kCache));
      cache.values.push_back(
          declare(fmt::format("cache.{}.values", layer), compute, dims, StateKind::kCache));
    }
    position = declare("position", DType::kI32, {1}, StateKind::kInput);
    cached_length = declare("cached_length", DType::kI32, {1}, StateKind::kInput);
    logits = declare("logits", DType::kF32, {1, config.vocab_size}, StateKind::kResult);
  }

  Graph build(AppendStep& step) {
    const int64_t S = step.length;
    Graph g(states);
    step.tokens = declare(fmt::format("tokens.{}", S), DType::kI32, {1, S}, StateKind::kInput);
    step.positions =
        declare(fmt::format("positions.{}", S), DType::kI32, {1, S}, StateKind::kInput);
    KvCache here = cache;
    here.position = g.read(position);
    here.length = g.read(cached_length);
    Parameters parameters(g, compute, compute);
    const ModelInputs inputs{
        .tokens = g.read(step.tokens), .positions = g.read(step.positions), .cache = &here};
    const ModelOutputs out = build_model(g, parameters, config, inputs, 0);
    const Value rows = g.apply(Reshape{.dims = {-1, config.dim}}, {out.hidden});
    const Value last = g.apply(SliceRows{.begin = S - 1, .end = S}, {rows});
    const Value y = g.apply(Linear{}, {last, out.head});
    accumulate_into(g, y, g.read(logits), AccumulateMode::kFirstMicrobatch);
    return g;
  }

  void append(AppendStep& step, std::span<const int32_t> tokens, int64_t from) {
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(from));
    const int32_t at[] = {static_cast<int32_t>(from)};
    const int32_t length[] = {static_cast<int32_t>(from + static_cast<int64_t>(tokens.size()))};
    access->write(step.tokens, tokens);
    access->write(step.positions, std::span<const int32_t>(positions));
    access->write(position, std::span<const int32_t>(at));
    access->write(cached_length, std::span<const int32_t>(length));
    for (const ScheduleItem& item : step.plan->schedule(1)) {
      if (!makes_copies(*step.plan, item)) step.executor->run(item);
    }
  }
};

Generator::Generator(const ModelSpec& config, std::span<const TensorSource> parameters,
                     DType compute, int64_t capacity, Backend& backend)
    : impl_(std::make_unique<Impl>()) {
  const int64_t positions = learned_positions(config);
  TOK_REQUIRE(positions == 0 || capacity <= positions,
              "generate: {} tokens in all, the model has {} learned positions", capacity,
              positions);
  Impl& m = *impl_;
  m.config = config;
  m.capacity = capacity;
  m.compute = compute;
  m.declare_cache();
  m.steps[0].length = 1;
  m.steps[1].length = std::min(kPromptChunk, capacity);
  std::vector<Graph> graphs;
  for (AppendStep& step : m.steps) graphs.push_back(m.build(step));
  m.layout = lay_out(m.states);
  std::vector<const Plan*> plans;
  for (size_t i = 0; i < graphs.size(); ++i) {
    m.steps[i].plan = compile(graphs[i], m.layout, {.target = backend.target()});
    // Kernels of one token take about as long as their launches.
    m.steps[i].plan->device_graphs = backend.target().backend == "gpu";
    plans.push_back(&*m.steps[i].plan);
  }
  require_memory(*plans[0], *plans[1], backend);
  m.memory.emplace(backend, plans);
  m.access.emplace(*m.memory, m.states, m.layout);
  for (AppendStep& step : m.steps) {
    step.executor = std::make_unique<Executor>(*step.plan, *m.memory);
    step.executor->warm_up(step.plan->schedule(1));
  }
  load_parameters(*m.access, whole_pieces(m.states), parameters);
  // Both plans make the same compute copies in the same order, so the ones made here serve both.
  for (const ScheduleItem& item : m.steps[0].plan->schedule(1)) {
    if (makes_copies(*m.steps[0].plan, item)) m.steps[0].executor->run(item);
  }
}

Generator::~Generator() = default;

std::vector<float> Generator::logits_after(std::span<const int32_t> tokens, int64_t from) {
  Impl& m = *impl_;
  TOK_REQUIRE(!tokens.empty(), "generate: the prompt is empty");
  TOK_REQUIRE(from + static_cast<int64_t>(tokens.size()) <= m.capacity,
              "generate: the text is longer than {} tokens", m.capacity);
  for (const int32_t id : tokens) {
    TOK_REQUIRE(id >= 0 && id < m.config.vocab_size,
                "generate: token id {} is outside the model's vocabulary of {}", id,
                m.config.vocab_size);
  }
  while (!tokens.empty()) {
    AppendStep& step =
        static_cast<int64_t>(tokens.size()) >= m.steps[1].length ? m.steps[1] : m.steps[0];
    m.append(step, tokens.first(step.length), from);
    tokens = tokens.subspan(step.length);
    from += step.length;
  }
  return m.access->read<float>(m.logits);
}

int64_t Generator::bytes_per_token(int64_t length) const {
  const Impl& m = *impl_;
  const ParameterCount count = count_parameters(m.config);
  const int64_t cached =
      2 * m.config.num_layers * m.config.num_kv_heads * m.config.head_dim * length;
  return (count.total - count.embedding + cached) * size_of(m.compute);
}

void Generator::generate(std::span<const int32_t> prompt, const SamplingOptions& options,
                         std::optional<int32_t> eos, const std::function<bool(int32_t)>& emit) {
  std::vector<float> logits = logits_after(prompt);
  auto position = static_cast<int64_t>(prompt.size());
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const int32_t id = sample(logits, options, i);
    if (eos && id == *eos) return;
    if (!emit(id)) return;
    if (i + 1 == options.max_new_tokens || position == impl_->capacity) return;
    logits = logits_after(std::span(&id, 1), position++);
  }
}

}  // namespace tokamak

#include "tokamak/train/generator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/timing.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/elementwise/softcap.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/vocab/embedding.h"
#include "tokamak/plan/compile.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/state/snapshot.h"

namespace tokamak {

// State and plan of "append S tokens to each of B texts, then logits of one of them each".
struct AppendStep {
  int64_t texts = 0;
  int64_t length = 0;
  StateId tokens;
  StateId positions;
  StateId place;          // of the new tokens in the cache
  StateId cached_length;  // with the new tokens
  StateId row;            // where one text of many is continued
  StateId last;           // the token whose logits are wanted, where there are several
  StateId logits;
  std::optional<Plan> plan;
  std::unique_ptr<Executor> executor;
};

namespace {

constexpr int64_t kPromptChunk = 64;

using Clock = std::chrono::steady_clock;

void require_memory(const Plan& one, const Plan& other, const Backend& backend) {
  const int64_t bytes = peak_bytes(one, &other);
  const auto free = backend.free_bytes();
  TOK_REQUIRE(!free || bytes <= *free,
              "generate: not enough GPU memory: weights and cache want {} bytes, {} are free; use "
              "--dtype bfloat16 or a smaller --batch-size or --seq-len",
              bytes, *free);
  if (!free) {
    require_host_memory(bytes, 1,
                        "generate: not enough memory for weights and cache; use --dtype bfloat16 "
                        "or a smaller --batch-size or --seq-len");
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
  int64_t batch = 1;
  DType compute;
  StateTable states;
  std::vector<StateId> keys;
  std::vector<StateId> values;
  std::array<AppendStep, 2> steps;
  AppendStep& token = steps[0];  // one more of each text
  AppendStep& chunk = steps[1];  // a part of one text's prompt
  StateLayout layout;
  std::optional<Memory> memory;
  std::optional<StateAccess> access;

  StateId declare(const std::string& name, DType dtype, Dims dims, StateKind kind) {
    return states.declare(
        {.name = name, .type = {.dtype = dtype, .dims = std::move(dims)}, .kind = kind});
  }

  void declare_cache() {
    const Dims dims{batch, capacity, config.num_kv_heads, config.head_dim};
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      keys.push_back(
          declare(fmt::format("cache.{}.keys", layer), compute, dims, StateKind::kCache));
      values.push_back(
          declare(fmt::format("cache.{}.values", layer), compute, dims, StateKind::kCache));
    }
  }

  void declare_inputs(AppendStep& step, const std::string& name) {
    const auto input = [&](const char* what, Dims dims) {
      return declare(name + what, DType::kI32, std::move(dims), StateKind::kInput);
    };
    step.tokens = input(".tokens", {step.texts, step.length});
    step.positions = input(".positions", {step.texts, step.length});
    step.place = input(".place", {step.texts});
    step.cached_length = input(".cached_length", {step.texts});
    step.row = input(".row", {1});
    step.last = input(".last", {1});
    step.logits =
        declare(name + ".logits", DType::kF32, {step.texts, config.vocab_size}, StateKind::kResult);
  }

  Graph build(const AppendStep& step) {
    Graph g(states);
    KvCache cache{.keys = keys,
                  .values = values,
                  .position = g.read(step.place),
                  .length = g.read(step.cached_length)};
    if (step.texts < batch) cache.row = g.read(step.row);
    Parameters parameters(g, compute, compute);
    const ModelInputs inputs{
        .tokens = g.read(step.tokens), .positions = g.read(step.positions), .cache = &cache};
    const ModelOutputs out = build_model(g, parameters, config, inputs, 0);
    Value rows = g.apply(Reshape{.dims = {-1, config.dim}}, {out.hidden});
    if (step.length > 1) rows = g.apply(Embedding{}, {g.read(step.last), rows});
    Value y = g.apply(Linear{}, {rows, out.head});
    if (out.logit_cap > 0.0) y = g.apply(Softcap{.cap = out.logit_cap}, {y});
    accumulate_into(g, y, g.read(step.logits), AccumulateMode::kFirstMicrobatch);
    return g;
  }

  void write(StateId state, const std::vector<int32_t>& all) {
    access->write(state, std::span<const int32_t>(all));
  }

  void run(const AppendStep& step) {
    for (const ScheduleItem& item : step.plan->schedule(1)) {
      if (!makes_copies(*step.plan, item)) step.executor->run(item);
    }
  }

  // Reads a whole text into a row of the cache and returns the logits after it. The last part of
  // it is filled up with tokens that nothing sees before they are overwritten; where there is no
  // room for them, it begins earlier, with tokens that were read before.
  std::vector<float> read_prompt(std::span<const int32_t> text, int64_t row) {
    const auto end = static_cast<int64_t>(text.size());
    const int64_t S = chunk.length;
    write(chunk.row, {static_cast<int32_t>(row)});
    for (int64_t at = 0; at < end;) {
      const int64_t begin = std::min(at, capacity - S);
      const int64_t count = std::min(S, end - begin);
      std::vector<int32_t> tokens(S, 0);
      std::copy_n(text.begin() + begin, count, tokens.begin());
      std::vector<int32_t> positions(S);
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
      write(chunk.tokens, tokens);
      write(chunk.positions, positions);
      write(chunk.place, {static_cast<int32_t>(row * capacity + begin)});
      write(chunk.cached_length, {static_cast<int32_t>(begin + S)});
      write(chunk.last, {static_cast<int32_t>(count - 1)});
      run(chunk);
      at = begin + count;
    }
    return access->read<float>(chunk.logits);
  }

  // Adds a token to each text and returns the logits after them [batch, vocab].
  std::vector<float> add_tokens(const std::vector<int32_t>& tokens,
                                const std::vector<int32_t>& positions) {
    std::vector<int32_t> lengths = positions;
    for (int32_t& length : lengths) ++length;
    write(token.tokens, tokens);
    write(token.positions, positions);
    write(token.place, positions);
    write(token.cached_length, lengths);
    run(token);
    return access->read<float>(token.logits);
  }

  void require_fits(std::span<const int32_t> tokens, int64_t from) const {
    TOK_REQUIRE(!tokens.empty(), "generate: the prompt is empty");
    TOK_REQUIRE(from + static_cast<int64_t>(tokens.size()) <= capacity,
                "generate: the text is longer than {} tokens", capacity);
    for (const int32_t id : tokens) {
      TOK_REQUIRE(id >= 0 && id < config.vocab_size,
                  "generate: token id {} is outside the model's vocabulary of {}", id,
                  config.vocab_size);
    }
  }
};

Generator::Generator(const ModelSpec& config, std::span<const TensorSource> parameters,
                     DType compute, int64_t capacity, Backend& backend, int64_t batch)
    : impl_(std::make_unique<Impl>()) {
  TOK_CHECK(batch >= 1 && capacity >= 1, "{} texts of {} tokens", batch, capacity);
  const int64_t positions = learned_positions(config);
  TOK_REQUIRE(positions == 0 || capacity <= positions,
              "generate: {} tokens in all, the model has {} learned positions", capacity,
              positions);
  TOK_REQUIRE(batch * capacity <= INT32_MAX,
              "generate: {} texts of {} tokens: use a smaller --batch-size or --seq-len", batch,
              capacity);
  Impl& m = *impl_;
  m.config = config;
  m.capacity = capacity;
  m.batch = batch;
  m.compute = compute;
  m.declare_cache();
  m.token.texts = batch;
  m.token.length = 1;
  m.declare_inputs(m.token, "token");
  m.chunk.texts = 1;
  m.chunk.length = std::min(kPromptChunk, capacity);
  m.declare_inputs(m.chunk, "chunk");
  std::vector<Graph> graphs;
  for (const AppendStep& step : m.steps) graphs.push_back(m.build(step));
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
  m.require_fits(tokens, from);
  if (from == 0) return m.read_prompt(tokens, 0);
  TOK_CHECK(m.batch == 1, "{} texts", m.batch);
  std::vector<float> logits;
  for (const int32_t id : tokens) logits = m.add_tokens({id}, {static_cast<int32_t>(from++)});
  return logits;
}

int64_t Generator::bytes_per_step(int64_t length) const {
  const Impl& m = *impl_;
  const ParameterCount count = count_parameters(m.config);
  const int64_t cached =
      2 * m.config.num_layers * m.config.num_kv_heads * m.config.head_dim * length * m.batch;
  return (count.total - count.embedding + cached) * size_of(m.compute);
}

GenerationTimes Generator::generate(std::span<const Prompt> prompts, std::span<const int32_t> eos,
                                    const TextEvents& events) {
  struct Text {
    size_t index = 0;
    int64_t made = 0;
    int64_t length = 0;  // in the cache
    int32_t last = 0;    // which is not in the cache yet
  };

  Impl& m = *impl_;
  GenerationTimes times;
  // Takes a token out of the logits of a text; returns whether the text continues.
  const auto goes_on = [&](Text& text, std::span<const float> logits) {
    const SamplingOptions& sampling = prompts[text.index].sampling;
    const int32_t id = sample(logits, sampling, text.made);
    TOK_REQUIRE(std::isfinite(logits[static_cast<size_t>(id)]),
                "generate: the model gives the logit {} to a token: weights that are NaN or "
                "infinite (convert names them), or numbers too large for {}",
                logits[static_cast<size_t>(id)], name_of(m.compute));
    const auto ends = [&](TextEnd why) {
      events.end(text.index, why);
      return false;
    };
    if (std::ranges::find(eos, id) != eos.end()) return ends(TextEnd::kEos);
    text.last = id;
    ++text.made;
    if (!events.token(text.index, id)) return ends(TextEnd::kStopped);
    if (text.made == sampling.max_new_tokens || text.length == m.capacity)
      return ends(TextEnd::kLength);
    return true;
  };

  std::vector<std::optional<Text>> rows(m.batch);
  size_t next = 0;
  for (;;) {
    const auto begin = Clock::now();
    for (size_t r = 0; r < rows.size(); ++r) {
      while (!rows[r] && next < prompts.size()) {
        const std::vector<int32_t>& tokens = prompts[next].tokens;
        m.require_fits(tokens, 0);
        Text text{.index = next++, .length = static_cast<int64_t>(tokens.size())};
        times.prompt_tokens += text.length;
        if (goes_on(text, m.read_prompt(tokens, static_cast<int64_t>(r)))) rows[r] = text;
      }
    }
    times.prompt_s += seconds_since(begin);
    const auto filled = Clock::now();
    // A row without a text writes and reads one place of it, which the next prompt overwrites.
    std::vector<int32_t> ids(rows.size(), 0);
    std::vector<int32_t> positions(rows.size(), 0);
    int64_t busy = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (!rows[r]) continue;
      ids[r] = rows[r]->last;
      positions[r] = static_cast<int32_t>(rows[r]->length++);
      ++busy;
    }
    if (busy == 0) return times;
    const std::vector<float> logits = m.add_tokens(ids, positions);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto of_row = std::span(logits).subspan(r * m.config.vocab_size, m.config.vocab_size);
      if (rows[r] && !goes_on(*rows[r], of_row)) rows[r].reset();
    }
    times.new_tokens += busy;
    ++times.steps;
    times.new_s += seconds_since(filled);
  }
}

}  // namespace tokamak

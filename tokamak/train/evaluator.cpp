#include "tokamak/train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tokamak/comm/agreement.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/timing.h"
#include "tokamak/data/token_files.h"
#include "tokamak/exec/communicators.h"
#include "tokamak/exec/executor.h"
#include "tokamak/exec/gathered_memory.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/train/loss_sum.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/state/snapshot.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// What a rank plans and allocates by itself.
struct EvaluationParts {
  EvaluationParts(const EvaluationOptions& o, Backend& backend)
      : run(o.model, o.shape, backend.target()),
        memory(backend, plans_that_fit(backend, o.ranks_per_host)),
        access(memory, run.states(), run.layout()) {}

  std::vector<const Plan*> plans_that_fit(const Backend& backend, int64_t ranks_per_host) const {
    const auto free = backend.free_bytes();
    TOK_REQUIRE(!free || run.peak_bytes() <= *free,
                "eval: not enough GPU memory: the plan wants {} bytes, {} are free; use a smaller "
                "--batch, --dtype bfloat16, or more ranks",
                run.peak_bytes(), *free);
    if (!free) {
      require_host_memory(run.peak_bytes(), ranks_per_host,
                          "eval: not enough memory for the plan; use a smaller --batch, --dtype "
                          "bfloat16, or more ranks");
    }
    return run.plans();
  }

  PlannedRun run;
  Memory memory;
  StateAccess access;
};

// Ranks that read different texts would wait for each other for ever.
void agree_on(const EvaluationOptions& o, const TokenSource* tokens, World& world) {
  if (world.size() == 1) return;
  const uint64_t data = tokens == nullptr ? hash_files(o.text.files) : tokens->hash();
  const AgreementItem items[] = {
      {"the model", to_hf_config(o.model, o.shape.training.master, {})},
      {"the text", fmt::format("{:016x}", data)},
      {"the tokenizer", tokens == nullptr ? fmt::format("{:016x}", o.tokenizer->hash()) : "none"},
      {"--by, --seq-len, --stride", fmt::format("{} {} {}", static_cast<int>(o.scoring.by),
                                                o.scoring.seq_len, o.scoring.stride)}};
  fail_together(world, [&] { agree(world, items); });
}

// Every rank reads the whole text and computes on its own rows of each batch.
Batch rows_of_rank(const Batch& all, int64_t first, int64_t rows) {
  const int64_t S = all.seq_len;
  const auto part = [&](const std::vector<int32_t>& ids) {
    return std::vector<int32_t>(ids.begin() + first * S, ids.begin() + (first + rows) * S);
  };
  return {.tokens = part(all.tokens),
          .labels = part(all.labels),
          .rows = rows,
          .seq_len = S,
          .valid_rows = std::clamp<int64_t>(all.valid_rows - first, 0, rows)};
}

}  // namespace

Evaluation evaluate(const EvaluationOptions& o, std::span<const TensorSource> parameters,
                    World& world, Backend& backend) {
  TOK_CHECK(!o.shape.trains && o.shape.validation);
  std::unique_ptr<EvaluationParts> parts;
  std::unique_ptr<TokenSource> tokens;
  all_together(world, [&] {
    parts = std::make_unique<EvaluationParts>(o, backend);
    if (!o.token_files.empty()) tokens = open_token_files(o.token_files);
  });
  agree_on(o, tokens.get(), world);
  const PlannedRun& run = parts->run;
  const Plan& plan = *run.validation_plan();
  Communicators groups(world, plan.groups, gathered_memory(run.plans(), parts->memory));
  Executor executor(plan, parts->memory, groups.groups(), &world);
  executor.warm_up(plan.schedule(1));
  all_together(world, [&] { load_parameters(parts->access, run.pieces(), parameters); });
  make_copies(run, parts->memory);
  LossSum loss(run, parts->access, executor, o.scoring.seq_len);
  loss.restart();

  ScoredRows rows = tokens == nullptr ? ScoredRows(o.text, *o.tokenizer, o.scoring)
                                      : ScoredRows(std::move(tokens), o.scoring);
  const int64_t all_rows = o.shape.validation->batch * run.mesh().degree(kBatchAxes);
  const RowShare mine = row_share(run.mesh(), run.rank(), all_rows);

  struct Read {
    Batch batch;
    TextCounts counts;  // up to it
  };

  const auto read = [&] {
    Batch batch = rows.next(all_rows);
    return Read{.batch = std::move(batch), .counts = rows.counts()};
  };
  const auto start = std::chrono::steady_clock::now();
  Evaluation done;
  // The next batch is tokenized during the computation on this one.
  for (auto next = std::async(std::launch::async, read);;) {
    Read now;
    all_together(world, [&] { now = next.get(); });
    done.counts = now.counts;
    if (now.batch.empty()) break;
    next = std::async(std::launch::async, read);
    loss.add(rows_of_rank(now.batch, mine.first_row, mine.num_rows));
    done.nats = loss.total();
    done.seconds = seconds_since(start);
    if (world.rank() == 0 && o.progress) o.progress(done);
  }
  fail_together(world, [&] {
    TOK_REQUIRE(done.counts.tokens > 0, "eval: {} has no token to predict",
                o.token_files.empty() ? o.text.name : o.token_files);
  });
  return done;
}

}  // namespace tokamak

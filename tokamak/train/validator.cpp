#include "tokamak/train/validator.h"

#include <chrono>

#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"
#include "tokamak/train/run_tokens.h"
#include "tokamak/train/together.h"

namespace tokamak {

Validator::Validator(const ValidationOptions& options, const PlannedRun& run,
                     const StateAccess& access, Executor& executor, Loader& loader, World& world)
    : o_(options),
      mesh_(run.mesh()),
      loss_(run, access, executor, options.data.seq_len),
      loader_(loader),
      world_(world) {}

std::optional<double> Validator::run(int64_t step, const std::function<bool()>& stop, RunLog& log) {
  const auto start = std::chrono::steady_clock::now();
  loader_.rewind();
  loss_.restart();
  int64_t tokens = 0;
  const auto is_there = [&](std::chrono::milliseconds most) {
    return await_batch(loader_, most, world_.flights());
  };
  await_all(world_, is_there);  // ranks may tokenize at different speeds
  for (int64_t b = 0;; ++b) {
    if (b > 0 && stop()) return std::nullopt;
    while (!is_there(std::chrono::seconds(1))) {
    }
    const Batch batch = loader_.next();
    if (batch.empty()) break;
    loss_.add(batch);
    tokens += batch.valid_rows * batch.seq_len;
  }
  const int64_t labels = sum_over_rows(world_, mesh_, loss_.labels());
  tokens = sum_over_rows(world_, mesh_, tokens);
  fail_together(world_, [&] {
    TOK_REQUIRE(labels > 0, "validation.dataset \"{}\" gave no tokens", o_.data.dataset);
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double loss = loss_.total() / static_cast<double>(labels);
  log.add_validation(step, loss, tokens, elapsed.count());
  return loss;
}

}  // namespace tokamak

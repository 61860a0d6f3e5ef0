#include "tokamak/train/validator.h"

#include <chrono>

#include "tokamak/core/error.h"
#include "tokamak/train/together.h"

namespace tokamak {

int64_t sum_over_rows(World& world, const Mesh& mesh, int64_t mine) {
  if (world.size() == 1) return mine;
  const auto counts = world.all_gather_text(fmt::format("{}", mine));
  int64_t sum = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (counts_rows(mesh, rank)) sum += std::stoll(counts[rank]);
  }
  return sum;
}

Validator::Validator(const ValidationOptions& options, const PlannedRun& run,
                     const StateAccess& access, Executor& executor, Loader& loader,
                     const SequenceShare& share, const Mesh& mesh, World& world)
    : o_(options),
      run_(run),
      access_(access),
      executor_(executor),
      loader_(loader),
      inputs_(access, run.validation_step(), share),
      mesh_(mesh),
      world_(world) {}

void Validator::run(int64_t step, const std::function<bool()>& stop, RunLog& log) {
  const auto start = std::chrono::steady_clock::now();
  loader_.rewind();
  double total = 0.0;
  int64_t labels = 0;
  int64_t tokens = 0;
  inputs_.write_loss_scale(1.0F);
  const auto schedule = run_.validation_plan()->schedule(1);
  for (int64_t b = 0; o_.steps < 0 || b < o_.steps; ++b) {
    if (b > 0 && stop()) return;
    const Batch batch = loader_.next();
    if (batch.empty()) break;
    inputs_.write_batch(batch, 0);
    for (const ScheduleItem& item : schedule) executor_.run(item);
    total += access_.read<double>(run_.validation_step().loss)[0];
    labels += count_labels(batch);
    tokens += batch.valid_rows * batch.seq_len;
  }
  labels = sum_over_rows(world_, mesh_, labels);
  tokens = sum_over_rows(world_, mesh_, tokens);
  fail_together(world_, [&] {
    TOK_REQUIRE(labels > 0, "validation.dataset \"{}\" gave no tokens", o_.data.dataset);
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  log.add_validation(step, total / static_cast<double>(labels), tokens, elapsed.count());
}

}  // namespace tokamak

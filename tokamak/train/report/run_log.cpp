#include "tokamak/train/report/run_log.h"

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/run/flops.h"

namespace tokamak {
namespace {

template <class Metrics>
void fill_memory(const MemoryUse& use, Metrics& m) {
  m.memory_gib = gib(use.bytes);
  m.memory_percent = 100.0 * static_cast<double>(use.bytes) / static_cast<double>(use.of_bytes);
}

}  // namespace

RunLog::RunLog(const LoggingOptions& options, const ModelSpec& model, int64_t seq_len, int rank,
               int world_size)
    : o_(options),
      flops_per_token_(flops_per_token(flops_shape(model, seq_len))),
      rank_(rank),
      world_size_(world_size) {}

void RunLog::print(const std::string& text, const std::string& level) const {
  if (speaks() && o_.print) o_.print(level, text);
}

void RunLog::say(const std::string& text, const std::string& level) const {
  print(text, level);
  if (speaks()) events_.add(level, text);
}

void RunLog::open(int64_t resumed_step, bool with_validation,
                  std::chrono::system_clock::time_point now) {
  if (!writes()) return;
  const std::filesystem::path folder =
      speaks() ? o_.dump_folder : o_.dump_folder / fmt::format("rank_{}", rank_);
  make_folders(folder);
  metrics_.emplace(folder / "metrics.jsonl", resumed_step);
  if (with_validation) validation_metrics_.emplace(folder / "validation.jsonl", resumed_step);
  if (speaks()) events_.open(folder / "events.jsonl", resumed_step);
  if (speaks() && !o_.command.empty()) {
    command_.emplace(MetricsCommand::Options{
        .command = o_.command,
        .files = {folder / "metrics.jsonl", folder / "validation.jsonl", folder / "events.jsonl"},
        .environment = {"TOKAMAK_DUMP_FOLDER=" + std::filesystem::absolute(folder).string()},
        .log = folder / "metrics_command.log",
        .warn = [this](const std::string& text) { say(text, "WARNING"); }});
  }
  if (o_.tensorboard_folder.empty()) return;
  std::filesystem::path events = tensorboard_folder(o_.dump_folder, o_.tensorboard_folder, now);
  if (o_.of_all_ranks) events /= fmt::format("rank_{}", rank_);
  tensorboard_.emplace(events, now);
}

MemoryUse RunLog::memory_use() const {
  return o_.memory ? o_.memory() : process_memory_use();
}

void RunLog::restart(std::chrono::steady_clock::time_point start) {
  window_ = {.start = start};
}

PhaseSeconds RunLog::phase_seconds() const {
  const auto steps = static_cast<double>(window_.steps);
  const auto phase = [&](Phase p) { return window_.phases[p] / steps; };
  return {.data = window_.data_s / steps,
          .forward = phase(Phase::kUnshard) + phase(Phase::kForward),
          .backward = phase(Phase::kBackward) + phase(Phase::kWeightGradient),
          .exposed_comm = window_.exposed_comm_s / steps,
          .optimizer = phase(Phase::kUpdate),
          .checkpoint = window_.checkpoint_s / steps};
}

StepMetrics RunLog::metrics_of(const StepResult& result) const {
  const std::chrono::duration<double> elapsed = result.at - window_.start;
  const auto steps = static_cast<double>(window_.steps);
  const double tps = static_cast<double>(window_.tokens) / elapsed.count() / world_size_;
  StepMetrics m{.step = result.step, .loss = result.loss, .grad_norm = result.grad_norm};
  if (world_size_ == 1) m.max_loss = result.loss;
  m.lr = result.lr;
  m.tokens_seen = result.tokens_seen;
  m.tps = tps;
  m.tflops = flops_per_token_ * tps / 1e12;
  if (o_.peak_flops) m.mfu = 100.0 * flops_per_token_ * tps / *o_.peak_flops;
  fill_memory(memory_use(), m);
  m.step_time_s = elapsed.count() / steps;
  m.seconds = phase_seconds();
  m.saturated_sites = result.saturated_sites;
  m.failed_saves = failed_saves_;
  m.world_size = world_size_;
  m.job = o_.job;
  return m;
}

void RunLog::write(const std::function<void()>& work) {
  if (o_.fence) o_.fence();
  try {
    work();
    if (is_failing_) say("Metrics are written again");
    is_failing_ = false;
  } catch (const SystemError& error) {
    if (!is_failing_)
      say(fmt::format("Metrics cannot be written, training continues: {}", error.what()),
          "WARNING");
    is_failing_ = true;
  }
}

std::optional<PhaseSeconds> RunLog::add_step(const StepResult& result, int64_t tokens) {
  window_.steps += 1;
  window_.tokens += tokens;
  if (o_.step_ended) o_.step_ended(result.step, result.at);
  if (speaks() && o_.show_progress) show_progress(result, tokens);
  unlogged_ = result;
  events_.set_step(result.step);
  if (result.step != 1 && result.step % o_.log_freq != 0 && result.step != o_.num_steps)
    return std::nullopt;
  unlogged_.reset();
  const PhaseSeconds seconds = phase_seconds();
  if (writes()) {
    const StepMetrics m = metrics_of(result);
    write([&] {
      metrics_->append(m);
      if (tensorboard_) tensorboard_->add(m.step, to_scalars(m), std::chrono::system_clock::now());
    });
    print(step_line(m, o_.color, columns()));
  }
  restart(result.at);
  return seconds;
}

void RunLog::show_progress(const StepResult& result, int64_t tokens) {
  constexpr size_t kSteps = 30;
  constexpr std::chrono::milliseconds kBetween(100);
  ends_.at.push_back(result.at);
  if (ends_.at.size() > kSteps + 1) ends_.at.pop_front();
  if (result.at - ends_.shown < kBetween && result.step != o_.num_steps) return;
  ends_.shown = result.at;
  StepProgress p{.step = result.step, .num_steps = o_.num_steps, .loss = result.loss};
  const std::chrono::duration<double> elapsed = result.at - ends_.at.front();
  if (ends_.at.size() > 1 && elapsed.count() > 0.0) {
    const double step_s = elapsed.count() / static_cast<double>(ends_.at.size() - 1);
    p.tps = static_cast<double>(tokens) / step_s / world_size_;
    p.seconds_left = step_s * static_cast<double>(o_.num_steps - result.step);
  }
  p.memory_gib = gib(memory_use().bytes);
  o_.show_progress(p);
}

void RunLog::finish() {
  if (unlogged_ && window_.steps > 0 && speaks())
    print(step_line(metrics_of(*unlogged_), o_.color, columns()));
  unlogged_.reset();
}

void RunLog::add_validation(int64_t step, double loss, int64_t tokens, double seconds) {
  window_.start += std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
  if (!writes()) return;
  ValidationMetrics m{.step = step, .loss = loss};
  m.tps = static_cast<double>(tokens) / seconds / world_size_;
  m.time_s = seconds;
  m.world_size = world_size_;
  fill_memory(memory_use(), m);
  write([&] {
    validation_metrics_->append(m);
    if (tensorboard_) tensorboard_->add(m.step, to_scalars(m), std::chrono::system_clock::now());
  });
  print(validation_line(m, o_.color, columns()));
}

}  // namespace tokamak

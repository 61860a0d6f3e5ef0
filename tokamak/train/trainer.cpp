#include "tokamak/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>

#include <fmt/format.h>

#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/timing.h"
#include "tokamak/exec/communicators.h"
#include "tokamak/exec/gathered_memory.h"
#include "tokamak/exec/result_ring.h"
#include "tokamak/train/guard/bad_gradients.h"
#include "tokamak/train/guard/bad_steps.h"
#include "tokamak/train/guard/replica_check.h"
#include "tokamak/train/guard/slow_ranks.h"
#include "tokamak/train/rank_parts.h"
#include "tokamak/train/run_signals.h"
#include "tokamak/train/run_tokens.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/step_agreement.h"
#include "tokamak/train/step_plans.h"
#include "tokamak/train/step_results.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

using StopQuestion = std::function<int()>;

// How many steps a device may be behind the host; a CPU never is.
constexpr size_t kStepsBehind = 2;

// Thrown by a step after which the run goes back to a checkpoint; never leaves this file.
struct RollBack {};

class Trainer {
 public:
  Trainer(const TrainerOptions& options, World& world, Backend& backend)
      : o_(options),
        world_(world),
        page_(world.flights()),
        log_(options.logging, options.model, options.data.seq_len, world.rank(), world.size()),
        phases_(options.start),
        parts_(make_parts(options, world, backend, phases_)),
        run_(parts_->run),
        access_(parts_->access),
        groups_(world, run_.plan().groups, gathered_memory(parts_->plans(), parts_->memory)),
        plans_(run_, parts_->memory, access_, groups_.groups(), &world),
        inputs_(access_, run_.step(), share_of(run_, o_.data.seq_len)),
        of_step_(run_),
        results_(access_, of_step_.states, kStepsBehind + 1),
        checkpoints_(options.checkpoint, options.model, options.shape.training.master,
                     options.config_digest, world, access_, run_.pieces(), log_),
        profile_(options.profiling, run_, world.rank(), log_),
        bad_steps_(options.guard.steps, world, log_),
        slow_ranks_(world, options.mesh(), options.guard.slow_ranks) {
    if (run_.validation_plan() != nullptr) {
      const Plan& plan = *run_.validation_plan();
      validation_executor_ =
          std::make_unique<Executor>(plan, parts_->memory, groups_.groups(), &world);
      validator_ = std::make_unique<Validator>(*o_.validation, run_, access_, *validation_executor_,
                                               *parts_->validation_loader, world_);
    }
    plans_.warm_up(static_cast<int>(o_.num_microbatches()));
    if (validation_executor_) validation_executor_->warm_up(run_.validation_plan()->schedule(1));
    plans_.time_phases(log_.phases());
    phases_.end("connections and kernels");
  }

  bool run() {
    const bool only_validates = o_.steps == 0 && validator_ != nullptr;
    if (!only_validates && checkpoints_.has_done(o_.steps)) return false;
    state_ = checkpoints_.begin(o_.shape.training.seed, parts_->loader);
    make_copies(run_, parts_->memory);
    phases_.end("State");
    open_log();
    if (o_.checkpoint.create_seed) {
      checkpoints_.save_seed(state_, parts_->loader);
      log_.say("Created seed checkpoint");
      return false;
    }
    if (only_validates) {
      const std::function<bool()> never = [] { return false; };
      const double loss = *validator_->run(state_.step, never, log_);
      log_.say(fmt::format("Validation after step {}: loss {:.6f}, perplexity {:.4f}", state_.step,
                           loss, std::exp(loss)));
      return false;
    }
    if (state_.step >= o_.steps) {
      log_.say(fmt::format("Training already completed: step {} of training.steps = {}",
                           state_.step, o_.steps));
      return false;
    }
    if (!run_.precision_line().empty()) log_.say(run_.precision_line());
    log_.say(memory_line(*parts_, world_));
    log_.say(phases_.line());
    log_.say(fmt::format("Training starts at step {}", state_.step + 1));
    log_.restart();
    if (o_.guard.check_replicas_every > 0) replicas_.emplace(world_, access_, run_.pieces());
    while (!train_until_bad()) roll_back();
    const ActivityScope ending(page_, RankActivity::kFiles);
    checkpoints_.saver().finish();
    log_.say(is_stopping()
                 ? fmt::format("Stopped by {} after step {}", name_of_signal(signal_), state_.step)
                 : "Training completed");
    return is_stopping();
  }

 private:
  // All ranks name their files by the time on rank 0.
  void open_log() {
    const auto clock = [] { return std::chrono::system_clock::now().time_since_epoch().count(); };
    const auto now = on_rank_zero(world_, [&] { return fmt::format("{}", clock()); });
    all_together(world_, [&] {
      log_.open(state_.step, validator_ != nullptr,
                std::chrono::system_clock::time_point(
                    std::chrono::system_clock::duration(std::stoll(now))));
    });
  }

  // A run that has done its last step is finished, whatever asked it to stop.
  bool is_stopping() const { return signal_ != 0 && state_.step < o_.steps; }

  // Returns false where a bad step or replicas that differ ask for a rollback.
  bool train_until_bad() {
    try {
      train_all();
      return true;
    } catch (const RollBack&) {
      return false;
    }
  }

  void roll_back() {
    const ActivityScope loading(page_, RankActivity::kFiles);
    for (; !issued_.empty(); issued_.pop_front()) results_.pop();
    plans_.settle();
    if (memory() != nullptr) memory()->forget();
    with_long_waits([&] {
      checkpoints_.saver().finish();
      parts_->loader.rewind();
      state_ = checkpoints_.begin(o_.shape.training.seed, parts_->loader);
    });
    make_copies(run_, parts_->memory);
    plans_.forget();
    open_log();
    log_.restart();
  }

  void check_replicas() {
    if (!replicas_ || state_.step % o_.guard.check_replicas_every != 0) return;
    plans_.settle();
    const std::string line = replicas_->check();
    if (line.empty()) return;
    const std::string what = fmt::format("step {}: {}", state_.step, line);
    if (memory() != nullptr) memory()->forget();
    if (!o_.guard.rolls_divergent_back)
      fail_together(world_, [&] { throw SystemError(what + "; the last checkpoint is kept"); });
    log_.say(what + ": going back to the last checkpoint", "WARNING");
    bad_steps_.count_rollback(what);
    throw RollBack();
  }

  void train_all() {
    const StopQuestion stop = o_.stop_signal ? o_.stop_signal : [] { return 0; };
    stop();  // from here on a step ends before a signal stops the run
    page_.step = state_.step;
    const ActivityScope computing(page_, RankActivity::kComputing);
    while (state_.step < o_.steps && signal_ == 0) {
      step();
      check_replicas();
      if (memory() != nullptr) memory()->seal();
      look_around(stop);
      keep_step();
      if (is_stopping()) {
        take_results(0);
        log_.finish();
      }
      const bool is_saving = checkpoints_.is_due(state_, o_.steps, is_stopping(), wants_save());
      const bool is_validating = validator_ && validator_->is_due(state_.step);
      if (is_saving || is_validating) take_results(0);
      if (is_saving) bad_steps_.before_save(state_.step);
      if (validator_ && signal_ == 0 && validator_->is_due(state_.step)) {
        const auto is_stopping = [&] {
          look_around(stop);
          return signal_ != 0;
        };
        const ActivityScope validating(page_, RankActivity::kValidating);
        validator_->run(state_.step, is_stopping, log_);
      }
      const auto start = Clock::now();
      const ActivityScope saving(page_, RankActivity::kFiles);
      const bool is_last = is_stopping() || state_.step == o_.steps;
      if (is_last && o_.before_last_save) o_.before_last_save();
      const bool is_asked = wants_save();
      with_long_waits([&] {
        checkpoints_.save_if_due(state_, o_.steps, is_stopping(), is_asked, parts_->loader);
      });
      if (is_asked) is_save_asked_ = false;
      log_.add_checkpoint_time(seconds_since(start));
      log_.set_failed_saves(checkpoints_.saver().num_failed());
    }
    take_results(0);
  }

  StepMemory* memory() { return checkpoints_.memory(); }

  // Ranks have just exchanged what they know, so the copy of the step before is whole on all of
  // them. The last step is not kept: its checkpoint is the end of the run.
  void keep_step() {
    if (memory() == nullptr || state_.step == o_.steps || signal_ != 0) return;
    take_results(0);
    const auto start = Clock::now();
    checkpoints_.keep_step(state_, parts_->loader);
    log_.add_checkpoint_time(seconds_since(start));
  }

  // Whether a checkpoint is wanted out of turn.
  bool wants_save() {
    return is_retry_due_ || (is_save_asked_ && !checkpoints_.saver().is_saving());
  }

  // Shares what one rank knows and all must act on: a signal received, a part of a save done, and
  // by rank 0's clock that a failed save is to be tried again.
  void look_around(const StopQuestion& stop) {
    page_.tick();
    CheckpointSaver& saver = checkpoints_.saver();
    const StepAgreement agreed =
        agree_on_step(world_, {.signal = stop(),
                               .is_retry_due = saver.wants_retry(),
                               .is_save_asked = o_.save_asked && o_.save_asked(),
                               .can_advance = saver.can_advance()});
    signal_ = agreed.signal;
    is_retry_due_ = agreed.is_retry_due;
    if (agreed.is_save_asked) note_save_request();
    if (saver.is_saving() && agreed.can_advance) with_long_waits([&] { saver.advance(); });
  }

  // The request outlasts a save that is under way.
  void note_save_request() {
    if (!o_.checkpoint.enable)
      return log_.say("Asked by SIGUSR1 to save, but checkpoint.enable is false", "WARNING");
    is_save_asked_ = true;
    log_.say(checkpoints_.saver().is_saving()
                 ? fmt::format("Asked by SIGUSR1 to save: a save follows that of step {}",
                               checkpoints_.saver().step())
                 : fmt::format("Asked by SIGUSR1 to save step {}", state_.step));
  }

  // Ranks wait for the slowest disk longer than for the slowest step.
  template <class F>
  void with_long_waits(F&& work) {
    world_.set_timeout(o_.init_timeout);
    work();
    world_.set_timeout(o_.train_timeout);
  }

  void step() {
    const auto data_start = Clock::now();
    std::vector<Batch> batches;
    const int64_t label_tokens = read_batches(batches);
    log_.add_data_time(seconds_since(data_start));
    if (bad_steps_.is_left_out(state_.step + 1)) return advance(1);
    const bool waits = access_.streams() == nullptr || bad_steps_.may_leave_out();
    do {
      issue(batches, label_tokens);
      take_results(waits ? 0 : kStepsBehind);
    } while (std::exchange(must_replay_, false));
  }

  void issue(const std::vector<Batch>& batches, int64_t label_tokens) {
    if (o_.before_step) o_.before_step(state_.step + 1, access_);
    const double lr = o_.lr * lr_factor(o_.schedule, state_.schedule_step);
    const double norm_limit = bad_steps_.norm_limit();
    inputs_.write_scalars(lr, state_.step + 1, ++state_.updates, o_.shape.training.optimizer);
    inputs_.write_norm_limit(norm_limit);
    inputs_.write_loss_scale(label_tokens > 0 ? 1.0F / static_cast<float>(label_tokens) : 0.0F);
    run_microbatches(batches);
    advance(1);
    results_.push();
    issued_.push_back({.step = state_.step,
                       .lr = lr,
                       .tokens_seen = state_.tokens_seen,
                       .label_tokens = label_tokens,
                       .norm_limit = norm_limit});
  }

  void advance(int64_t steps) {
    state_.step += steps;
    state_.schedule_step += steps;
    state_.tokens_seen += steps * tokens_per_step();
  }

  // Returns the labels of all ranks' batches. Their tokens may still be made, on this host or on
  // another one: the ranks then wait for each other, for as long as tokens come.
  int64_t read_batches(std::vector<Batch>& batches) {
    const ActivityScope reading(page_, RankActivity::kFiles);
    while (true) {
      const bool are_here = take_batches(batches);
      page_.is_awaited = !are_here;
      int64_t labels = 0;
      for (const Batch& batch : batches) labels += count_labels(batch);
      const auto all =
          sum_over_rows(world_, o_.mesh(), are_here ? std::optional(labels) : std::nullopt);
      if (all) return *all;
    }
  }

  // Returns whether the batches are all there.
  bool take_batches(std::vector<Batch>& batches) {
    constexpr std::chrono::milliseconds kMostWait{500};
    while (std::ssize(batches) < o_.num_microbatches()) {
      if (!await_batch(parts_->loader, kMostWait, page_)) return false;
      batches.push_back(parts_->loader.next());
    }
    page_.tick();
    return true;
  }

  int64_t tokens_per_step() const { return o_.data.global_batch_size * o_.data.seq_len; }

  // Checks and logs the oldest steps until no more than `behind` are unknown.
  void take_results(size_t behind) {
    while (issued_.size() > behind) {
      const IssuedStep issued = issued_.front();
      issued_.pop_front();
      const StepScalars results = results_.pop();
      if (is_to_replay(issued, results)) return;
      log_.add_exposed_comm_time(plans_.exposed_comm_s() - exposed_comm_s_);
      exposed_comm_s_ = plans_.exposed_comm_s();
      page_.step = issued.step;
      const ActivityScope logging(page_, RankActivity::kFiles);
      const auto logged =
          log_.add_step({.step = issued.step,
                         .loss = results.values[0],
                         .grad_norm = results.values[1],
                         .lr = issued.lr,
                         .tokens_seen = issued.tokens_seen,
                         .saturated_sites = of_step_.saturated
                                                ? std::optional(results.values[*of_step_.saturated])
                                                : std::nullopt,
                         .at = results.at},
                        tokens_per_step());
      const std::string slow = logged ? slow_ranks_.add(*logged) : "";
      if (!slow.empty()) log_.say(slow, "WARNING");
    }
  }

  // Kernels leave State unchanged if the norm is not finite or above its limit, so it does not
  // matter that the host learns of this some steps later.
  bool is_to_replay(const IssuedStep& issued, const StepScalars& results) {
    const Verdict verdict =
        bad_steps_.judge({.step = issued.step,
                          .loss = loss_to_judge(results.values[0]),
                          .grad_norm = results.values[1],
                          .norm_limit = issued.norm_limit,
                          .label_tokens = issued.label_tokens,
                          .where = where_not_finite(issued.step, results.values)});
    if (verdict == Verdict::kRollBack) throw RollBack();
    if (verdict != Verdict::kGoOn) --state_.updates;
    must_replay_ = verdict == Verdict::kReplay;
    if (must_replay_) advance(-1);
    return must_replay_;
  }

  // Ranks along tp sum copies of the loss in communicators of their own, maybe in other orders.
  double loss_to_judge(double own) {
    const bool may_differ = o_.mesh().degree(MeshAxis::kTp) > 1;
    return may_differ && o_.guard.steps.decides_by_loss() ? of_rank_zero(world_, own) : own;
  }

  // Names the ranks whose own terms of the loss are not finite, if the whole is not, or else the
  // parameters whose gradients are not. A device may have gone on to a later step, whose gradients
  // then tell. Collective where something is not finite.
  std::string where_not_finite(int64_t step, const std::vector<double>& values) {
    if (std::isfinite(values[0]) && std::isfinite(values[1])) return "";
    if (!std::isfinite(values[0]))
      return of_step_.own_loss ? ranks_not_finite(world_, values[*of_step_.own_loss]) : "";
    plans_.settle();
    const std::string where = gradients_not_finite(world_, access_, run_.pieces());
    return where.empty() || step == state_.step
               ? where
               : fmt::format("{}, as of step {}", where, state_.step);
  }

  void run_microbatches(const std::vector<Batch>& batches) {
    auto& [plan, executor, writes_saved] = plans_.choose();
    const bool traced = profile_.is_traced(state_.step + 1);
    std::vector<TaskSpan> spans;
    executor.trace(traced ? &spans : nullptr);
    const int64_t first_row = state_.step * o_.data.global_batch_size + o_.data.first_row;
    int64_t loaded = -1;
    for (const ScheduleItem& item : plan.schedule(static_cast<int>(batches.size()))) {
      const auto& segment = plan.segments[item.segment];
      if (segment.runs == Segment::Runs::kPerMicrobatch && item.microbatch != loaded) {
        loaded = item.microbatch;
        const Batch& batch = batches[loaded];
        inputs_.write_batch(batch, first_row + loaded * batch.rows);
      }
      if (writes_saved[item.segment]) await_copy();
      executor.run(item);
      page_.tick();
    }
    if (traced) {
      executor.trace(nullptr);  // waits for the spans
      profile_.write_trace(state_.step + 1, spans);
    }
    profile_.write_memory(state_.step + 1);
  }

  // A save may still copy what the next item changes. A device that computes meanwhile loses
  // nothing: only what is left of the copy after that holds training up.
  void await_copy() {
    if (!checkpoints_.is_copying()) return;
    plans_.settle();
    const auto start = Clock::now();
    checkpoints_.await_copies();
    log_.add_checkpoint_time(seconds_since(start));
  }

  const TrainerOptions& o_;
  World& world_;
  FlightPage& page_;
  RunLog log_;
  StartPhases phases_;
  std::unique_ptr<RankParts> parts_;
  const PlannedRun& run_;
  StateAccess access_;
  Communicators groups_;
  StepPlans plans_;
  StepInputs inputs_;
  ResultsOfStep of_step_;
  ResultRing results_;
  std::deque<IssuedStep> issued_;
  RunCheckpoints checkpoints_;
  StepProfile profile_;
  BadSteps bad_steps_;
  SlowRanks slow_ranks_;
  std::optional<ReplicaCheck> replicas_;
  std::unique_ptr<Executor> validation_executor_;
  std::unique_ptr<Validator> validator_;
  TrainState state_;
  int signal_ = 0;
  bool is_retry_due_ = false;
  bool is_save_asked_ = false;
  bool must_replay_ = false;
  double exposed_comm_s_ = 0.0;
};

}  // namespace

bool train(const TrainerOptions& options, World& world, Backend& backend) {
  TOK_CHECK(options.mesh().size() == world.size(), "{} ranks for a mesh of {}", world.size(),
            options.mesh().size());
  const TrainerOptions ready = with_tokens(options, world);
  return Trainer(ready, world, backend).run();
}

}  // namespace tokamak

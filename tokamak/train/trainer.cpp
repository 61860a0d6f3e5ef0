#include "tokamak/train/trainer.h"

#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/train/flops.h"
#include "tokamak/train/hf_save.h"
#include "tokamak/train/initialize.h"
#include "tokamak/train/memory_use.h"
#include "tokamak/train/metrics_file.h"
#include "tokamak/train/profile_trace.h"
#include "tokamak/train/stop_signal.h"
#include "tokamak/train/tensorboard.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Without the sign that some operations leave on a NaN.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

// What is summed between two logged steps.
struct Window {
  Clock::time_point start = Clock::now();
  int64_t steps = 0;
  int64_t tokens = 0;
  double data_s = 0.0;
  double checkpoint_s = 0.0;
  PhaseTimes phases{};
};

class Trainer {
 public:
  Trainer(const TrainerOptions& options, World& world, Backend& backend)
      : o_(options),
        world_(world),
        run_(options.model, options.shape, backend.target()),
        plans_{&run_.plan()},
        memory_(backend, with_validation()),
        access_(memory_, run_.states(), run_.layout()),
        pieces_(whole_pieces(run_.states())),
        executor_(run_.plan(), memory_),
        loader_(options.data) {
    TOK_CHECK(memory_.bytes() == run_.peak_bytes(), "{} bytes for {}", memory_.bytes(),
              run_.peak_bytes());
    if (run_.validation_plan() != nullptr) {
      validator_ = std::make_unique<Executor>(*run_.validation_plan(), memory_);
      validation_loader_ = std::make_unique<Loader>(o_.validation->data);
    }
    executor_.time_phases(&window_.phases);
  }

  void run() {
    if (is_done()) {
      return say(fmt::format("Training already completed: step {} of training.steps = {}",
                             state_.step, o_.steps));
    }
    begin();
    if (o_.checkpoint.create_seed) {
      save(true);
      return say("Created seed checkpoint");
    }
    if (state_.step >= o_.steps) {
      return say(fmt::format("Training already completed: step {} of training.steps = {}",
                             state_.step, o_.steps));
    }
    say(fmt::format("Training starts at step {}", state_.step + 1));
    const StopSignal stop;
    window_ = {};
    while (state_.step < o_.steps) {
      step();
      const bool stopping = stop.received() != 0;
      validate_if_due();
      save_if_due(stopping);
      if (stopping)
        return say(fmt::format("Stopped by signal {} after step {}", stop.received(), state_.step));
    }
    say("Training completed");
  }

 private:
  std::vector<const Plan*>& with_validation() {
    if (run_.validation_plan() != nullptr) plans_.push_back(run_.validation_plan());
    return plans_;
  }

  void say(const std::string& text, const std::string& level = "INFO") const {
    if (o_.logging.print) o_.logging.print(level, text);
  }

  // Parameters from the newest checkpoint, from given weights, or new; then the files that a run
  // writes.
  void begin() {
    state_ = {.seed = o_.shape.training.seed};
    if (!resume()) {
      const CheckpointOptions& c = o_.checkpoint;
      initialize(access_, pieces_, state_.seed);
      if (!c.initial_load_path.empty()) initial_load();
    }
    make_folders(o_.logging.dump_folder);
    metrics_.emplace(o_.logging.dump_folder / "metrics.jsonl", state_.step);
    if (validator_)
      validation_metrics_.emplace(o_.logging.dump_folder / "validation.jsonl", state_.step);
    if (o_.checkpoint.enable && !o_.checkpoint.load_only) describe_model();
    if (!o_.logging.tensorboard_folder.empty()) {
      const auto now = std::chrono::system_clock::now();
      events_.emplace(
          tensorboard_folder(o_.logging.dump_folder, o_.logging.tensorboard_folder, now), now);
    }
  }

  // Beside the checkpoints, so that `generate` and `convert` can read them by themselves.
  void describe_model() const {
    const CheckpointOptions& c = o_.checkpoint;
    make_folders(c.folder);
    write_file_atomic(c.folder / "config.json",
                      to_hf_config(o_.model, o_.shape.training.master, c.ids));
    for (const auto& [name, text] : c.assets) write_file_atomic(c.folder / name, text);
  }

  void initial_load() {
    const CheckpointOptions& c = o_.checkpoint;
    say(fmt::format("Loading the weights of {}", c.initial_load_path.string()));
    if (c.initial_load_model_only) {
      load_parameters(access_, pieces_, open_weights(o_.model, c.initial_load_path));
    } else {
      restore(load_checkpoint(access_, pieces_, c.initial_load_path, c.parts));
    }
  }

  void restore(const TrainState& loaded) {
    if (loaded.seed != state_.seed) {
      say(fmt::format("The checkpoint was trained with debug.seed = {}, this run has {}",
                      loaded.seed, state_.seed),
          "WARNING");
    }
    state_.step = loaded.step;
    state_.tokens_seen = loaded.tokens_seen;
    if (!loaded.loader.empty())
      loader_.restore(LoaderState::from_json(loaded.loader, "the checkpoint's loader state"));
  }

  // The last checkpoint may hold the model only: enough to know that nothing is left to do.
  bool is_done() {
    const CheckpointOptions& c = o_.checkpoint;
    if (!c.enable || c.load_only || c.create_seed || c.load_step >= 0) return false;
    for (const CheckpointEntry& entry : list_checkpoints(c.folder)) {
      if (entry.kind != CheckpointKind::kUnusable) state_.step = entry.step;
    }
    return state_.step > 0 && state_.step >= o_.steps;
  }

  // Checkpoints that cannot be resumed are somebody's work: never begin anew on top of them.
  void require_no_checkpoints(const NewestCheckpoint& newest) const {
    const auto& folder = o_.checkpoint.folder;
    TOK_REQUIRE(newest.skipped.empty(),
                "{}; {} holds nothing that can be resumed: move it away to begin anew",
                newest.skipped.front(), folder.string());
    const auto entries = list_checkpoints(folder);
    TOK_REQUIRE(entries.empty(),
                "{} holds the model only and cannot be resumed; give it as "
                "checkpoint.initial_load_path of a run with another job.dump_folder, or move {} "
                "away to begin anew",
                entries.back().path.string(), folder.string());
  }

  bool resume() {
    const CheckpointOptions& c = o_.checkpoint;
    if (!c.enable && !c.load_only) return false;
    std::filesystem::path path;
    if (c.load_step >= 0) {
      path = c.folder / step_folder_name(c.load_step);
      TOK_REQUIRE(path_exists(path), "checkpoint.load_step = {}: there is no {}", c.load_step,
                  path.string());
    } else {
      const NewestCheckpoint newest = newest_complete(c.folder);
      if (!newest.entry) {
        require_no_checkpoints(newest);
        return false;
      }
      for (const std::string& line : newest.skipped) say(line, "WARNING");
      path = newest.entry->path;
    }
    if (!c.initial_load_path.empty())
      say("checkpoint.initial_load_path is ignored: this run has checkpoints of its own");
    say(fmt::format("Loading the checkpoint {}", path.string()));
    restore(load_checkpoint(access_, pieces_, path, c.parts));
    return true;
  }

  void step() {
    const auto data_start = Clock::now();
    const int64_t num_microbatches = o_.num_microbatches();
    std::vector<Batch> batches;
    int64_t label_tokens = 0;
    for (int64_t m = 0; m < num_microbatches; ++m) {
      batches.push_back(loader_.next());
      for (const int32_t label : batches.back().labels)
        label_tokens += label == kIgnoreIndex ? 0 : 1;
    }
    window_.data_s += seconds_since(data_start);
    write_step_inputs(label_tokens);

    const bool traced = is_traced(state_.step + 1);
    std::vector<TaskSpan> spans;
    executor_.trace(traced ? &spans : nullptr);
    int64_t loaded = -1;
    for (const ScheduleItem& item : run_.plan().schedule(static_cast<int>(num_microbatches))) {
      const auto& segment = run_.plan().segments[static_cast<size_t>(item.segment)];
      if (segment.runs == Segment::Runs::kPerMicrobatch && item.microbatch != loaded) {
        loaded = item.microbatch;
        write_batch(run_.step(), batches[static_cast<size_t>(loaded)], loaded);
      }
      executor_.run(item);
    }
    if (traced) write_trace(spans);
    if (!o_.profiling.memory_folder.empty() && (state_.step + 1) % o_.profiling.freq == 0)
      write_memory();

    const double loss = access_.read<double>(run_.step().loss)[0];
    const double norm = access_.read<double>(run_.step().grad_norm)[0];
    check_finite(loss, norm, label_tokens);
    state_.step += 1;
    state_.tokens_seen += static_cast<int64_t>(o_.data.global_batch_size * o_.data.seq_len);
    window_.steps += 1;
    window_.tokens += o_.data.global_batch_size * o_.data.seq_len;
    if (state_.step == 1 || state_.step % o_.logging.log_freq == 0) log(loss, norm);
  }

  // Found before the update took place: the kernels leave State alone where the norm is no number.
  void check_finite(double loss, double norm, int64_t label_tokens) const {
    if (std::isfinite(loss) && std::isfinite(norm)) return;
    throw Diverged(fmt::format(
        "training diverged at step {}: loss {}, gradient norm {} ({} label tokens); nothing was "
        "updated, the last checkpoint is kept; lower optimizer.lr or look at the data",
        state_.step + 1, unsigned_nan(loss), unsigned_nan(norm), label_tokens));
  }

  double learning_rate(int64_t finished_steps) const {
    return o_.lr * lr_factor(o_.schedule, finished_steps);
  }

  void write_step_inputs(int64_t label_tokens) {
    const OptimizerOptions& opt = o_.shape.training.optimizer;
    const auto t = static_cast<double>(state_.step + 1);
    const double scalars[] = {learning_rate(state_.step), 1.0 - std::pow(opt.beta1, t),
                              1.0 - std::pow(opt.beta2, t)};
    access_.write(run_.step().scalars, std::span<const double>(scalars));
    const float scale[] = {label_tokens > 0 ? 1.0F / static_cast<float>(label_tokens) : 0.0F};
    access_.write(run_.step().loss_scale, std::span<const float>(scale));
  }

  void write_batch(const StepState& s, const Batch& batch, int64_t microbatch) {
    access_.write(s.tokens, std::span<const int32_t>(batch.tokens));
    access_.write(s.labels, std::span<const int32_t>(batch.labels));
    std::vector<int32_t> positions(batch.tokens.size());
    for (size_t i = 0; i < positions.size(); ++i)
      positions[i] = static_cast<int32_t>(i % static_cast<size_t>(batch.seq_len));
    access_.write(s.positions, std::span<const int32_t>(positions));
    if (!s.rows.valid()) return;
    std::vector<int64_t> rows(static_cast<size_t>(batch.rows));
    const int64_t first = state_.step * o_.data.global_batch_size + microbatch * batch.rows;
    for (size_t r = 0; r < rows.size(); ++r) rows[r] = first + static_cast<int64_t>(r);
    access_.write(s.rows, std::span<const int64_t>(rows));
  }

  void log(double loss, double norm) {
    const double elapsed = seconds_since(window_.start);
    const auto steps = static_cast<double>(window_.steps);
    const double tps = static_cast<double>(window_.tokens) / elapsed;
    const FlopsShape shape = flops_shape();
    StepMetrics m{.step = state_.step, .loss = loss, .max_loss = loss, .grad_norm = norm};
    m.lr = learning_rate(state_.step - 1);
    m.tokens_seen = state_.tokens_seen;
    m.tps = tps;
    m.tflops = flops_per_token(shape) * tps / 1e12;
    if (o_.logging.peak_flops) {
      m.mfu = 100.0 * flops_per_token(shape) * tps / *o_.logging.peak_flops;
      if (o_.logging.causal_mfu)
        m.mfu_causal = 100.0 * causal_flops_per_token(shape) * tps / *o_.logging.peak_flops;
    }
    fill_memory(m);
    m.step_time_s = elapsed / steps;
    const auto phase = [&](Phase p) { return window_.phases[static_cast<size_t>(p)] / steps; };
    m.seconds = {.data = window_.data_s / steps,
                 .forward = phase(Phase::kUnshard) + phase(Phase::kForward),
                 .backward = phase(Phase::kBackward) + phase(Phase::kWeightGradient),
                 .exposed_comm = 0.0,
                 .optimizer = phase(Phase::kUpdate),
                 .checkpoint = window_.checkpoint_s / steps};
    metrics_->append(m);
    if (events_) events_->add(m.step, to_scalars(m), std::chrono::system_clock::now());
    say(step_line(m, o_.logging.color));
    window_ = {};
  }

  template <class Metrics>
  static void fill_memory(Metrics& m) {
    constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
    const auto peak = static_cast<double>(peak_resident_bytes());
    m.memory_gib = peak / kGiB;
    m.memory_percent = 100.0 * peak / static_cast<double>(usable_memory_bytes());
  }

  FlopsShape flops_shape() const {
    const ParameterCount count = count_parameters(o_.model);
    return {.parameters = count.total,
            .lookup_parameters = count.embedding,
            .layers = o_.model.num_layers,
            .heads = o_.model.num_heads,
            .head_dim_qk = o_.model.head_dim,
            .head_dim_v = o_.model.head_dim,
            .seq_len = o_.data.seq_len};
  }

  void validate_if_due() {
    if (!validator_ || (state_.step != 1 && state_.step % o_.validation->freq != 0)) return;
    const auto start = Clock::now();
    validation_loader_->rewind();
    double total = 0.0;
    int64_t labels = 0;
    int64_t tokens = 0;
    const StepState& s = run_.validation_step();
    const float one[] = {1.0F};
    access_.write(s.loss_scale, std::span<const float>(one));
    for (int64_t b = 0; o_.validation->steps < 0 || b < o_.validation->steps; ++b) {
      const Batch batch = validation_loader_->next();
      if (batch.empty()) break;
      write_batch(s, batch, 0);
      for (const ScheduleItem& item : run_.validation_plan()->schedule(1)) validator_->run(item);
      total += access_.read<double>(s.loss)[0];
      for (const int32_t label : batch.labels) labels += label == kIgnoreIndex ? 0 : 1;
      tokens += batch.valid_rows * batch.seq_len;
    }
    TOK_REQUIRE(labels > 0, "validation.dataset \"{}\" gave no tokens",
                o_.validation->data.dataset);
    const double elapsed = seconds_since(start);
    ValidationMetrics m{.step = state_.step, .loss = total / static_cast<double>(labels)};
    m.tps = static_cast<double>(tokens) / elapsed;
    m.time_s = elapsed;
    fill_memory(m);
    validation_metrics_->append(m);
    if (events_) events_->add(m.step, to_scalars(m), std::chrono::system_clock::now());
    say(validation_line(m, o_.logging.color));
    window_.start +=
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(elapsed));
  }

  void save_if_due(bool stopping) {
    const CheckpointOptions& c = o_.checkpoint;
    if (!c.enable || c.load_only) return;
    const bool is_last = state_.step == o_.steps;
    const bool is_due = state_.step % c.interval == 0 || (c.first_step && state_.step == 1);
    if (!is_last && !is_due && !stopping) return;
    const auto start = Clock::now();
    if (is_last && !stopping && c.last_save_in_hf) {
      save_in_hf();
    } else {
      save(!(is_last && !stopping && c.last_save_model_only));
    }
    window_.checkpoint_s += seconds_since(start);
  }

  void save(bool resumable) {
    const CheckpointOptions& c = o_.checkpoint;
    state_.loader = loader_.state().to_json();
    const SnapshotOptions what{
        .config_digest = o_.config_digest, .resumable = resumable, .export_dtype = c.export_dtype};
    const auto path = save_checkpoint(world_, access_, pieces_, c.folder, state_, what);
    say(fmt::format("Saved the checkpoint {}{}", path.string(), resumable ? "" : " (model only)"));
    for (const auto& gone : purge(c.folder, c.keep_latest_k, state_.step))
      say(fmt::format("Removed {}", gone.string()));
  }

  void save_in_hf() {
    const CheckpointOptions& c = o_.checkpoint;
    const auto path = save_hf_folder(
        world_, access_, pieces_, c.folder, state_.step,
        {.model = o_.model, .dtype = c.export_dtype, .ids = c.ids, .assets = c.assets});
    say(fmt::format("Saved the Hugging Face folder {}", path.string()));
  }

  bool is_traced(int64_t step) const {
    const ProfilingOptions& p = o_.profiling;
    if (p.traces_folder.empty()) return false;
    return (step - 1) % p.freq >= p.freq - p.active;
  }

  void write_trace(const std::vector<TaskSpan>& spans) {
    const auto folder = o_.profiling.traces_folder / fmt::format("iteration_{}", state_.step + 1);
    make_folders(folder);
    write_file_atomic(folder / "rank0_trace.json", chrome_trace(spans));
    say(fmt::format("Wrote the trace {}", (folder / "rank0_trace.json").string()));
  }

  // The plan is what is allocated, so its table is the snapshot.
  void write_memory() const {
    const auto folder = o_.profiling.memory_folder / fmt::format("iteration_{}", state_.step + 1);
    make_folders(folder);
    write_file_atomic(folder / "rank0_memory.txt", memory_table(run_));
    say(fmt::format("Wrote the memory table {}", (folder / "rank0_memory.txt").string()));
  }

  const TrainerOptions& o_;
  World& world_;
  PlannedRun run_;
  std::vector<const Plan*> plans_;
  Memory memory_;
  StateAccess access_;
  std::vector<TensorPiece> pieces_;
  Executor executor_;
  Loader loader_;
  std::unique_ptr<Executor> validator_;
  std::unique_ptr<Loader> validation_loader_;
  std::optional<MetricsFile> metrics_;
  std::optional<MetricsFile> validation_metrics_;
  std::optional<EventFile> events_;
  TrainState state_;
  Window window_;
};

}  // namespace

void train(const TrainerOptions& options, World& world, Backend& backend) {
  Trainer(options, world, backend).run();
}

}  // namespace tokamak

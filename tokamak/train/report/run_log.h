// What a run reports to its user: log lines, metrics.jsonl, validation.jsonl, events.jsonl,
// TensorBoard. Rank 0 reports for all; on other ranks every function but the sums does nothing,
// unless each rank is to write files of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "tokamak/exec/executor.h"
#include "tokamak/models/model.h"
#include "tokamak/train/report/log_line.h"
#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/report/metrics_command.h"
#include "tokamak/train/report/metrics_file.h"
#include "tokamak/train/report/run_events.h"
#include "tokamak/train/report/tensorboard.h"

namespace tokamak {

struct LoggingOptions {
  std::filesystem::path dump_folder;
  int64_t log_freq = 10;
  int64_t num_steps = 0;  ///< of the whole run; the last one is always logged
  LogColor color = LogColor::kPlain;
  std::optional<double> peak_flops;          ///< of one device, for mfu
  std::string job;                           ///< the scheduler's id of the job, or empty
  std::function<MemoryUse()> memory;         ///< of the device; absent: of the process
  std::filesystem::path tensorboard_folder;  ///< empty = no event files
  std::string command;                       ///< gets the lines of rank 0's files; empty = none
  bool of_all_ranks = false;                 ///< every rank writes files of its own
  std::function<void(const std::string& level, const std::string& text)> print;
  std::function<int()> columns;  ///< the room that a terminal has for step lines; absent: no limit
  std::function<void(const StepProgress&)> show_progress;  ///< at most ten times a second
  /// Called with each step and when it ended.
  std::function<void(int64_t step, std::chrono::steady_clock::time_point end)> step_ended;
  /// Called before a file is written: throws where another process has taken the folder since.
  std::function<void()> fence;
};

/// One step as the run sees it, the same on all ranks.
struct StepResult {
  int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens_seen = 0;
  std::optional<double> saturated_sites = std::nullopt;
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();  ///< its end
};

class RunLog {
 public:
  RunLog(const LoggingOptions& options, const ModelSpec& model, int64_t seq_len, int rank,
         int world_size);

  bool speaks() const { return rank_ == 0; }

  /// Whether this rank writes files: rank 0 in the run's folder, others where each has its own.
  bool writes() const { return speaks() || o_.of_all_ranks; }

  /// Says a line that events.jsonl gets too. Any thread may call it.
  void say(const std::string& text, const std::string& level = "INFO") const;

  /// Opens the files of a run that resumes after `resumed_step` at `now`. Throws Error if they
  /// cannot be written.
  void open(int64_t resumed_step, bool with_validation, std::chrono::system_clock::time_point now);

  /// Forgets the times and tokens since the last line.
  void restart() {
    restart(std::chrono::steady_clock::now());
    ends_.at.clear();
  }

  /// Where an executor adds the seconds of its phases.
  PhaseTimes* phases() { return &window_.phases; }

  void add_data_time(double seconds) { window_.data_s += seconds; }

  void add_exposed_comm_time(double seconds) { window_.exposed_comm_s += seconds; }

  void add_checkpoint_time(double seconds) { window_.checkpoint_s += seconds; }

  void set_failed_saves(int64_t in_a_row) { failed_saves_ = in_a_row; }

  /// Adds a step of `tokens` tokens of all ranks, and writes its line if one is due; returns this
  /// rank's mean seconds since the last line, if one was due.
  std::optional<PhaseSeconds> add_step(const StepResult& result, int64_t tokens);

  /// Says the line of the last step of a run that ends before its time, if it was not logged. The
  /// files do not get it: the run that resumes writes them.
  void finish();

  /// Logs a validation whose `tokens` of all ranks took `seconds`; step times leave these out.
  void add_validation(int64_t step, double loss, int64_t tokens, double seconds);

 private:
  // The sums between two logged steps.
  struct Window {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    int64_t steps = 0;
    int64_t tokens = 0;
    double data_s = 0.0;
    double exposed_comm_s = 0.0;
    double checkpoint_s = 0.0;
    PhaseTimes phases{};
  };

  // When the last steps ended, for the pace of the run.
  struct Ends {
    std::deque<std::chrono::steady_clock::time_point> at;
    std::chrono::steady_clock::time_point shown;
  };

  void print(const std::string& text, const std::string& level = "INFO") const;

  int columns() const { return o_.columns ? o_.columns() : 0; }

  MemoryUse memory_use() const;
  void show_progress(const StepResult& result, int64_t tokens);
  void restart(std::chrono::steady_clock::time_point start);
  PhaseSeconds phase_seconds() const;
  StepMetrics metrics_of(const StepResult& result) const;

  /// Writes to files of metrics. Where the machine cannot, a line says so once, and training goes
  /// on.
  void write(const std::function<void()>& work);

  const LoggingOptions& o_;
  double flops_per_token_;
  int rank_;
  int world_size_;
  std::optional<MetricsFile> metrics_;
  std::optional<MetricsFile> validation_metrics_;
  std::optional<EventFile> tensorboard_;
  mutable RunEvents events_;
  Window window_;
  Ends ends_;
  std::optional<StepResult> unlogged_;  // the last step
  int64_t failed_saves_ = 0;
  bool is_failing_ = false;                // the last write did
  std::optional<MetricsCommand> command_;  // its thread says lines, so it ends first
};

}  // namespace tokamak

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/fit.h"
#include "tokamak/cli/output_queue.h"
#include "tokamak/cli/price.h"
#include "tokamak/cli/proxy_run.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/comm/watchdog.h"
#include "tokamak/comm/world.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/launch/cluster/preflight.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/train/check_start.h"
#include "tokamak/train/options.h"
#include "tokamak/train/predecessor.h"
#include "tokamak/train/run_folder.h"
#include "tokamak/train/run_signals.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

// How many threads of a rank copy, hash and write checkpoints: a few keep a disk busy on few cores,
// and more than a dozen gain nothing.
int storage_threads(const LaunchEnvironment& launched) {
  const int cores = usable_cores();
  return std::clamp(cores / launched.local_size, 2, 12);
}

// Returns what keeps the run's lines from its tracker, or nothing.
std::string why_no_tracker(const MetricsConfig& metrics) {
  const std::string tracker = tracker_of(metrics);
  if (tracker.empty()) return {};
  const launch::CommandResult found =
      launch::run_command({"python3", "-m", "tokamak.track", "--check", tracker});
  if (found.exit_code == 0) return {};
  std::string_view why = found.err;
  while (why.ends_with('\n')) why.remove_suffix(1);
  return fmt::format("python3 -m tokamak.track {}: {}", tracker, why.substr(why.rfind('\n') + 1));
}

// A tracker that was asked for by our own key must be there; without W&B a run of torchtitan goes
// on too.
void check_tracker(const MetricsConfig& metrics, std::string& command) {
  const std::string why = why_no_tracker(metrics);
  if (why.empty()) return;
  TOK_REQUIRE(metrics.tracker == "none", "metrics.tracker = \"{}\": {}", metrics.tracker, why);
  fmt::print(stderr, "note: metrics.enable_wandb: {}; the run goes on without it\n", why);
  command.clear();
}

// Says what the run itself would, or throws its error.
void check_inputs(const RunConfig& run, const Tokenizer* tokenizer, const PlannedRun& planned) {
  const Config& c = run.config;
  TrainerOptions options = options_of(c, tokenizer, run.place);
  check_tracker(c.metrics, options.logging.command);
  const std::filesystem::path dump = c.job.dump_folder;
  const std::filesystem::path file = dump / c.job.save_config_file.value_or("");
  const bool is_beside = file.parent_path() == dump && !path_exists(dump);
  if (c.job.save_config_file && !is_beside) check_can_write(file);
  for (const std::string& line : check_start(options, planned))
    fmt::print(stderr, "note: {}\n", line);
}

// Returns a line for a tokenizer with ids that the model lacks; empty if it has none. Some models
// are published with such tokenizers, and their text never needs these ids.
std::string too_many_ids(const Tokenizer* tokenizer, const ModelSpec& model) {
  if (tokenizer == nullptr || tokenizer->vocab_size() <= model.vocab_size) return "";
  return fmt::format(
      "the tokenizer has {} ids and the model's vocabulary ends at {}: text with a later id ends "
      "the run; check that model.hf_assets_path names the model's own tokenizer, or set "
      "--model.vocab={}",
      tokenizer->vocab_size(), model.vocab_size, tokenizer->vocab_size());
}

// Returns the exit code: a user's mistake where the run could not be trained here.
int dry_run(const RunConfig& run, LaunchEnvironment launched) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (run.needs.empty()) {
    tokenizer = tokenizer_of(run.config);
    const std::string line = too_many_ids(tokenizer.get(), spec_of(run.config));
    if (!line.empty()) fmt::print(stderr, "note: {}\n", line);
  }
  const int refused = static_cast<int>(ExitCode::kUserError);
  const int missing = run.needs.empty() || !run.is_of_this_machine ? 0 : refused;
  if (run.proxy) {
    fmt::print("{}", proxy_text(*run.proxy, run.preset.value_or("whole run")));
    launched.local_size =
        std::max(launched.local_size, static_cast<int>(run.place.degrees.world()));
  }
  for (const Need& need : run.needs) fmt::print("{}\n", needs_line(need));
  if (!has_model(run.config)) {
    fmt::print("no memory table: the model's config.json is not here\n");
    return missing;
  }
  const PlanTarget made_for = plan_target({.device = run.config.job.device,
                                           .threads = static_cast<int>(run.config.training.threads),
                                           .deterministic = run.config.debug.deterministic});
  const ModelSpec spec = spec_of(run.config);
  const RunShape shape = shape_of(run.config, spec, run.place);
  if (const std::string why = shape.distribute.low_precision.why_not(made_for.target);
      !why.empty()) {
    fmt::print("needs: model.converters = [\"{}\"]: {}\n{}",
               fmt::join(run.config.model.converters, "\", \""), why, made_for.note);
    return run.is_of_this_machine ? refused : 0;
  }
  std::optional<Waiting> waiting("planning");
  const PlannedRun planned(spec, shape, made_for.target);
  waiting.reset();
  fmt::print("{}", made_for.note);
  fmt::print("model {} {}: {} parameters\n", planned.config().name, planned.config().flavor,
             count_parameters(planned.config()).total);
  fmt::print("memory of one rank, batch {} x {}:\n{}", run.config.training.local_batch_size,
             run.config.training.seq_len, memory_table(planned));
  fmt::print("{}", proof_text(planned, made_for.target));
  if (std::getenv(kStepMemoryVariable) != nullptr)
    fmt::print("host memory of one rank for its last step (--keep-last-step): {:.2f} GiB\n",
               gib(bytes_of_step_memory(planned.pieces(), 0)));
  if (!run.is_of_this_machine) return missing;
  const Fit fit = fit_of(run, planned, made_for.target, launched);
  fmt::print("{}", fit.text);
  if (missing == 0) check_inputs(run, tokenizer.get(), planned);
  return fit.fits ? missing : refused;
}

void require_nothing_missing(const RunConfig& run) {
  std::vector<std::string> lines;
  for (const Need& need : run.needs) lines.push_back(needs_line(need));
  TOK_REQUIRE(lines.empty(), "{}", fmt::join(lines, "\n"));
}

// Whether other users may delete what lies in the folder.
bool others_may_write(const std::filesystem::path& folder) {
  using std::filesystem::perms;
  std::error_code code;
  const perms mode = std::filesystem::status(folder, code).permissions();
  return !code && (mode & perms::others_write) != perms::none &&
         (mode & perms::sticky_bit) == perms::none;
}

// Prints and writes what rank 0 reports before training.
void announce(const RunConfig& run, const ModelSpec& model, const Tokenizer* tokenizer,
              const LaunchEnvironment& launched, Console& console) {
  const Config& c = run.config;
  if (run.proxy) {
    fmt::print("{}", proxy_text(*run.proxy, run.preset.value_or("whole run")));
    make_folders(c.job.dump_folder);
    write_file_atomic(std::filesystem::path(c.job.dump_folder) / "proxy.toml", config_toml(c));
  }
  console.print("INFO", fmt::format("Starting job: {}", c.job.description));
  if (c.job.print_config) fmt::print("{}\n", config_json(c));
  if (c.job.save_config_file) {
    make_folders(c.job.dump_folder);
    write_file_atomic(std::filesystem::path(c.job.dump_folder) / *c.job.save_config_file,
                      config_json(c));
  }
  if (others_may_write(c.job.dump_folder)) {
    console.print(
        "WARNING",
        fmt::format("job.dump_folder {}: other users may replace what the run writes there",
                    c.job.dump_folder));
  }
  if (launched.world_size > 1) console.print("INFO", fmt::format("{} ranks", launched.world_size));
  console.print("INFO", fmt::format("Model {} {} size: {} total parameters", model.name,
                                    model.flavor, with_commas(count_parameters(model).total)));
  if (const std::string line = too_many_ids(tokenizer, model); !line.empty())
    console.print("WARNING", line);
  for (const std::string& line : limits_of_exports(model, c.training.seq_len))
    console.print("WARNING", line);
  if (c.checkpoint.enable && !c.checkpoint.load_only) return;
  console.print(
      "WARNING",
      fmt::format("This run saves nothing until it is stopped (then {}): {}; --checkpoint.enable "
                  "writes {} every {} steps and at the end",
                  (std::filesystem::path(c.job.dump_folder) / "stopped").string(),
                  c.checkpoint.enable ? "checkpoint.load_only = true" : "checkpoint.enable = false",
                  (std::filesystem::path(c.job.dump_folder) / c.checkpoint.folder).string(),
                  c.checkpoint.interval));
}

// Ranks of the attempt before may still hold a device's memory. Where they leave enough for its
// context and for connections, those are made while they die.
std::unique_ptr<Backend> open_device(const DeviceChoice& choice,
                                     const LaunchEnvironment& launched) {
  constexpr int64_t kEnough = int64_t{8} << 30;
  std::unique_ptr<Backend> backend;
  try {
    backend = open_backend(choice, launched);
  } catch (const SystemError&) {
    if (!has_predecessors()) throw;
    await_predecessors();
    backend = open_backend(choice, launched);
  }
  if (const auto free = backend->free_bytes(); free && *free < kEnough) await_predecessors();
  return backend;
}

/// Connects the trainer with the console, the signals, the run's folder (on rank 0) and the
/// launcher, which must all outlive it.
void connect(TrainerOptions& options, Console& console, const RunSignals& signals,
             const RunFolder* folder, const LaunchEnvironment& launched) {
  options.stop_signal = [&signals] { return signals.stop(); };
  options.save_asked = [&signals] { return signals.takes_save(); };
  options.before_last_save = [&signals] { signals.hold(); };
  options.logging.color = console.color();
  options.logging.print = [&console](const std::string& level, const std::string& text) {
    console.print(level, text);
  };
  options.logging.columns = [&console] { return console.room(); };
  if (console.is_live())
    options.logging.show_progress = [&console](const StepProgress& progress) {
      console.show(progress);
    };
  if (const char* const job = std::getenv("SLURM_JOB_ID")) options.logging.job = job;
  if (folder != nullptr) {
    options.logging.fence = options.checkpoint.fence = [folder] { folder->check(); };
    options.checkpoint.attempt = folder->attempt();
  }
  options.checkpoint.num_threads = storage_threads(launched);
  options.checkpoint.ranks_of_host = launched.local_size;
  options.ranks_per_host = launched.local_size;
  if (const char* const memory = std::getenv(kStepMemoryVariable))
    options.checkpoint.memory_folder = memory;
}

/// Returns the exit code: kExitStopped where a signal has stopped the run.
int train_on(World& world, const LaunchEnvironment& launched, Args args, const RunSignals& signals,
             Watchdog& watchdog, std::optional<OutputQueue>& output, StartPhases phases) {
  std::optional<RunConfig> run;
  std::unique_ptr<Tokenizer> tokenizer;
  TrainerOptions options;
  all_together(world, [&] {
    run = load_run_config(args, "train", launched);
    if (!run || run->dry_run) return;
    require_nothing_missing(*run);
    tokenizer = tokenizer_of(run->config);
    options = options_of(run->config, tokenizer.get(), run->place);
  });
  if (!run) return 0;
  if (!run->dry_run) output.emplace(stdout);
  LogStyle style = run->log;
  if (style.color == ColorWhen::kAuto && run->config.metrics.disable_color_printing)
    style.color = ColorWhen::kNever;
  Console console(style, launched.world_size > 1);
  int exit_code = 0;
  std::optional<RunFolder> folder;  // held to the end, on rank 0
  on_rank_zero(world, [&] {
    if (!run->dry_run) folder.emplace(run->config.job.dump_folder, this_process());
    for (const std::string& note : run->notes) fmt::print(stderr, "note: {}\n", note);
    if (run->dry_run) {
      exit_code = dry_run(*run, launched);
    } else {
      check_tracker(run->config.metrics, options.logging.command);
      announce(*run, options.model, tokenizer.get(), launched, console);
    }
  });
  if (run->dry_run) return exit_code;
  connect(options, console, signals, folder ? &*folder : nullptr, launched);
  phases.end("configuration");
  std::unique_ptr<Backend> backend;
  const bool copy_engine =
      wants_copy_engine(run->config.parallelism.copy_engine_all_gather, launched);
  all_together(world, [&] {
    backend = open_device({.device = run->config.job.device,
                           .threads = threads_of(run->config.training.threads, launched),
                           .deterministic = run->config.debug.deterministic,
                           .copy_engine = copy_engine},
                          launched);
  });
  const auto peak = peak_flops(*backend, options.shape.training.compute);
  if (peak && world.rank() == 0)
    console.print("INFO", fmt::format("Peak FLOPS used for computing MFU: {:.3e} ({})", peak->per_s,
                                      peak->of));
  if (peak) options.logging.peak_flops = peak->per_s;
  options.profiling.rates = rates_of(*backend);
  options.logging.memory = [&] { return memory_use(*backend); };
  StepTimes times;
  options.logging.step_ended = [&](int64_t step, auto end) { times.add(step, end); };
  std::unique_ptr<World> of_gpus;
  World& ranks = device_world(world, *backend, launched, copy_engine, of_gpus);
  ranks.set_timeout(options.init_timeout);
  phases.end("device");
  // A rank alone may load for longer than others would wait for it.
  watchdog.set_limits({.start = options.init_timeout * (ranks.size() == 1 ? 10 : 1),
                       .progress = options.train_timeout,
                       .file_call = options.checkpoint.timeout});
  launch::check_before_training(
      world, ranks, *backend, launched,
      {.when = run->config.comm.check_cluster,
       .folder = run->config.job.dump_folder,
       .describe_gpu = describe_gpu,
       .print = [&](const char* level, const std::string& text) { console.print(level, text); }});
  phases.end("check of the hosts");
  options.start = phases;
  const bool is_stopped = train(options, ranks, *backend);
  if (run->preset && !is_stopped && times.last_s()) {
    world.set_timeout(options.init_timeout);  // a price may take longer than a step
    on_rank_zero(world, [&] {
      console.clear();
      report_preset(*run, *backend, options.logging.peak_flops, times);
    });
  }
  return is_stopped ? kExitStopped : 0;
}

/// Tells the watchdog before the world ends.
struct Leaving {
  Watchdog& watchdog;

  ~Leaving() { watchdog.leave(); }
};

/// Returns the limit of MPI_Init, which comes before the ranks read their configuration together.
SilenceLimits limits_before_start(Args args, const LaunchEnvironment& launched) {
  const bool wants_help = std::ranges::any_of(
      args, [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (launched.world_size == 1) return {.start = std::chrono::hours(1)};
  if (wants_help) return {};
  try {
    const auto run = load_run_config(args, "train", launched);
    return {.start = std::chrono::seconds(run->config.comm.init_timeout_seconds)};
  } catch (const std::exception&) {
    return {};  // all ranks report it together
  }
}

}  // namespace

int run_train(Args args) {
  if (prints_presets(args)) return 0;
  const LaunchEnvironment launched = read_launch_environment();
  if (const auto code = launch_proxy(args, launched)) return *code;
  StartPhases phases;
  const RunSignals signals;           // before MPI and OpenMP start threads
  std::signal(SIGPIPE, SIG_IGN);      // a reader of the log that goes, or a peer, ends no training
  std::optional<OutputQueue> output;  // no peer waits for its end
  Watchdog watchdog(limits_before_start(args, launched));
  const auto world = make_world(launched);
  phases.end("MPI");
  watchdog.watch(*world);
  const Leaving leaving{watchdog};
  try {
    return train_on(*world, launched, args, signals, watchdog, output, phases);
  } catch (const AgreedFailure& failure) {
    signals.stop();  // none changes the exit code from here on
    return report_once(failure, *world);
  }
}

}  // namespace tokamak::cli

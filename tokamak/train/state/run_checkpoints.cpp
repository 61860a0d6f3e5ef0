#include "tokamak/train/state/run_checkpoints.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tokamak/checkpoint/atomic_folder.h"
#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/timing.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/state/model_check.h"
#include "tokamak/train/state/resume_point.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// Checkpoints that cannot be resumed are somebody's work, so a run never begins anew on top of
// them.
void require_no_checkpoints(const ResumePoint& point, const std::filesystem::path& folder) {
  TOK_REQUIRE(point.problem.empty(),
              "{}; {} holds nothing that can be resumed: move it away to begin anew", point.problem,
              folder.string());
  TOK_REQUIRE(point.newest_of_any_kind.empty(),
              "{} holds the model only and cannot be resumed; give it as "
              "checkpoint.initial_load_path of a run with another job.dump_folder, or move {} "
              "away to begin anew",
              point.newest_of_any_kind.string(), folder.string());
}

// Parameters have moments, so that tensors of other kinds are not looked at.
void require_no_other_parameters(const CheckpointReader& checkpoint, const ModelSpec& model) {
  const std::map<std::string, Dims> wanted = model_parameters(model).dims;
  const auto& found = checkpoint.manifest().tensors;
  for (const auto& [name, type] : found) {
    TOK_REQUIRE(wanted.contains(name) || !found.contains("optimizer.m." + name),
                "{} holds {}, which is not in the configured model ({} layers): it was "
                "written by a run of another model",
                checkpoint.folder().string(), name, model.num_layers);
  }
}

// Names the keys because of which a run did not just load its newest checkpoint; "" if there are
// none.
std::string lineage_of(const CheckpointOptions& o) {
  std::vector<std::string> asked;
  if (o.load_step >= 0) asked.push_back(fmt::format("checkpoint.load_step = {}", o.load_step));
  const std::string excluded = names_of_excluded(o.parts);
  if (!excluded.empty())
    asked.push_back(fmt::format("checkpoint.exclude_from_loading = [{}]", excluded));
  return fmt::format("{}", fmt::join(asked, ", "));
}

// Whether the newest checkpoint belongs to a run that was told to load as this one is.
bool newest_is_of(const std::string& lineage, const std::filesystem::path& folder) {
  const auto all = list_checkpoints(folder);
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const CheckpointEntry& entry) {
    return entry.kind != CheckpointKind::kUnusable;
  });
  return newest != all.rend() && newest->lineage == lineage;
}

// Returns the folder of checkpoint.load_step.
std::filesystem::path step_to_load(const CheckpointOptions& o) {
  auto path = o.folder / step_folder_name(o.load_step);
  TOK_REQUIRE(path_exists(path), "checkpoint.load_step = {}: there is no {}", o.load_step,
              path.string());
  return path;
}

void restore_loader(Loader& loader, const std::string& state) {
  loader.restore(LoaderState::from_json(state, "the checkpoint's loader state"));
}

std::string completed_line(int64_t step, int64_t steps) {
  return fmt::format("Training already completed: step {} of training.steps = {}", step, steps);
}

// Returns the line of a run that is done, as far as sizes show.
std::optional<std::string> find_completed(const CheckpointOptions& o, int64_t steps, bool is_own) {
  if (!o.writes() || o.create_seed || (o.goes_back() && !is_own)) return std::nullopt;
  for (const CheckpointEntry& entry : list_checkpoints(o.folder)) {
    if (entry.step > 0 && entry.step >= steps && entry.problem.empty())
      return completed_line(entry.step, steps);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> check_begin(const CheckpointOptions& o, const ModelSpec& model,
                                     std::span<const TensorPiece> pieces, int64_t steps,
                                     Loader* loader) {
  const std::string lineage = lineage_of(o);
  const bool is_own = newest_is_of(lineage, o.folder);
  if (const auto line = find_completed(o, steps, is_own)) return {*line};
  std::vector<std::string> lines;
  const auto check = [&](const std::filesystem::path& path) {
    const CheckpointReader reader(path);
    const bool is_branch = lineage_of(reader.manifest().info) != lineage;
    const LoadParts parts = is_branch ? o.parts : LoadParts{};
    require_no_other_parameters(reader, model);
    check_checkpoint(reader, pieces, parts);
    if (parts.loader && loader != nullptr) restore_loader(*loader, reader.section("loader"));
  };
  if (o.enable || o.load_only) {
    if (o.load_step >= 0 && !is_own) {
      check(step_to_load(o));
      return lines;
    }
    const auto alone = make_single_world();
    const ResumePoint point = find_resume_point(
        *alone, o.folder, check, [&](const std::string& line) { lines.push_back(line); });
    if (point.path) return lines;
    require_no_checkpoints(point, o.folder);
  }
  if (o.initial_load_path.empty()) return lines;
  if (o.initial_load_model_only) {
    parameters_of_model(model, open_weights(model, o.initial_load_path),
                        o.initial_load_path.string());
  } else {
    check(o.initial_load_path);
  }
  return lines;
}

RunCheckpoints::RunCheckpoints(const CheckpointOptions& options, const ModelSpec& model,
                               DType master, const std::string& config_digest, World& world,
                               const StateAccess& access, std::span<const TensorPiece> pieces,
                               const RunLog& log)
    : o_(options),
      model_(model),
      master_(master),
      config_digest_(config_digest),
      world_(world),
      access_(access),
      pieces_(pieces),
      log_(log),
      lineage_(lineage_of(options)),
      saver_(world, {.folder = folder_of_saves(),
                     .keep_latest_k = options.keep_latest_k,
                     .in_background = options.in_background && writes(),
                     .pins_copy = options.pins_copy,
                     .num_threads = options.num_threads,
                     .ranks_of_host = options.ranks_of_host,
                     .max_failed_saves = options.max_failed_saves,
                     .retry_after = std::chrono::duration<double>(options.retry_s),
                     .attempt = options.attempt,
                     .fence = options.fence,
                     .say = [&log](const std::string& text, const std::string& level) {
                       log.say(text, level);
                     }}) {}

bool RunCheckpoints::has_done(int64_t steps) {
  if (!writes() || o_.create_seed || (o_.goes_back() && !newest_is_own())) return false;
  const FinishedRun run = find_finished_run(world_, o_.folder, steps, o_.num_threads);
  for (const std::string& line : run.damaged) log_.say(line, "WARNING");
  if (!run.step) return false;
  // A rank may have died while it removed an older checkpoint, and no save follows that would
  // sweep the folder.
  if (world_.rank() == 0) {
    try {
      sweep_stale_folders(o_.folder);
    } catch (const SystemError& error) {
      log_.say(fmt::format("Old checkpoints could not be removed: {}", error.what()), "WARNING");
    }
  }
  log_.say(completed_line(*run.step, steps));
  return true;
}

TrainState RunCheckpoints::begin(uint64_t seed, Loader& loader) {
  TrainState state{.seed = seed};
  has_branched_ = false;
  auto resumed = recall(loader);
  const bool is_recalled = resumed.has_value();
  if (!is_recalled) resumed = resume(seed);
  if (resumed) {
    if (!o_.initial_load_path.empty())
      log_.say(fmt::format("The weights of {} are ignored: this run has checkpoints of its own",
                           o_.initial_load_path.string()));
    state = std::move(*resumed);
    take_over(state, seed, loader);
  } else {
    initialize(access_, pieces_, seed);
    if (!o_.initial_load_path.empty()) {
      log_.say(fmt::format("Loading the weights of {}", o_.initial_load_path.string()));
      if (o_.initial_load_model_only) {
        load_weights();
      } else {
        all_together_for_long(
            world_, [&] { state = load(CheckpointReader(o_.initial_load_path), o_.parts, seed); });
        take_over(state, seed, loader);
      }
    }
  }
  if (writes()) {
    describe_model(o_.folder);
    saver_.prepare(access_, pieces_);
    if (has_branched_ && o_.goes_back()) leave_branch(state, loader);
    if (is_recalled && owes_save(state.step)) save(state, true, loader);
  }
  return state;
}

std::optional<TrainState> RunCheckpoints::recall(const Loader& loader) {
  if (o_.memory_folder.empty()) return std::nullopt;
  if (!memory_) {
    memory_ = std::make_unique<StepMemory>(
        world_, access_, pieces_,
        StepMemoryOptions{.folder = o_.memory_folder,
                          .config_digest = config_digest_,
                          .text_bytes = 2 * std::ssize(loader.state().to_json()),
                          .num_threads = o_.num_threads,
                          .ranks_of_host = o_.ranks_of_host,
                          .say = [&log = log_](const std::string& text, const std::string& level) {
                            log.say(text, level);
                          }});
  }
  const auto start = std::chrono::steady_clock::now();
  auto state = memory_->restore();
  if (state)
    log_.say(fmt::format("Going on from step {}, which was kept in memory ({})", state->step,
                         loaded_since(start)));
  return state;
}

// Returns whether the checkpoint that was due last, at or before `step`, is not there: the death
// may have come while it was written.
bool RunCheckpoints::owes_save(int64_t step) const {
  const int64_t due = step - step % o_.interval;
  if (due == 0) return false;
  const std::string text = on_rank_zero(world_, [&]() -> std::string {
    for (const CheckpointEntry& entry : list_checkpoints(o_.folder)) {
      if (entry.step >= due && entry.kind == CheckpointKind::kResumable) return "";
    }
    return "owes";
  });
  return !text.empty();
}

void RunCheckpoints::keep_step(TrainState& state, const Loader& loader) {
  state.loader = loader.state().to_json();
  memory_->keep(state);
}

bool RunCheckpoints::is_copying() const {
  return saver_.is_copying() || (memory_ && memory_->is_copying());
}

void RunCheckpoints::await_copies() {
  saver_.await_copy();
  if (memory_) memory_->await_copy();
}

bool RunCheckpoints::newest_is_own() const {
  const std::string answer = on_rank_zero(
      world_, [&] { return std::string(newest_is_of(lineage_, o_.folder) ? "own" : ""); });
  return !answer.empty();
}

std::optional<TrainState> RunCheckpoints::resume(uint64_t seed) {
  if (!o_.enable && !o_.load_only) return std::nullopt;
  TrainState state;
  const bool is_done = !lineage_.empty() && newest_is_own();
  if (is_done) log_.say(fmt::format("{}: done when this run began", lineage_));
  // What a run does not write, another may: to go back is to go back to where it began.
  const bool is_fixed = !writes() && !loaded_from_.empty();
  if (is_fixed || (o_.load_step >= 0 && !is_done)) {
    const std::filesystem::path path =
        is_fixed ? loaded_from_.string()
                 : on_rank_zero(world_, [&] { return step_to_load(o_).string(); });
    log_.say(fmt::format("Loading the checkpoint {}", path.string()));
    all_together_for_long(world_, [&] { state = resume_from(path, seed); });
    return state;
  }
  const ResumePoint point = find_resume_point(
      world_, o_.folder,
      [&](const std::filesystem::path& path) {
        log_.say(fmt::format("Loading the checkpoint {}", path.string()));
        const auto start = std::chrono::steady_clock::now();
        state = resume_from(path, seed);
        log_.say(fmt::format("Loaded {}", loaded_since(start)));
      },
      [&](const std::string& line) { log_.say(line, "WARNING"); });
  if (!point.path) {
    on_rank_zero(world_, [&] { require_no_checkpoints(point, o_.folder); });
    return std::nullopt;
  }
  return state;
}

std::string RunCheckpoints::loaded_since(std::chrono::steady_clock::time_point start) const {
  int64_t bytes = 0;
  for (const TensorPiece& piece : pieces_) bytes += piece.numel() * size_of(piece.type.dtype);
  return fmt::format("{:.3g} GB of this rank in {:.3g} s", static_cast<double>(bytes) / 1e9,
                     seconds_since(start));
}

TrainState RunCheckpoints::resume_from(const std::filesystem::path& path, uint64_t seed) {
  const CheckpointReader checkpoint(path);
  loaded_from_ = path;
  has_branched_ = lineage_of(checkpoint.manifest().info) != lineage_;
  return load(checkpoint, has_branched_ ? o_.parts : LoadParts{}, seed);
}

TrainState RunCheckpoints::load(const CheckpointReader& checkpoint, const LoadParts& parts,
                                uint64_t seed) const {
  require_no_other_parameters(checkpoint, model_);
  if (!names_of_excluded(parts).empty()) initialize(access_, pieces_, seed);
  return load_checkpoint(access_, pieces_, checkpoint.folder(), parts,
                         {.count = o_.num_threads, .num_ranks = world_.size()});
}

// What is newer than where the run begins belongs to a branch that it leaves. That may hold the
// checkpoint it has begun from, which must not go before the run has one of its own.
void RunCheckpoints::leave_branch(TrainState& state, const Loader& loader) {
  const std::filesystem::path aside =
      on_rank_zero(world_, [&] { return next_aside(o_.folder).string(); });
  leave_newer(o_.folder, state.step, loaded_from_, aside);
  const auto own = o_.folder / step_folder_name(state.step);
  if (own == loaded_from_) return;
  save(state, true, loader);
  saver_.finish();
  if (saver_.num_failed() == 0) leave_newer(o_.folder, state.step, own, aside);
}

void RunCheckpoints::leave_newer(const std::filesystem::path& folder, int64_t first,
                                 const std::filesystem::path& kept,
                                 const std::filesystem::path& aside) const {
  const std::string names =
      on_rank_zero(world_, [&] { return set_aside(folder, first, kept, aside); });
  if (names.empty()) return;
  log_.say(fmt::format("Moved {}, a branch that this run leaves, to {}", names, aside.string()));
  describe_model(aside);
}

// Continues the loader of the run that was saved, and says what is not as it was there.
void RunCheckpoints::take_over(TrainState& state, uint64_t seed, Loader& loader) const {
  all_together(world_, [&] {
    if (!state.loader.empty()) restore_loader(loader, state.loader);
  });
  if (state.missing_scales > 0) log_.say(missing_scales_text());
  if (state.other_moments) {
    const auto moment = std::ranges::find_if(pieces_, [](const TensorPiece& p) {
      return p.kind == StateKind::kMoment && !p.is_delayed_scale;
    });
    log_.say(fmt::format("optimizer.state_dtype: the checkpoint's moments are {}; they go on in {}",
                         name_of(*state.other_moments), name_of(moment->type.dtype)));
  }
  if (!state.keys.empty()) {
    KeyValues others = o_.keys;
    const auto lengths = std::stable_partition(
        others.begin(), others.end(), [](const auto& key) { return !is_length(key.first); });
    const KeyValues of_length(lengths, others.end());
    others.erase(lengths, others.end());
    constexpr std::string_view kWhat = "the checkpoint's keys";
    if (const std::string changed = changed_keys(state.keys, of_length, kWhat); !changed.empty())
      log_.say(fmt::format("The run has another length than before: {}", changed));
    if (const std::string changed = changed_keys(state.keys, others, kWhat); !changed.empty())
      log_.say(fmt::format("The checkpoint was trained with other keys: {}", changed), "WARNING");
  }
  if (state.seed != seed) {
    log_.say(fmt::format("The checkpoint was trained with debug.seed = {}, this run has {}",
                         state.seed, seed),
             "WARNING");
    state.seed = seed;
  }
}

void RunCheckpoints::load_weights() {
  std::string left_out;
  std::string other;
  all_together_for_long(world_, [&] {
    const std::string where = o_.initial_load_path.string();
    auto found = open_weights(model_, o_.initial_load_path);
    for (TensorSource& tensor : found) {
      tensor.read = [&page = world_.flights(), read = tensor.read](int64_t first, auto out) {
        read(first, out);
        page.tick();
      };
    }
    load_parameters(access_, pieces_, parameters_of_model(model_, found, where));
    left_out = left_out_of(found, where);
    other = other_members(model_, o_.initial_load_path);
  });
  if (!left_out.empty()) log_.say(left_out);
  if (!other.empty()) log_.say(other, "WARNING");
}

// Writes the model's files beside the checkpoints, so that `generate` and `convert` need no others.
void RunCheckpoints::describe_model(const std::filesystem::path& folder) const {
  on_rank_zero(world_, [&] {
    make_folders(folder);
    write_file_atomic(folder / "config.json", to_hf_config(model_, master_, o_.ids));
    for (const auto& [name, text] : o_.assets) write_file_atomic(folder / name, text);
  });
}

bool RunCheckpoints::is_due(const TrainState& state, int64_t steps, bool stopping,
                            bool retry) const {
  if (!writes()) return stopping && !o_.stopped_folder.empty();
  return stopping || retry || state.step == steps || state.step % o_.interval == 0 ||
         (o_.first_step && state.step == 1);
}

void RunCheckpoints::save_if_due(TrainState& state, int64_t steps, bool stopping, bool retry,
                                 const Loader& loader) {
  if (!is_due(state, steps, stopping, retry)) return;
  if (stopping || state.step == steps) return save_last(state, stopping, loader);
  if (saver_.is_saving()) {
    log_.say(fmt::format("Step {} is not saved: step {} is still being written", state.step,
                         saver_.step()),
             "WARNING");
    return;
  }
  save(state, true, loader);
}

void RunCheckpoints::save_last(TrainState& state, bool stopping, const Loader& loader) {
  saver_.finish();
  if (!writes()) {
    log_.say(
        fmt::format("Stopping: saving {}, which --checkpoint.enable --checkpoint.folder={} "
                    "goes on from; another Ctrl-C ends the run at once",
                    (o_.stopped_folder / step_folder_name(state.step)).string(),
                    o_.stopped_folder.filename().string()));
    describe_model(o_.stopped_folder);
    leave_newer(o_.stopped_folder, state.step + 1, {},
                on_rank_zero(world_, [&] { return next_aside(o_.stopped_folder).string(); }));
  }
  while (true) {
    const int failed = saver_.num_failed();
    if (!stopping && o_.last_save_in_hf) {
      saver_.attempt(state.step, [&] { save_in_hf(state); });
    } else {
      save(state, stopping || !o_.last_save_model_only, loader);
      saver_.finish();
    }
    if (saver_.num_failed() <= failed) return;
    std::this_thread::sleep_for(saver_.retry_wait());
  }
}

void RunCheckpoints::save_seed(TrainState& state, const Loader& loader) {
  save(state, true, loader);
  saver_.finish();
}

void RunCheckpoints::save(TrainState& state, bool resumable, const Loader& loader) {
  state.loader = loader.state().to_json();
  saver_.save(access_, pieces_, state,
              {.config_digest = config_digest_,
               .keys = to_json(o_.keys),
               .lineage = lineage_,
               .resumable = resumable,
               .export_dtype = o_.export_dtype});
}

void RunCheckpoints::save_in_hf(const TrainState& state) {
  AssetFiles assets = o_.assets;
  if (!lineage_.empty()) assets[kLineageFile] = lineage_;
  const auto path =
      save_hf_folder(world_, access_, pieces_, o_.folder, state.step,
                     {.model = model_, .dtype = o_.export_dtype, .ids = o_.ids, .assets = assets});
  log_.say(fmt::format("Saved the Hugging Face folder {}", path.string()));
}

}  // namespace tokamak

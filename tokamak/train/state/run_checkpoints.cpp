#include "tokamak/train/state/run_checkpoints.h"

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/state/resume_point.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// Checkpoints that cannot be resumed are somebody's work, so a run never begins anew on top of
// them.
void require_no_checkpoints(const ResumePoint& point, const std::filesystem::path& folder) {
  TOK_REQUIRE(point.skipped.empty(),
              "{}; {} holds nothing that can be resumed: move it away to begin anew",
              point.skipped.front(), folder.string());
  TOK_REQUIRE(point.newest_of_any_kind.empty(),
              "{} holds the model only and cannot be resumed; give it as "
              "checkpoint.initial_load_path of a run with another job.dump_folder, or move {} "
              "away to begin anew",
              point.newest_of_any_kind.string(), folder.string());
}

}  // namespace

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
      saver_(world, {.folder = options.folder,
                     .keep_latest_k = options.keep_latest_k,
                     .in_background = options.in_background,
                     .say = [&log](const std::string& text) { log.say(text); }}) {}

bool RunCheckpoints::has_done(int64_t steps) {
  if (!writes() || o_.create_seed || o_.load_step >= 0) return false;
  const int64_t step = last_saved_step(world_, o_.folder);
  if (step == 0 || step < steps) return false;
  log_.say(fmt::format("Training already completed: step {} of training.steps = {}", step, steps));
  return true;
}

TrainState RunCheckpoints::begin(uint64_t seed, Loader& loader) {
  TrainState state{.seed = seed};
  const std::filesystem::path path = find();
  if (!path.empty()) {
    if (!o_.initial_load_path.empty())
      log_.say("checkpoint.initial_load_path is ignored: this run has checkpoints of its own");
    log_.say(fmt::format("Loading the checkpoint {}", path.string()));
    state = load(path, seed, loader);
  } else {
    initialize(access_, pieces_, seed);
    if (!o_.initial_load_path.empty()) {
      log_.say(fmt::format("Loading the weights of {}", o_.initial_load_path.string()));
      if (o_.initial_load_model_only) {
        load_weights();
      } else {
        state = load(o_.initial_load_path, seed, loader);
      }
    }
  }
  if (writes()) describe_model();
  return state;
}

std::filesystem::path RunCheckpoints::find() const {
  if (!o_.enable && !o_.load_only) return {};
  if (o_.load_step >= 0) {
    auto path = o_.folder / step_folder_name(o_.load_step);
    on_rank_zero(world_, [&] {
      TOK_REQUIRE(path_exists(path), "checkpoint.load_step = {}: there is no {}", o_.load_step,
                  path.string());
      return std::string();
    });
    return path;
  }
  const ResumePoint point = find_resume_point(world_, o_.folder);
  if (!point.path) {
    on_rank_zero(world_, [&] {
      require_no_checkpoints(point, o_.folder);
      return std::string();
    });
    return {};
  }
  for (const std::string& line : point.skipped) log_.say(line, "WARNING");
  return *point.path;
}

TrainState RunCheckpoints::load(const std::filesystem::path& path, uint64_t seed, Loader& loader) {
  TrainState state;
  all_together(world_, [&] {
    state = load_checkpoint(access_, pieces_, path, o_.parts);
    if (!state.loader.empty())
      loader.restore(LoaderState::from_json(state.loader, "the checkpoint's loader state"));
    return std::string();
  });
  if (state.missing_scales > 0)
    log_.say("float8: the checkpoint has no delayed scales, so the next step scales by its maxima");
  if (state.seed != seed) {
    log_.say(fmt::format("The checkpoint was trained with debug.seed = {}, this run has {}",
                         state.seed, seed),
             "WARNING");
    state.seed = seed;
  }
  return state;
}

void RunCheckpoints::load_weights() {
  all_together(world_, [&] {
    load_parameters(access_, pieces_, open_weights(model_, o_.initial_load_path));
    return std::string();
  });
}

// Writes the model's files beside the checkpoints, so that `generate` and `convert` need no others.
void RunCheckpoints::describe_model() const {
  on_rank_zero(world_, [&] {
    make_folders(o_.folder);
    write_file_atomic(o_.folder / "config.json", to_hf_config(model_, master_, o_.ids));
    for (const auto& [name, text] : o_.assets) write_file_atomic(o_.folder / name, text);
    return std::string();
  });
}

bool RunCheckpoints::is_due(const TrainState& state, int64_t steps, bool stopping) const {
  if (!writes()) return false;
  return stopping || state.step == steps || state.step % o_.interval == 0 ||
         (o_.first_step && state.step == 1);
}

void RunCheckpoints::save_if_due(TrainState& state, int64_t steps, bool stopping,
                                 const Loader& loader) {
  if (!is_due(state, steps, stopping)) return;
  const bool is_last = state.step == steps && !stopping;
  if (is_last && o_.last_save_in_hf) {
    save_in_hf(state);
  } else {
    save(state, !(is_last && o_.last_save_model_only), loader);
  }
}

void RunCheckpoints::save_seed(TrainState& state, const Loader& loader) {
  save(state, true, loader);
  saver_.finish();
}

void RunCheckpoints::save(TrainState& state, bool resumable, const Loader& loader) {
  state.loader = loader.state().to_json();
  saver_.save(
      access_, pieces_, state,
      {.config_digest = config_digest_, .resumable = resumable, .export_dtype = o_.export_dtype});
}

void RunCheckpoints::save_in_hf(const TrainState& state) {
  saver_.finish();
  const auto path = save_hf_folder(
      world_, access_, pieces_, o_.folder, state.step,
      {.model = model_, .dtype = o_.export_dtype, .ids = o_.ids, .assets = o_.assets});
  log_.say(fmt::format("Saved the Hugging Face folder {}", path.string()));
}

}  // namespace tokamak

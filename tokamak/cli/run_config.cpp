#include "tokamak/cli/run_config.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/proxy_run.h"
#include "tokamak/cli/words.h"
#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/core/toml_reader.h"
#include "tokamak/core/value.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/input_paths.h"
#include "tokamak/run/presets.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/train/options.h"

namespace tokamak::cli {
namespace {

struct Flag {
  std::string_view name;
  std::string_view value;  ///< "" for a switch
  std::string_view what;
  std::string_view verb;  ///< the one that has it; "" = both
};

constexpr std::array kFlags{
    Flag{"--dry-run", "",
         "say what is missing, what it takes and whether it fits here; train nothing", "train"},
    Flag{"--color", "WHEN", "auto (on a terminal, unless NO_COLOR is set), always or never",
         "train"},
    Flag{"--log-format", "FORMAT", "plain, or torchtitan for its \"[titan] ...\" before each line",
         "train"},
    Flag{"--print", "", "every task with its kernel and operands", "plan"},
    Flag{"--why", "", "why each kernel was chosen", "plan"},
    Flag{"--check", "", "prove that no tasks race and that all ranks' collectives meet", "plan"},
    Flag{"--print-schedule", "",
         "draw the pipeline schedule, say what each stage holds, plan nothing", "plan"},
    Flag{"--preset", "NAME",
         "a known run in place of FILE.toml; `tokamak price --preset list` names them"},
    Flag{"--proxy", "",
         "scale the run down until this machine can train it; =N: on at most N ranks", "train"},
    Flag{"--world-size", "N", "ranks, where no launcher tells"},
    Flag{"--help", "", "print this and exit"},
};

bool has_flag(const Flag& flag, const std::string& verb) {
  return flag.verb.empty() || flag.verb == verb;
}

void print_help(const std::string& verb) {
  fmt::print("{}\n\nusage: tokamak {} [FILE.toml] [--section.key=value ...] [flags]\n\nflags:\n",
             verb == "train" ? "Trains a model." : "Prints the plan of a run.", verb);
  for (const Flag& flag : kFlags) {
    if (!has_flag(flag, verb)) continue;
    fmt::print("  {:<22} {}\n",
               fmt::format("{}{}{}", flag.name, flag.value.empty() ? "" : "=", flag.value),
               flag.what);
  }
  fmt::print(
      "\nsections of keys; `tokamak help SECTION` lists its keys, `tokamak help all` all of them,\n"
      "`tokamak help section.key` explains one:\n{}",
      wrapped(fmt::format("  {}", fmt::join(sections(), ", ")), 2));
  fmt::print("\nflavors of models (model.name and model.flavor; hf is any config.json):\n");
  for (const std::string& name : model_names())
    fmt::print("{}",
               wrapped(fmt::format("  {:<9}{}, hf", name, fmt::join(flavors_of(name), ", ")), 11));
  if (verb == "plan")
    fmt::print(
        "\nwhat a run would cost elsewhere: tokamak price, search, sweep (--help of each)\n");
}

// Words with one dash, and flags that are no keys, would be taken for files and keys.
void refuse_unknown_flag(const std::string& word, const std::string& verb) {
  const std::string name = word.substr(0, word.find('='));
  if (!name.starts_with("-") || name.find('.') != std::string::npos) return;
  std::vector<std::string> flags;
  for (const Flag& flag : kFlags) {
    if (has_flag(flag, verb)) flags.emplace_back(flag.name);
  }
  std::string dashed = name;
  std::ranges::replace(dashed, '_', '-');
  const auto nearest = nearest_name(dashed, flags);
  TOK_REQUIRE(!nearest, "{}: no such flag; the nearest is {}", printable(name), *nearest);
  TOK_REQUIRE(name.starts_with("--"), "{}: no such flag; `tokamak {} --help` lists them",
              printable(name), verb);
}

int64_t parse_ranks(std::string_view flag, const std::string& text) {
  const auto n = parse_number<int64_t>(text);
  TOK_REQUIRE(n && *n >= 1, "{}={}: wanted a positive number", flag, text);
  return *n;
}

// An unknown model can be neither run nor planned.
void refuse_unknown_models(const std::vector<Need>& needs) {
  std::vector<std::string> lines;
  for (const Need& need : needs) {
    if (need.key != "model.name" && need.key != "model.flavor" && need.key != "model.norm_type")
      continue;
    lines.push_back(fmt::format("{} = {}: {}", need.key, need.value, need.reason));
  }
  TOK_REQUIRE(lines.empty(), "{}", fmt::join(lines, "\n"));
}

// Returns a line for each degree that asks for ranks which were not started.
std::vector<Need> missing_ranks(const ParallelismConfig& p, int64_t wanted, int64_t here) {
  const std::string reason = fmt::format(
      "{} ranks, {} here: start them by tokamak launch -n {} -- train ..., mpirun or srun", wanted,
      here, wanted);
  std::vector<Need> needs;
  const auto add = [&](const char* key, int64_t degree) {
    needs.push_back({.key = key, .value = fmt::format("{}", degree), .reason = reason});
  };
  const std::pair<const char*, int64_t> degrees[] = {
      {"parallelism.data_parallel_replicate_degree", p.data_parallel_replicate_degree},
      {"parallelism.data_parallel_shard_degree", p.data_parallel_shard_degree},
      {"parallelism.tensor_parallel_degree", p.tensor_parallel_degree},
      {"parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree},
      {"parallelism.context_parallel_degree", p.context_parallel_degree}};
  for (const auto& [key, degree] : degrees) {
    if (degree > 1) add(key, degree);
  }
  if (needs.empty()) add("parallelism.data_parallel_shard_degree", p.data_parallel_shard_degree);
  return needs;
}

// Takes --color=WHEN and --log-format=FORMAT.
bool take_log_word(const std::string& word, LogStyle& style) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  if (name != "--color" && name != "--log-format") return false;
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "--color") {
    const auto color = value == "auto"     ? std::optional(ColorWhen::kAuto)
                       : value == "always" ? std::optional(ColorWhen::kAlways)
                       : value == "never"  ? std::optional(ColorWhen::kNever)
                                           : std::nullopt;
    TOK_REQUIRE(color, "--color={}: wanted auto, always or never", printable(value));
    style.color = *color;
  } else {
    TOK_REQUIRE(value == "plain" || value == "torchtitan",
                "--log-format={}: wanted plain or torchtitan", printable(value));
    style.format = value == "plain" ? LogFormat::kPlain : LogFormat::kTorchtitan;
  }
  return true;
}

bool is_flag(const std::string& word) {
  return word.starts_with("-") && word.size() > 1;
}

// Whether the word, as -1, may be the value of the key before it.
bool follows_key(Args args, size_t i) {
  return i > 0 && !args[i].starts_with("--") && args[i - 1].starts_with("--") &&
         args[i - 1].find('.') != std::string::npos && args[i - 1].find('=') == std::string::npos;
}

// The words, before anything is read.
struct RunWords {
  RunConfig run;  // as far as flags set it
  std::optional<std::string> preset;
  std::optional<std::filesystem::path> file;
  std::optional<int64_t> world_size;
  bool is_proxy = false;
  std::optional<int64_t> proxy_ranks;
  std::vector<std::string> overrides;
  bool wants_help = false;
};

RunWords parse_run_words(Args args, const std::string& verb) {
  const std::string preset_word = "--preset=";
  const std::string world_word = "--world-size=";
  const std::string proxy_word = "--proxy=";
  RunWords words;
  RunConfig& run = words.run;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      words.wants_help = true;
      return words;
    }
    if (arg == "--dry-run" && verb == "train") {
      run.dry_run = true;
    } else if (arg == "--print" && verb == "plan") {
      run.print = true;
    } else if (arg == "--check" && verb == "plan") {
      run.check = true;
    } else if (arg == "--why" && verb == "plan") {
      run.why = true;
    } else if (arg == "--print-schedule" && verb == "plan") {
      run.print_schedule = true;
    } else if (arg.rfind(preset_word, 0) == 0) {
      words.preset = arg.substr(preset_word.size());
    } else if (arg == "--preset" && i + 1 < args.size()) {
      words.preset = args[++i];
    } else if (arg.rfind(world_word, 0) == 0) {
      words.world_size = parse_ranks("--world-size", arg.substr(world_word.size()));
    } else if (arg == "--world-size" && i + 1 < args.size()) {
      words.world_size = parse_ranks("--world-size", args[++i]);
    } else if ((arg == "--proxy" || arg.rfind(proxy_word, 0) == 0) && verb == "train") {
      words.is_proxy = true;
      if (arg != "--proxy")
        words.proxy_ranks = parse_ranks("--proxy", arg.substr(proxy_word.size()));
    } else if (verb == "train" && take_log_word(arg, run.log)) {
      continue;
    } else if (!is_flag(arg) && !words.file && words.overrides.empty()) {
      words.file = arg;
    } else {
      if (is_flag(arg) && !follows_key(args, i)) refuse_unknown_flag(arg, verb);
      words.overrides.push_back(arg);
    }
  }
  TOK_REQUIRE(!words.preset || !words.file, "--preset {}: wanted a preset or {}, got both",
              *words.preset, words.file->string());
  return words;
}

// The file of a model that is unknown has unknown keys too: the model is what to
// name.
void refuse_file_of_other_model(const std::filesystem::path& file) {
  Config config;
  for (const Entry& entry : read_toml(read_file(file, kSmallFileBytes), file.string()).entries) {
    const auto* text = std::get_if<std::string>(&entry.value);
    if (text == nullptr) continue;
    if (entry.name == "model.name") config.model.name = *text;
    if (entry.name == "model.flavor") config.model.flavor = *text;
  }
  std::vector<Need> of_name = needs(config, capabilities(gpu::why_none()));
  std::erase_if(of_name, [](const Need& need) { return need.key != "model.name"; });
  refuse_unknown_models(of_name);
}

LoadedConfig load(const RunWords& words, std::span<const std::string> overrides) {
  if (words.preset) return load_preset(find_preset(*words.preset), overrides);
  try {
    return load_config(words.file, overrides);
  } catch (const Error&) {
    if (words.file && path_exists(*words.file)) refuse_file_of_other_model(*words.file);
    throw;
  }
}

// Scales down what the file or the preset says, and lets the overrides have the last word.
LoadedConfig load_proxy(const RunWords& words, const LaunchEnvironment& launched, RunConfig& run) {
  const std::string device = load(words, words.overrides).config.job.device;
  LoadedConfig whole = load(words, {});
  const int64_t world = words.world_size ? *words.world_size
                        : words.preset   ? find_preset(*words.preset).num_gpus
                                         : default_world_size(whole.config);
  validate(whole.config, world);
  run.proxy = scale_down(whole.config, resolve_degrees(whole.config.parallelism, world),
                         proxy_limits(device, words.proxy_ranks, launched));
  LoadedConfig loaded = parse_toml_text(config_toml(run.proxy->config), "--proxy", words.overrides);
  loaded.notes.insert(loaded.notes.begin(), whole.notes.begin(), whole.notes.end());
  loaded.needs.insert(loaded.needs.begin(), whole.needs.begin(), whole.needs.end());
  return loaded;
}

}  // namespace

std::optional<RunConfig> load_run_config(Args args, const std::string& verb,
                                         const LaunchEnvironment& launched) {
  RunWords words = parse_run_words(args, verb);
  if (words.wants_help) {
    print_help(verb);
    return std::nullopt;
  }
  RunConfig run = std::move(words.run);
  run.preset = words.preset;
  const bool is_launched = launched.source != "none";
  LoadedConfig loaded =
      words.is_proxy ? load_proxy(words, launched, run) : load(words, words.overrides);
  run.config = std::move(loaded.config);
  run.notes = std::move(loaded.notes);
  for (std::string& note : find_inputs(run.config)) run.notes.push_back(std::move(note));
  const bool gives_world = words.world_size && !words.is_proxy;
  const int64_t world = gives_world   ? *words.world_size
                        : is_launched ? launched.world_size
                                      : default_world_size(run.config);
  validate(run.config, world);
  run.is_of_this_machine =
      !gives_world && (run.config.job.device != "cuda" || gpu::num_devices() > 0);
  run.place = {.degrees = resolve_degrees(run.config.parallelism, world),
               .rank = launched.world_size == world ? launched.rank : 0};
  set_steps(run.config, run.place.degrees);
  run.needs = std::move(loaded.needs);
  for (Need& need : needs(run.config, capabilities(gpu::why_none())))
    run.needs.push_back(std::move(need));
  refuse_unknown_models(run.needs);
  for (Need& need : missing_files(run.config)) run.needs.push_back(std::move(need));
  if (has_hf_config(run.config) && has_model(run.config)) {
    const ModelSpec spec = spec_of(run.config);
    if (loaded.names_model) require_name(spec, run.config.model.name);
    if (!spec.unused_members.empty()) run.notes.push_back(spec.unused_members);
  }
  if (auto note = fit_vocab(run.config)) run.notes.push_back(std::move(*note));
  const bool starts_itself = words.is_proxy && !is_launched;
  if (world != launched.world_size && !starts_itself) {
    for (Need& need : missing_ranks(run.config.parallelism, world, launched.world_size))
      run.needs.push_back(std::move(need));
  }
  return run;
}

void check_run_keys(Args args, const std::string& verb) {
  const RunWords words = parse_run_words(args, verb);
  const Config config = load(words, words.overrides).config;
  refuse_unknown_models(needs(config, capabilities(gpu::why_none())));
}

std::vector<Need> unpriced(const Config& config, bool plans_low) {
  std::vector<Need> all = needs(config, capabilities(gpu::why_none()));
  const auto costs_nothing = [](const Need& need) {
    constexpr std::string_view kOfAStep[] = {"optimizer.", "activation_checkpoint.", "parallelism.",
                                             "training.", "model.converters"};
    return need.key.starts_with("training.dataset") ||
           std::ranges::none_of(
               kOfAStep, [&](std::string_view section) { return need.key.starts_with(section); });
  };
  std::erase_if(all, costs_nothing);
  if (!config.model.converters.empty() && !plans_low) {
    if (auto need = unpriced_filter(config)) all.push_back(std::move(*need));
  }
  return all;
}

}  // namespace tokamak::cli

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/comm/world.h"
#include "tokamak/config/check.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/data/token_files.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/train/evaluator.h"
#include "tokamak/train/state/model_check.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

// Longer rows than this are asked for.
constexpr int64_t kMostSeqLen = 2048;
constexpr int64_t kGpuRows = 8;

struct EvalWords {
  std::string model;
  std::string data;
  std::string dataset = "auto";
  std::string text_column = "text";
  std::string flavor;
  std::string tokenizer;
  std::string by;
  std::string dtype = "auto";
  std::string device = "auto";
  int64_t seq_len = 0;
  int64_t stride = 0;
  int64_t batch = 0;
  bool json = false;
  std::vector<std::string> overrides;  // --section.key=value
};

// Takes words such as --parallelism.tensor_parallel_degree=2 out of `args`.
std::vector<std::string> take_overrides(std::vector<std::string>& args) {
  std::vector<std::string> overrides;
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].substr(0, args[i].find('='));
    if (!name.starts_with("--") || name.find('.') == std::string::npos) {
      rest.push_back(args[i]);
      continue;
    }
    TOK_REQUIRE(name.starts_with("--parallelism.") || name.starts_with("--comm.") ||
                    name == "--training.threads",
                "eval: {}: of a run's keys eval takes those of parallelism and comm, and "
                "training.threads",
                name);
    overrides.push_back(args[i]);
    if (name.size() == args[i].size() && i + 1 < args.size() && !args[i + 1].starts_with("--"))
      overrides.push_back(args[++i]);
  }
  args = std::move(rest);
  return overrides;
}

std::optional<EvalWords> parse_words(Args given) {
  std::vector<std::string> args(given.begin(), given.end());
  EvalWords w;
  w.overrides = take_overrides(args);
  CLI::App app(
      "Measures a model on a text: mean loss of a token, perplexity, bits per byte. Several ranks\n"
      "share the work: tokamak launch -n 4 -- eval MODEL DATA "
      "--parallelism.tensor_parallel_degree=2.",
      "tokamak eval");
  app.add_option("weights", w.model,
                 "Hugging Face folder, folder of a run, checkpoint step-N or safetensors")
      ->required();
  app.add_option("data", w.data,
                 "text file, file of JSON lines with \"text\", or folder of either, also .gz, "
                 ".zst; or token "
                 "files (.u16, .u32, .bin), as training reads them")
      ->required();
  app.add_option("--by", w.by,
                 "document: each by itself, its BOS given; window: all in one stream, as training "
                 "reads them; by default document, but window for token files");
  app.add_option("--seq-len", w.seq_len,
                 "tokens that the model sees at once; 0 = what it was made for, at most 2048");
  app.add_option("--stride", w.stride,
                 "tokens that each row predicts, those before them are context; 0 = --seq-len");
  app.add_option("--dataset", w.dataset,
                 "text, c4 (JSON lines), c4_validation, tokens; auto = by names")
      ->capture_default_str();
  app.add_option("--text-column", w.text_column, kTextColumnHelp)->capture_default_str();
  app.add_option("--batch", w.batch,
                 "rows that a rank computes at once; 0 = 1 on a CPU, 8 on a GPU");
  app.add_option("--dtype", w.dtype,
                 "compute in float32 or bfloat16; auto = float32 on a CPU, bfloat16 on a GPU")
      ->capture_default_str();
  app.add_option("--device", w.device, kDeviceHelp)->capture_default_str();
  app.add_option("--tokenizer", w.tokenizer, "folder or file; bytes; shakespeare");
  app.add_option("--model", w.flavor, "NAME:FLAVOR where the weights have no config.json");
  app.add_flag("--json", w.json, "print one JSON object");
  if (!parse(app, args)) return std::nullopt;
  TOK_REQUIRE(w.by.empty() || w.by == "document" || w.by == "window",
              "--by \"{}\": wanted document or window", w.by);
  TOK_REQUIRE(w.seq_len >= 0, "--seq-len {}: wanted 1 or more", w.seq_len);
  TOK_REQUIRE(w.batch >= 0, "--batch {}: wanted 1 or more", w.batch);
  return w;
}

bool holds(const std::string& path, bool (*wanted)(const std::string& name)) {
  return is_folder(path) ? !list_files(path, wanted).empty() : wanted(path);
}

std::string dataset_of(const EvalWords& w) {
  if (w.dataset != "auto") {
    TOK_REQUIRE(w.dataset == "text" || w.dataset == "c4" || w.dataset == "c4_validation" ||
                    w.dataset == "tokens",
                "--dataset \"{}\": wanted auto, text, c4, c4_validation or tokens", w.dataset);
    return w.dataset;
  }
  if (!path_exists(w.data) && path_exists(w.data + ".bin")) return "tokens";
  TOK_REQUIRE(path_exists(w.data), "eval: no such file or folder: {}", w.data);
  if (holds(w.data, is_json_lines)) return "c4";
  return holds(w.data, is_token_file) ? "tokens" : "text";
}

// Sets what is read, and how it is cut where that was not said.
void find_data(EvaluationOptions& o, EvalWords& w) {
  const std::string dataset = dataset_of(w);
  if (dataset == "tokens") {
    TOK_REQUIRE(w.by != "document",
                "--by document: {} holds tokens without documents; leave it out, or give text",
                w.data);
    o.token_files = w.data;
    o.text.remarks = open_token_files(w.data)->remarks();
    w.by = "window";
    return;
  }
  o.text = text_source(dataset, w.data, w.text_column);
  if (w.by.empty()) w.by = "document";
}

// Fills in the rows, and the shape of one rank's share of the mesh.
void plan_rows(EvaluationOptions& o, const EvalWords& w, Config c,
               const LaunchEnvironment& launched) {
  ScoringOptions& rows = o.scoring;
  rows.by = w.by == "window" ? ScoreBy::kWindow : ScoreBy::kDocument;
  rows.vocab_size = o.model.vocab_size;
  rows.seq_len = w.seq_len > 0 ? w.seq_len : std::min(o.model.max_seq_len, kMostSeqLen);
  const int64_t positions = learned_positions(o.model);
  TOK_REQUIRE(positions == 0 || rows.seq_len <= positions,
              "--seq-len {}: the model has {} learned positions", rows.seq_len, positions);
  rows.stride = w.stride == 0 ? rows.seq_len : w.stride;
  TOK_REQUIRE(rows.stride >= 1 && rows.stride <= rows.seq_len,
              "--stride {}: wanted 1 to --seq-len, {}", w.stride, rows.seq_len);
  const std::string dtype(name_of(compute_dtype(w.dtype, w.device)));
  const int64_t batch = w.batch > 0 ? w.batch : (means_gpu(w.device) ? kGpuRows : 1);
  TOK_REQUIRE(rows.seq_len <= kMostTokens / batch,
              "--batch {}, --seq-len {}: wanted at most {} tokens in a batch", batch, rows.seq_len,
              kMostTokens);
  c.training.dtype = c.training.mixed_precision_param = dtype;
  c.training.seq_len = c.validation.seq_len = rows.seq_len;
  c.training.local_batch_size = std::max<int64_t>(1, c.parallelism.pipeline_parallel_degree);
  c.training.global_batch_size = -1;
  c.validation.enable = true;
  c.validation.local_batch_size = batch;
  c.activation_checkpoint.mode = "none";
  validate(c, launched.world_size);
  const MeshPlace place{.degrees = resolve_degrees(c.parallelism, launched.world_size),
                        .rank = launched.rank};
  o.shape = shape_of(c, o.model, place);
  o.shape.trains = false;
}

OrderedJson to_json(const Evaluation& e, const EvaluationOptions& o, const EvalWords& w) {
  OrderedJson json{{"loss", e.loss()}, {"perplexity", e.perplexity()}};
  const bool is_text = o.token_files.empty();
  if (is_text) json["bits_per_byte"] = e.bits_per_byte();
  json["tokens"] = e.counts.tokens;
  if (is_text) {
    json["bytes"] = e.counts.bytes;
    json["documents"] = e.counts.documents;
  }
  json["by"] = w.by;
  json["seq_len"] = o.scoring.seq_len;
  json["stride"] = o.scoring.stride;
  json["dtype"] = name_of(o.shape.training.compute);
  json["seconds"] = e.seconds;
  return json;
}

// Tokens per second.
std::string rate_of(const Evaluation& e) {
  return with_commas(
      std::llround(static_cast<double>(e.counts.tokens) / std::max(e.seconds, 1e-9)));
}

void print(const Evaluation& e, const EvaluationOptions& o, const EvalWords& w) {
  if (w.json) {
    fmt::print("{}\n", to_json(e, o, w).dump());
    return;
  }
  fmt::print("loss           {:.6f} nats per token\n", e.loss());
  fmt::print("perplexity     {:.4f}\n", e.perplexity());
  std::string of_text;
  if (o.token_files.empty()) {
    fmt::print("bits per byte  {:.6f}\n", e.bits_per_byte());
    of_text = fmt::format(" of {} bytes in {} documents", with_commas(e.counts.bytes),
                          with_commas(e.counts.documents));
  }
  fmt::print("{} tokens{}, by {} of {} tokens, {} tokens/s\n", with_commas(e.counts.tokens),
             of_text, w.by, o.scoring.seq_len, rate_of(e));
}

int eval_on(World& world, const LaunchEnvironment& launched, Args args) {
  std::optional<EvalWords> words;
  ModelFiles files;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  EvaluationOptions options;
  Config config;
  bool copy_engine = false;
  all_together(world, [&] {
    words = parse_words(args);
    if (!words) return;
    config = load_config(std::nullopt, words->overrides).config;
    files = open_model(words->model, words->flavor);
    options.model = files.config;
    find_data(options, *words);
    if (options.token_files.empty()) tokenizer = open_tokenizer(words->tokenizer, files.folder);
    options.tokenizer = tokenizer.get();
    options.ranks_per_host = launched.local_size;
    plan_rows(options, *words, config, launched);
    copy_engine = wants_copy_engine(config.parallelism.copy_engine_all_gather, launched);
    backend = open_backend({.device = words->device,
                            .threads = threads_of(config.training.threads, launched),
                            .copy_engine = copy_engine},
                           launched);
  });
  if (!words) return 0;
  if (world.rank() == 0) {
    for (const std::string& line : files.notes) fmt::print(stderr, "{}\n", line);
    for (const std::string& line : options.text.remarks) fmt::print(stderr, "{}\n", line);
  }
  std::unique_ptr<World> of_gpus;
  World& ranks = device_world(world, *backend, launched, copy_engine, of_gpus);
  const bool is_live = is_on_terminal(STDERR_FILENO);
  if (is_live) {
    options.progress = [](const Evaluation& e) {
      fmt::print(stderr, "{}{} tokens, loss {:.4f}, {} tokens/s", kEraseLine,
                 with_commas(e.counts.tokens), e.loss(), rate_of(e));
    };
  }
  const Evaluation result = evaluate(options, files.parameters, ranks, *backend);
  if (is_live && world.rank() == 0) fmt::print(stderr, "{}", kEraseLine);
  if (!std::isfinite(result.nats)) {
    fail_together(world, [&] {
      const DType compute = options.shape.training.compute;
      check_finite(files.parameters, compute, words->model);
      fail("eval: the loss of {} is {}: its numbers are too large for {}; try --dtype float32",
           words->model, result.nats, name_of(compute));
    });
  }
  if (world.rank() == 0) {
    print(result, options, *words);
  }
  return 0;
}

}  // namespace

int run_eval(Args args) {
  const LaunchEnvironment launched = read_launch_environment();
  const auto world = make_world(launched);
  try {
    return eval_on(*world, launched, args);
  } catch (const AgreedFailure& failure) {
    return report_once(failure, *world);
  }
}

}  // namespace tokamak::cli

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/devices.h"
#include "tokamak/cli/matrix/matrix_rows.h"
#include "tokamak/cli/price.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/core/timing.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/price/machine/device_names.h"
#include "tokamak/price/report/report_of.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

struct MatrixOptions {
  std::string models = "gpt2:124M@32x1024,gpt2:1.5B@16x1024,llama3:8B@1x8192,llama3:70B-4L@1x8192";
  std::vector<int64_t> ranks;
  std::vector<std::string> precisions{"bf16", "tensorwise"};
  std::vector<std::string> recomputes{"none", "op", "2", "full"};
  std::vector<std::string> graphs{"on", "off"};
  int64_t steps = 12;
  int64_t row_seconds = 300;
  std::string device = "auto";
  std::string machine;
  std::string out = "outputs/matrix";
};

// Prices the row, and says why it cannot run if its plan does not fit.
void price(const std::string& machine, MatrixResult& result) {
  PriceWords words;
  words.cluster = machine;
  words.rest = result.row.words();
  try {
    const auto request =
        request_of(words, {.machine = machine_of(words, machine),
                           .num_gpus = result.row.ranks,
                           .gpus_word = fmt::format("--ranks {}", result.row.ranks)});
    const PricedRun run = price_run(*request);
    const price::Report report = report_of(*request, run, 1e12);
    result.priced_tps = report.device_tokens_per_s();
    result.planned_gib = report.memory_bytes() / kGiB;
    if (!report.fits())
      result.reason = fmt::format("does not fit: {:.1f} of {:.1f} GiB", *result.planned_gib,
                                  report.memory_limit_bytes / kGiB);
  } catch (const Error& error) {
    fmt::print("  no price: {}\n", error.what());
  }
}

// Reads the later half of the steps of a run.
void read_metrics(const fs::path& file, MatrixResult& result) {
  std::vector<Json> steps;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) steps.push_back(parse_json(line, file.string()));
  TOK_REQUIRE(!steps.empty(), "{}: the run left no steps", file.string());
  std::vector<double> tps;
  std::vector<double> mfu;
  for (size_t i = steps.size() / 2; i < steps.size(); ++i) {
    tps.push_back(steps[i].at("tps").get<double>());
    if (!steps[i].at("mfu").is_null()) mfu.push_back(steps[i].at("mfu").get<double>());
  }
  result.tps = median(std::move(tps));
  if (!mfu.empty()) result.mfu = median(std::move(mfu));
  result.memory_gib = steps.back().at("memory_gib").get<double>();
}

// Returns what a failed run says of its reason: where it speaks of memory or of an error, or its
// last line.
std::string reason_of(const launch::CommandResult& run) {
  if (run.exit_code == 124 || run.exit_code == 137) return "failed: it took too long";
  const std::string& text = run.err.empty() ? run.out : run.err;
  size_t begin = text.rfind('\n') + 1;
  for (const char* word : {"error", "not enough"}) {
    if (const size_t at = text.find(word); at != text.npos) begin = at;
  }
  return fmt::format("failed: {}", text.substr(begin, text.find('\n', begin) - begin));
}

// Runs the row as a process of its own, so that it begins with an empty device.
void measure(const MatrixOptions& o, MatrixResult& result) {
  const fs::path folder = fs::path(o.out) / "run";
  fs::remove_all(folder);
  std::vector<std::string> words{"timeout", "--kill-after=10", fmt::format("{}", o.row_seconds),
                                 fs::read_symlink("/proc/self/exe").string()};
  if (result.row.ranks > 1) {
    for (const char* word : {"launch", "-n"}) words.emplace_back(word);
    words.push_back(fmt::format("{}", result.row.ranks));
    words.emplace_back("--");
  }
  words.emplace_back("train");
  for (std::string& word : result.row.words()) words.push_back(std::move(word));
  words.push_back("--job.device=" + o.device);
  words.push_back(fmt::format("--training.steps={}", o.steps));
  words.emplace_back("--metrics.log_freq=1");
  words.push_back("--job.dump_folder=" + folder.string());
  const launch::CommandResult run = launch::run_command(words);
  if (run.exit_code != 0) {
    result.reason = reason_of(run);
    return;
  }
  read_metrics(folder / "metrics.jsonl", result);
  fs::remove_all(folder);
}

// Results of earlier calls in the same folder, keyed by what was run.
class Results {
 public:
  explicit Results(fs::path file) : file_(std::move(file)) {
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) {
      const Json json = parse_json(line, file_.string());
      const std::string key = json_member<std::string>(json, "key", file_.string());
      MatrixResult& result = of_[key];
      result.reason = json_member<std::string>(json, "reason", file_.string());
      const auto number = [&](const char* name) -> std::optional<double> {
        if (!json.contains(name) || json.at(name).is_null()) return std::nullopt;
        return json_member<double>(json, name, file_.string());
      };
      result.tps = number("tps");
      result.mfu = number("mfu");
      result.memory_gib = number("memory_gib");
      result.priced_tps = number("priced_tps");
      result.planned_gib = number("planned_gib");
    }
  }

  /// Returns nothing for a row that failed: it is tried again.
  const MatrixResult* find(const std::string& key) const {
    const auto it = of_.find(key);
    return it == of_.end() || it->second.reason.starts_with("failed") ? nullptr : &it->second;
  }

  void add(const std::string& key, const MatrixResult& r) const {
    const auto number = [](const std::optional<double>& value) {
      return value ? Json(*value) : Json(nullptr);
    };
    const Json json{{"key", key},
                    {"reason", r.reason},
                    {"tps", number(r.tps)},
                    {"mfu", number(r.mfu)},
                    {"memory_gib", number(r.memory_gib)},
                    {"priced_tps", number(r.priced_tps)},
                    {"planned_gib", number(r.planned_gib)}};
    std::ofstream(file_, std::ios::app) << json.dump() << "\n";
  }

 private:
  fs::path file_;
  std::map<std::string, MatrixResult> of_;
};

void write_all(const MatrixOptions& o, const std::string& title,
               const std::vector<MatrixResult>& results) {
  write_file_atomic(fs::path(o.out) / "matrix.csv", matrix_csv(results));
  write_file_atomic(fs::path(o.out) / "matrix.json", matrix_json(results));
  write_file_atomic(fs::path(o.out) / "matrix.html", matrix_page(title, results));
}

}  // namespace

int run_bench_matrix(Args args) {
  MatrixOptions o;
  CLI::App app(
      "Trains every combination of models, ranks, precision, recompute and CUDA graphs for some\n"
      "steps, and writes matrix.csv, .json and .html. A second call goes on where one ended; what\n"
      "does not fit is priced.",
      "tokamak bench matrix");
  app.add_option("--models", o.models, "NAME:FLAVOR@BATCHxTOKENS,...")->capture_default_str();
  app.add_option("--ranks", o.ranks, "1, and more as ddp and fsdp; without it 1 and all GPUs")
      ->delimiter(',');
  app.add_option("--precisions", o.precisions, "bf16, or recipes of low precision")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--recompute", o.recomputes, "none, op, full, or N for every N-th block")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--graphs", o.graphs, "CUDA graphs: on, off")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--steps", o.steps, "of a row; the later half counts")->capture_default_str();
  app.add_option("--row-seconds", o.row_seconds, "that a row may take")->capture_default_str();
  app.add_option("--device", o.device, kDeviceHelp)->capture_default_str();
  app.add_option("--machine", o.machine, "that prices the rows; without it the one of this GPU");
  app.add_option("--out", o.out, "folder")->capture_default_str();
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(o.steps >= 2 && o.row_seconds >= 1,
              "--steps {} --row-seconds {}: wanted 2 and 1 or more", o.steps, o.row_seconds);
  const bool on_gpu = means_gpu(o.device);
  if (o.machine.empty() && on_gpu)
    o.machine = price::machine_of_driver(gpu::describe_device(gpu::current_device()).name);
  if (o.ranks.empty()) {
    o.ranks.push_back(1);
    const int64_t all = on_gpu ? gpu::num_devices() : 1;
    if (all > 1) o.ranks.push_back(all);
  }
  const std::vector<MatrixRow> rows = rows_of({.models = models_of(o.models),
                                               .ranks = o.ranks,
                                               .precisions = o.precisions,
                                               .recomputes = o.recomputes,
                                               .graphs = o.graphs});
  if (!o.machine.empty()) machine_of({}, o.machine);
  const std::string here =
      on_gpu ? gpu::describe_device(gpu::current_device()).name : std::string("CPU");
  const std::string title = fmt::format("Training on {}, {} steps", here, o.steps);
  fs::create_directories(o.out);
  const Results former(fs::path(o.out) / "matrix.jsonl");
  std::vector<MatrixResult> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    MatrixResult result{.row = rows[i]};
    const std::string key =
        fmt::format("{} {} ranks {} steps {} price {}", fmt::join(rows[i].words(), " "),
                    rows[i].ranks, o.steps, here, o.machine);
    if (const MatrixResult* known = former.find(key)) {
      result = *known;
      result.row = rows[i];
    } else {
      if (!o.machine.empty()) price(o.machine, result);
      if (result.reason.empty()) measure(o, result);
      former.add(key, result);
    }
    fmt::print("{:>3}/{} {}\n", i + 1, rows.size(), matrix_line(result));
    std::fflush(stdout);
    results.push_back(std::move(result));
    write_all(o, title, results);
  }
  fmt::print("{}\n", (fs::path(o.out) / "matrix.html").string());
  return 0;
}

}  // namespace tokamak::cli

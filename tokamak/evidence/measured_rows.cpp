#include "tokamak/evidence/measured_rows.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/evidence/csv_reader.h"
#include "tokamak/evidence/row_time.h"

namespace tokamak {
namespace {

// Beyond what any system has had, and planned within seconds.
constexpr int64_t kMostGpus = int64_t{1} << 20;
constexpr int64_t kMostSequences = int64_t{1} << 26;
constexpr int64_t kMostLogits = int64_t{1} << 40;
constexpr double kShortestStep = 1e-6;
constexpr double kLongestStep = 1e9;

constexpr int64_t kMostCalibrated = 64;  // GPUs of a run that constants may be fitted on

struct Count {
  const char* column;
  int64_t MeasuredRun::*size;
  int64_t most;
  bool is_needed = true;
  bool may_be_zero = false;  ///< which says that there is none
};

constexpr auto kCounts = std::to_array<Count>({
    {"n_gpus", &MeasuredRun::num_gpus, kMostGpus},
    {"n_layers", &MeasuredRun::num_layers, 1024},
    {"hidden", &MeasuredRun::hidden, int64_t{1} << 18},
    {"ffn", &MeasuredRun::ffn, int64_t{1} << 20},
    {"heads", &MeasuredRun::heads, int64_t{1} << 14},
    {"kv_heads", &MeasuredRun::kv_heads, int64_t{1} << 14, false},
    {"vocab", &MeasuredRun::vocab, int64_t{1} << 20},
    {"seq", &MeasuredRun::seq_len, kMostTokens},
    {"gbs", &MeasuredRun::global_batch, kMostSequences},
    {"mbs", &MeasuredRun::microbatch, kMostSequences},
    {"tp", &MeasuredRun::tp, 256},
    {"pp", &MeasuredRun::pp, 256},
    {"cp", &MeasuredRun::cp, 128},
    {"dp", &MeasuredRun::dp, kMostGpus},
    {"vp", &MeasuredRun::chunks_per_stage, 256, false, true},
});

constexpr const char* kMilliseconds = "step_time_ms";
constexpr std::array kTimes = {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"};

// "NA" where a number would stand.
bool is_blank(std::string_view value) {
  std::string word;
  for (const char c : lower_case(value)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) word += c;
  }
  return word.empty() || word == "na" || word == "nan" || word == "none" || word == "null";
}

bool is_empty(const std::string& field) {
  return trimmed(field).empty();
}

// A column as the file names it.
std::string name_in(const RowShape& shape, const std::string& column) {
  const std::string& name = text_in(shape.columns, column);
  return name.empty() ? column : name;
}

bool has(const CsvFields& header, const std::string& name) {
  return std::find(header.begin(), header.end(), name) != header.end();
}

// The shape that a header is meant to have.
RowShape shape_of(const CsvFields& header) {
  for (const RowShape& shape : RowRules::built_in().shapes()) {
    const bool has_either =
        has(header, name_in(shape, "n_gpus")) || has(header, name_in(shape, kMilliseconds));
    if (has_either && !has(header, "gpu")) return shape;
  }
  return {};
}

std::vector<std::string> times_of(const RowShape& shape) {
  if (shape.columns.contains(kMilliseconds)) return {name_in(shape, kMilliseconds)};
  return {kTimes.begin(), kTimes.end()};
}

RowTexts texts_of(const RowShape& shape, const CsvFields& header, const CsvFields& fields) {
  RowTexts texts;
  for (size_t i = 0; i < std::min(header.size(), fields.size()); ++i)
    texts[header[i]] = trimmed(fields[i]);
  for (const auto& [column, name] : shape.columns) texts[column] = text_in(texts, name);
  RowRules::built_in().fill(texts, shape);
  return texts;
}

// The needed columns that are blank, as the file names them.
std::vector<std::string> missing_of(const RowShape& shape, const RowTexts& texts) {
  std::vector<std::string> missing;
  const auto need = [&](const char* column) {
    if (is_blank(text_in(texts, column)) && !shape.texts.contains(column))
      missing.push_back(name_in(shape, column));
  };
  need("gpu");
  for (const Count& count : kCounts) {
    if (count.is_needed) need(count.column);
  }
  need("precision");
  return missing;
}

std::string wanted_columns() {
  std::string wanted = "the columns of training_runs.csv (gpu, ..., step_time_s)";
  for (const RowShape& shape : RowRules::built_in().shapes()) {
    wanted += fmt::format(" or of {} ({}, ..., {})", shape.name, name_in(shape, "n_gpus"),
                          times_of(shape).front());
  }
  return wanted;
}

void require_known(const RowShape& shape, const CsvFields& header, const std::string& file) {
  for (auto name = header.begin(); name != header.end(); ++name) {
    const bool is_new = std::find(header.begin(), name, *name) == name;
    TOK_REQUIRE(is_new || name->empty(), "{}:1: column {} twice", file, printable(*name));
  }
  const std::vector<std::string> times = times_of(shape);
  const bool has_time = std::any_of(times.begin(), times.end(),
                                    [&](const std::string& time) { return has(header, time); });
  const char* first = shape.texts.contains("gpu") ? "n_gpus" : "gpu";
  if (has_time && has(header, name_in(shape, first))) return;
  std::vector<std::string> missing =
      missing_of(shape, texts_of(shape, header, CsvFields(header.size(), "1")));
  if (!has_time) missing.push_back(fmt::format("{}", fmt::join(times, " or ")));
  fail("{}: no column {}: wanted {}, got {}", file, fmt::join(missing, ", "), wanted_columns(),
       printable(fmt::format("{}", fmt::join(header, ", "))));
}

// Numbers of one row; one that is none makes the row unusable, with its column.
class Numbers {
 public:
  Numbers(const RowShape& shape, const RowTexts& texts) : shape_(shape), texts_(texts) {}

  /// 0 where it is blank, or cannot be read.
  double number(const std::string& column) {
    const std::string& text = text_in(texts_, column);
    if (is_blank(text)) return 0.0;
    const double number = number_of(text).value_or(-1.0);
    return number >= 0.0 && number <= 1e15 ? number : refuse(column, "a number");
  }

  /// A whole number from 1 to the most; 0 where there is none.
  int64_t count(const Count& c) {
    const std::string& text = text_in(texts_, c.column);
    if (is_blank(text)) return 0;
    const auto number = number_of(text);
    if (!number) return refuse(c.column, "a number");
    if (*number == 0.0 && c.may_be_zero) return 0;
    if (*number != std::floor(*number)) return refuse(c.column, "a whole number");
    if (*number < 1.0) return refuse(c.column, "a whole number of at least 1");
    if (*number > static_cast<double>(c.most))
      return refuse(c.column, fmt::format("a whole number from 1 to {}", c.most));
    return static_cast<int64_t>(*number);
  }

  /// 0 where it cannot be read, which does not matter.
  double rate(const std::string& column) const {
    return std::max(number_of(text_in(texts_, column)).value_or(0.0), 0.0);
  }

  const std::string& bad() const { return bad_; }

 private:
  int refuse(const std::string& column, std::string_view wanted) {
    if (bad_.empty())
      bad_ = fmt::format("{} = {}: wanted {}", name_in(shape_, column),
                         printable(text_in(texts_, column)), wanted);
    return 0;
  }

  const RowShape& shape_;
  const RowTexts& texts_;
  std::string bad_;
};

RecomputePolicy recompute_of(const RowTexts& texts) {
  using Mode = RecomputePolicy::Mode;
  const std::string& mode = text_in(texts, "recompute_mode");
  if (mode == "full") return {.mode = Mode::kFull};
  if (mode == "selective-layers") return {.mode = Mode::kSelectiveLayers, .every_nth_block = 2};
  if (mode == "selective" && text_in(texts, "recomputes_ops") == "yes")
    return {.mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}};
  return {};
}

template <class T>
T one_of(const std::string& text, std::initializer_list<std::pair<std::string_view, T>> values,
         T other) {
  for (const auto& [name, value] : values) {
    if (text == name) return value;
  }
  return other;
}

// All but sizes and times.
MeasuredRun run_of(const RowTexts& texts) {
  const auto text = [&](std::string_view column) { return text_in(texts, column); };
  const auto is = [&](std::string_view column) { return text_in(texts, column) == "yes"; };
  using price::Precision;
  MeasuredRun run{
      .source = text("source"),
      .gpu = text("gpu"),
      .model = text("model"),
      .stated_precision = text("precision"),
      .notes = text("notes"),
      .software = text("software"),
      .machine = text("machine_names"),
      .family = text("family"),
      .calibrates = is("calibrates"),
      .one_layer_chunks = is("one_layer_chunks"),
      .shard_ranks = static_cast<int64_t>(number_of(text("shard_ranks")).value_or(0.0)),
      .precision = one_of(text("products"), {{"fp4", Precision::kFp4}, {"fp8", Precision::kFp8}},
                          Precision::kBf16),
      .recompute = recompute_of(texts),
      .sharding =
          one_of(text("sharding"),
                 {{"ddp", Sharding::kDdp}, {"zero2", Sharding::kZero2}, {"fsdp", Sharding::kFsdp}},
                 Sharding::kZero1),
      .keeps_gathered = is("keeps_gathered"),
      .async_tp = is("async_tp"),
      .tied = is("tied"),
      .merged_products = is("merged_products"),
      .pads_logits = is("pads_logits"),
      .whole_sequences = is("whole_sequences"),
      .even_racks = is("even_racks")};
  if (run.family.empty()) {
    std::string gpu = text("family_gpu");
    std::transform(gpu.begin(), gpu.end(), gpu.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    run.family = fmt::format("{} {} {}", run.software, gpu, price::name_of(run.precision));
  }
  return run;
}

// Why no plan has a row's sizes; empty: one may.
std::string fault_of(const MeasuredRun& run, const RowTexts& texts) {
  if (run.hidden % run.heads != 0)
    return fmt::format("hidden = {}, heads = {}: wanted hidden that is a multiple of heads",
                       run.hidden, run.heads);
  if (run.heads % run.kv_heads != 0)
    return fmt::format("heads = {}, kv_heads = {}: wanted heads that are a multiple of kv_heads",
                       run.heads, run.kv_heads);
  if (run.microbatch > kMostTokens / run.seq_len)
    return fmt::format("mbs = {}, seq = {}: wanted at most {} tokens in a microbatch",
                       run.microbatch, run.seq_len, kMostTokens);
  if (run.microbatch * run.seq_len > kMostLogits / run.vocab)
    return fmt::format("mbs = {}, seq = {}, vocab = {}: wanted a product of at most {}",
                       run.microbatch, run.seq_len, run.vocab, kMostLogits);
  if (text_in(texts, "products") == "unknown")
    return fmt::format("precision = {}: wanted bf16, fp16, fp8 or fp4, which are priced",
                       printable(run.stated_precision));
  if (text_in(texts, "recompute_mode") == "unknown")
    return fmt::format("recompute = {}: wanted none, full, selective, selective-layer or core_attn",
                       printable(text_in(texts, "recompute")));
  if (run.tp * run.pp * run.cp * run.dp != run.num_gpus)
    return fmt::format("tp {} x pp {} x cp {} x dp {} is not n_gpus {}", run.tp, run.pp, run.cp,
                       run.dp, run.num_gpus);
  if (run.step_time_s < kShortestStep || run.step_time_s > kLongestStep)
    return fmt::format("{}: a step of {:.3g} s: wanted {} to {} s", run.measured_as,
                       run.step_time_s, kShortestStep, kLongestStep);
  if (run.global_batch % (run.dp * run.microbatch) != 0)
    return fmt::format("gbs {} is not a multiple of dp {} x mbs {}", run.global_batch, run.dp,
                       run.microbatch);
  if (run.num_microbatches() > kMostMicrobatches)
    return fmt::format("gbs {} are {} microbatches of dp {} x mbs {}: wanted at most {}",
                       run.global_batch, run.num_microbatches(), run.dp, run.microbatch,
                       kMostMicrobatches);
  return "";
}

// Sets the time and its column, or says why there is none.
void set_time(MeasuredRun& run, Numbers& numbers, const RowShape& shape, const RowTexts& texts) {
  const bool is_ms = shape.columns.contains(kMilliseconds);
  const std::string column = times_of(shape).front();
  const auto is = [&](std::string_view c) { return text_in(texts, c) == "yes"; };
  run.stated_mfu = 0.01 * numbers.rate("mfu_pct");
  set_step_time(
      run, {.step_s = is_ms ? 1e-3 * numbers.number(kMilliseconds) : numbers.number("step_time_s"),
            .step_column = column,
            .tokens_per_s = numbers.rate("tokens_per_s_per_gpu"),
            .flops_per_s = 1e12 * numbers.rate("tflops_per_gpu"),
            .mfu_peak_flops = number_of(text_in(texts, "stated_peak")).value_or(0.0),
            .rounds_tokens = is("rounded_tokens"),
            .hardware_flops = is("hardware_flops")});
  if (run.step_time_s > 0.0) return;
  for (const char* time : kTimes) numbers.number(time);
  if (run.skipped.empty()) run.skipped = column;
}

MeasuredRun read_run(const RowShape& shape, const RowTexts& texts) {
  Numbers numbers(shape, texts);
  MeasuredRun run = run_of(texts);
  for (const Count& count : kCounts) run.*count.size = numbers.count(count);
  run.calibrates = run.calibrates && run.num_gpus <= kMostCalibrated;
  if (run.kv_heads == 0) run.kv_heads = run.heads;
  if (text_in(texts, "whole_vocab_shares") == "yes")
    run.vocab -= run.vocab % std::max<int64_t>(run.tp, 1);
  const std::string& gated = text_in(texts, "gated_mlp");
  run.gated_mlp = gated.empty() ? run.ffn != 4 * run.hidden : gated == "yes";
  const std::string& mixture = text_in(texts, "mixture");
  const std::vector<std::string> missing = missing_of(shape, texts);
  if (mixture == "noted" || (missing.empty() && !mixture.empty())) {
    run.skipped = "a mixture of experts, which no model here is";
  } else if (!missing.empty()) {
    run.skipped = missing.front();
  } else if (numbers.bad().empty()) {
    set_time(run, numbers, shape, texts);
    if (numbers.bad().empty() && run.skipped.empty()) run.skipped = fault_of(run, texts);
  }
  if (!numbers.bad().empty()) run.skipped = numbers.bad();
  return run;
}

}  // namespace

std::vector<MeasuredRun> parse_measured_rows(const std::string& text, const std::string& name) {
  CsvReader csv(text);
  TOK_REQUIRE(!csv.at_end(), "{}: an empty file: wanted {}", name, wanted_columns());
  TOK_REQUIRE(text.find('\n') != std::string::npos || text.find('\r') == std::string::npos,
              "{}: lines end in CR alone: wanted LF or CR LF", name);
  CsvFields header = csv.next();
  TOK_REQUIRE(!csv.is_cut(), "{}:1: a quote that does not end", name);
  for (std::string& column : header) column = trimmed(column);
  const RowShape shape = shape_of(header);
  require_known(shape, header, name);
  std::vector<MeasuredRun> runs;
  while (!csv.at_end()) {
    const int line = csv.line();
    const CsvFields fields = csv.next();
    TOK_REQUIRE(!csv.is_cut(), "{}:{}: a quote that does not end", name, line);
    if (std::all_of(fields.begin(), fields.end(), is_empty)) continue;
    MeasuredRun& run = runs.emplace_back(read_run(shape, texts_of(shape, header, fields)));
    run.line = line;
    run.number = static_cast<int>(runs.size());
    const auto surplus =
        fields.begin() + static_cast<std::ptrdiff_t>(std::min(header.size(), fields.size()));
    if (!std::all_of(surplus, fields.end(), is_empty)) {
      run.skipped =
          fmt::format("{} fields, the header has {}: text that has a comma stands in quotes",
                      fields.size(), header.size());
    }
  }
  TOK_REQUIRE(!runs.empty(), "{}: no row below the header", name);
  return runs;
}

std::vector<MeasuredRun> read_measured_rows(const std::filesystem::path& file) {
  return parse_measured_rows(read_file(file), file.string());
}

}  // namespace tokamak

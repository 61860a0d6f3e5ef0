#include "rows/measured_rows.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/models/model_spec.h"

#include "rows/csv_reader.h"
#include "rows/row_run.h"

namespace tokamak {
namespace {

// Limits beyond what any system has had, which still plan within seconds.
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
  bool may_be_zero = false;  ///< zero means that there is none
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

// Whether the text is blank or "NA" where a number would stand.
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

constexpr std::array kSizes = {"n_layers", "hidden", "ffn", "heads", "kv_heads", "vocab"};
constexpr const char* kNamed = "sizes_by_name";  // what the name of the model told, else blank

// Fills the sizes that the row leaves blank from the flavor that its rules name.
void fill_sizes(RowTexts& texts) {
  const std::string& flavor = text_in(texts, "flavor");
  if (flavor.empty()) return;
  const size_t blank = flavor.find(' ');
  const ModelSpec spec = flavor_spec(flavor.substr(0, blank), flavor.substr(blank + 1));
  const int64_t sizes[] = {spec.num_layers, spec.dim,          spec.mlp_dim,
                           spec.num_heads,  spec.num_kv_heads, spec.vocab_size};
  const bool is_told = std::any_of(kSizes.begin(), kSizes.end(), [&](const char* column) {
    return !is_blank(text_in(texts, column));
  });
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (is_blank(text_in(texts, kSizes[i]))) texts[kSizes[i]] = std::to_string(sizes[i]);
  }
  if (!is_told && spec.tied) texts["tied"] = "yes";
}

// A file's shape, and our names of its columns, blank for unknown ones.
struct Header {
  RowShape shape;
  CsvFields columns = {};

  /// Finds where the file has its own name for a column; the end if it has none.
  auto place_of(const std::string& column) const {
    return std::find_if(shape.columns.begin(), shape.columns.end(),
                        [&](const auto& named) { return named.first == column; });
  }

  /// Returns the file's name for a column.
  std::string name_of(const std::string& column) const {
    const auto place = place_of(column);
    return place == shape.columns.end() ? column : place->second;
  }

  std::vector<std::string> times() const {
    if (place_of(kMilliseconds) != shape.columns.end()) return {kMilliseconds};
    return {kTimes.begin(), kTimes.end()};
  }

  RowTexts texts_of(const CsvFields& fields) const {
    RowTexts texts;
    for (size_t i = 0; i < std::min(columns.size(), fields.size()); ++i)
      texts[columns[i]] = trimmed(fields[i]);
    texts["software"] = lower_case(text_in(texts, "software"));
    const RowTexts stated = texts;
    RowRules::built_in().fill(texts, shape);
    fill_sizes(texts);
    const auto is_told = [&](const char* column) {
      return shape.name.empty() && std::string_view(column) != "kv_heads" &&
             is_blank(text_in(stated, column)) && !is_blank(text_in(texts, column));
    };
    if (std::any_of(kSizes.begin(), kSizes.end(), is_told)) texts[kNamed] = "yes";
    return texts;
  }

  /// Returns the needed columns that a row's texts leave blank, by the file's names, in its order.
  std::vector<std::string> missing(const RowTexts& texts) const {
    std::vector<std::string> needed = {"gpu"};
    for (const Count& count : kCounts) {
      if (count.is_needed) needed.emplace_back(count.column);
    }
    needed.emplace_back("precision");
    std::erase_if(needed, [&](const std::string& column) {
      return shape.texts.contains(column) || !is_blank(text_in(texts, column));
    });
    std::stable_sort(needed.begin(), needed.end(),
                     [&](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
    for (std::string& column : needed) column = name_of(column);
    return needed;
  }
};

std::string wanted_columns() {
  std::string wanted = "the columns of training_runs.csv (gpu, ..., step_time_s)";
  for (const RowShape& shape : RowRules::built_in().shapes()) {
    const Header header{.shape = shape};
    wanted += fmt::format(" or of {} ({}, ..., {})", shape.name, header.name_of("n_gpus"),
                          header.name_of(header.times().front()));
  }
  return wanted;
}

Header header_of(const CsvFields& names, const std::string& file) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    const bool is_new = std::find(names.begin(), name, *name) == name;
    TOK_REQUIRE(is_new || name->empty(), "{}:1: column {} twice", file, printable(*name));
  }
  const auto has = [](const CsvFields& columns, const std::string& column) {
    return std::find(columns.begin(), columns.end(), column) != columns.end();
  };
  Header header{.columns = names};
  for (const RowShape& shape : RowRules::built_in().shapes()) {
    CsvFields columns = names;
    for (const auto& [column, name] : shape.columns)
      std::replace(columns.begin(), columns.end(), name, column);
    if (columns != names && !has(names, "gpu")) header = {.shape = shape, .columns = columns};
  }
  for (std::string& column : header.columns) {
    if (!RowRules::is_of_files(column)) column.clear();
  }
  const std::vector<std::string> times = header.times();
  const bool has_time = std::any_of(times.begin(), times.end(), [&](const std::string& time) {
    return has(header.columns, time);
  });
  if (has_time && has(header.columns, header.shape.texts.contains("gpu") ? "n_gpus" : "gpu"))
    return header;
  std::vector<std::string> missing = header.missing(header.texts_of(CsvFields(names.size(), "1")));
  if (!has_time)
    missing.push_back(times.size() > 1 ? fmt::format("{}", fmt::join(times, " or "))
                                       : header.name_of(times[0]));
  fail("{}: no column {}: wanted {}, got {}", file, fmt::join(missing, ", "), wanted_columns(),
       printable(fmt::format("{}", fmt::join(names, ", "))));
}

// Reads numbers of one row. An invalid one makes the row unusable; the fault names its column.
class Numbers {
 public:
  Numbers(const Header& header, const RowTexts& texts) : header_(header), texts_(texts) {}

  /// Returns 0 if the text is blank or cannot be read.
  double number(const std::string& column) {
    const std::string& text = text_in(texts_, column);
    if (is_blank(text)) return 0.0;
    const double number = number_of(text).value_or(-1.0);
    return number >= 0.0 && number <= 1e15 ? number : refuse(column, "a number");
  }

  /// Returns a whole number from 1 to the most; 0 if there is none.
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

  /// Returns 0 if the text cannot be read, which does not matter.
  double rate(const std::string& column) const {
    return std::max(number_of(text_in(texts_, column)).value_or(0.0), 0.0);
  }

  const std::string& bad() const { return bad_; }

 private:
  int refuse(const std::string& column, std::string_view wanted) {
    if (bad_.empty())
      bad_ = fmt::format("{} = {}: wanted {}", header_.name_of(column),
                         printable(text_in(texts_, column)), wanted);
    return 0;
  }

  const Header& header_;
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

// Returns a run with all columns except sizes and times.
MeasuredRun run_of(const RowTexts& texts) {
  const auto text = [&](std::string_view column) { return text_in(texts, column); };
  const auto is = [&](std::string_view column) { return text_in(texts, column) == "yes"; };
  using price::Precision;
  return {
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
      .tied = is("tied"),
      .pads_logits = is("pads_logits"),
      .sequence_parallel = is("sequence_parallel"),
      .even_racks = is("even_racks"),
      .sizes_by_name = is(kNamed)};
}

// Returns why no plan can have a row's sizes; empty if one may.
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
  const std::vector<std::string> software = RowRules::built_in().values_of("software");
  if (std::find(software.begin(), software.end(), run.software) == software.end())
    return fmt::format("software = {}: wanted {}", printable(run.software),
                       fmt::join(software, ", "));
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

// Returns the peak that an MFU is a share of, scaled from the bf16 peak if one is stated. Throws
// Error if there is none.
double peak_of_mfu(const MeasuredRun& run, std::optional<double> stated_bf16) {
  TOK_REQUIRE(run.stated_mfu <= 1.0, "mfu_pct = {}: wanted at most 100", 100.0 * run.stated_mfu);
  TOK_REQUIRE(!run.machine.empty(), "no machine file of gpu {}", printable(run.gpu));
  const auto peaks = price::load_machine(run.machine).device.peak_flops;
  const double peak = peaks[run.precision];
  return stated_bf16 ? peak / peaks[price::Precision::kBf16] * *stated_bf16 : peak;
}

// Sets the time and its column from the first that is given of time, rate and MFU, or says why
// there is none.
void set_time(MeasuredRun& run, Numbers& numbers, const Header& header, const RowTexts& texts) {
  const auto is = [&](std::string_view column) { return text_in(texts, column) == "yes"; };
  const auto gpus = static_cast<double>(run.num_gpus);
  const double tokens = static_cast<double>(run.global_batch * run.seq_len);
  const auto flops = [&](double per_token) {
    return is("hardware_flops") ? hardware_flops_per_step(run) : per_token * tokens;
  };
  const std::string time = header.times().front();
  const double stated_s = (time == kMilliseconds ? 1e-3 : 1.0) * numbers.number(time);
  const double tokens_per_s = numbers.rate("tokens_per_s_per_gpu");
  const double flops_per_s = 1e12 * numbers.rate("tflops_per_gpu");
  const auto set = [&](const std::string& column, double seconds) {
    run.step_time_s = seconds;
    run.measured_as = header.name_of(column);
  };
  if (stated_s > 0.0) {
    set(time, stated_s);
  } else if (tokens_per_s > 0.0 && !(flops_per_s > 0.0 && is("rounded_tokens"))) {
    set("tokens_per_s_per_gpu", tokens / (tokens_per_s * gpus));
  } else if (flops_per_s > 0.0) {
    set("tflops_per_gpu", flops(causal_flops_per_token(run)) / (flops_per_s * gpus));
  } else if (run.stated_mfu > 0.0) {
    try {
      const double peak = peak_of_mfu(run, number_of(text_in(texts, "stated_peak")));
      // All sources that state an MFU beside a time count attention without its mask.
      const double masked = 6.0 * static_cast<double>(run.num_layers) *
                            static_cast<double>(run.seq_len) * static_cast<double>(run.hidden);
      const double whole = flops(causal_flops_per_token(run) + masked);
      if (peak > 0.0) set("mfu_pct", whole / (run.stated_mfu * peak * gpus));
    } catch (const Error& error) {
      run.skipped = error.what();
    }
  }
  if (run.step_time_s > 0.0 || !run.skipped.empty()) return;
  for (const char* column : kTimes) numbers.number(column);
  run.skipped = header.name_of(time);
}

MeasuredRun read_run(const Header& header, const RowTexts& texts) {
  Numbers numbers(header, texts);
  MeasuredRun run = run_of(texts);
  for (const Count& count : kCounts) run.*count.size = numbers.count(count);
  run.stated_mfu = 0.01 * numbers.rate("mfu_pct");
  run.calibrates = run.calibrates && run.num_gpus <= kMostCalibrated && !run.sizes_by_name;
  if (run.sizes_by_name) run.family += ", sizes by name";
  if (run.kv_heads == 0) run.kv_heads = run.heads;
  if (text_in(texts, "whole_vocab_shares") == "yes")
    run.vocab -= run.vocab % std::max<int64_t>(run.tp, 1);
  const std::string& gated = text_in(texts, "gated_mlp");
  run.gated_mlp = gated.empty() ? run.ffn != 4 * run.hidden : gated == "yes";
  const std::string& mixture = text_in(texts, "mixture");
  const std::vector<std::string> missing = header.missing(texts);
  if (mixture == "noted" || (missing.empty() && !mixture.empty())) {
    run.skipped = "a mixture of experts, which no model here is";
  } else if (!missing.empty()) {
    run.skipped = missing.front();
  } else if (numbers.bad().empty()) {
    set_time(run, numbers, header, texts);
    if (run.skipped.empty()) run.skipped = fault_of(run, texts);
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
  CsvFields names = csv.next();
  TOK_REQUIRE(!csv.is_cut(), "{}:1: a quote that does not end", name);
  for (std::string& column : names) column = trimmed(column);
  const Header header = header_of(names, name);
  std::vector<MeasuredRun> runs;
  while (!csv.at_end()) {
    const int line = csv.line();
    const CsvFields fields = csv.next();
    TOK_REQUIRE(!csv.is_cut(), "{}:{}: a quote that does not end", name, line);
    if (std::all_of(fields.begin(), fields.end(), is_empty)) continue;
    MeasuredRun& run = runs.emplace_back(read_run(header, header.texts_of(fields)));
    run.line = line;
    run.number = static_cast<int>(runs.size());
    const auto surplus =
        fields.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), fields.size()));
    if (!std::all_of(surplus, fields.end(), is_empty)) {
      run.skipped =
          fmt::format("{} fields, the header has {}: text that has a comma stands in quotes",
                      fields.size(), names.size());
    }
  }
  TOK_REQUIRE(!runs.empty(), "{}: no row below the header", name);
  return runs;
}

std::vector<MeasuredRun> read_measured_rows(const std::filesystem::path& file) {
  return parse_measured_rows(read_file(file), file.string());
}

}  // namespace tokamak

#include "tokamak/evidence/measured_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <span>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/evidence/csv_reader.h"
#include "tokamak/evidence/row_time.h"
#include "tokamak/evidence/row_words.h"

namespace tokamak {
namespace {

// "NA" where a number would stand.
bool is_blank(const std::string& value) {
  const std::string word = plain_word(value);
  return word.empty() || word == "na" || word == "nan" || word == "none" || word == "null";
}

bool is_empty(const std::string& field) {
  return trimmed(field).empty();
}

// One line by column name; a number that is not one makes the row unusable, with its column.
class Line {
 public:
  Line(const CsvFields& header, const CsvFields& fields) {
    for (size_t i = 0; i < std::min(header.size(), fields.size()); ++i)
      by_name_[std::string(trimmed(header[i]))] = trimmed(fields[i]);
  }

  std::string text(const std::string& column) const {
    const auto it = by_name_.find(column);
    return it == by_name_.end() ? "" : it->second;
  }

  /// A number that need not be there: 0 where it cannot be read.
  double optional_number(const std::string& column) const {
    double number = 0.0;
    return reads(text(column), number) && number >= 0.0 ? number : 0.0;
  }

  double number(const std::string& column) {
    const std::string value = text(column);
    if (is_blank(value)) return 0.0;
    double number = 0.0;
    if (reads(value, number) && number >= 0.0 && number <= 1e15) return number;
    return refuse(column, "a number");
  }

  /// A whole number from 1 to `most`; 0 where there is none.
  int64_t count(const std::string& column, int64_t most) {
    const std::string value = text(column);
    if (is_blank(value)) return 0;
    double number = 0.0;
    if (!reads(value, number)) return refuse(column, "a number");
    if (number != std::floor(number)) return refuse(column, "a whole number");
    if (number < 1.0) return refuse(column, "a whole number of at least 1");
    if (number > static_cast<double>(most))
      return refuse(column, fmt::format("a whole number from 1 to {}", most));
    return static_cast<int64_t>(number);
  }

  /// The same, where 0 says that there is none.
  int64_t count_or_zero(const std::string& column, int64_t most) {
    double number = 0.0;
    return reads(text(column), number) && number == 0.0 ? 0 : count(column, most);
  }

  const std::string& bad() const { return bad_; }

 private:
  static bool reads(const std::string& value, double& number) {
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
    return code == std::errc() && end == value.data() + value.size() && std::isfinite(number);
  }

  int refuse(const std::string& column, std::string_view wanted) {
    if (bad_.empty())
      bad_ = fmt::format("{} = {}: wanted {}", column, printable(text(column)), wanted);
    return 0;
  }

  std::map<std::string, std::string> by_name_;
  std::string bad_;
};

// Beyond what any system has had, and planned within seconds.
constexpr int64_t kMostGpus = int64_t{1} << 20;
constexpr int64_t kMostLayers = 1024;
constexpr int64_t kMostContextRanks = 128;
constexpr int64_t kMostOtherRanks = 256;  // tensor parallel, of a pipeline; and virtual stages
constexpr int64_t kMostHidden = int64_t{1} << 18;
constexpr int64_t kMostFfn = int64_t{1} << 20;
constexpr int64_t kMostHeads = int64_t{1} << 14;
constexpr int64_t kMostWords = int64_t{1} << 20;
constexpr int64_t kMostLogits = int64_t{1} << 40;
constexpr int64_t kMostSequences = int64_t{1} << 26;
constexpr double kShortestStep = 1e-6;
constexpr double kLongestStep = 1e9;

constexpr std::array kNeeded = {"gpu",   "n_gpus", "n_layers", "hidden", "ffn",
                                "heads", "vocab",  "seq",      "gbs",    "mbs",
                                "tp",    "pp",     "cp",       "dp",     "precision"};

constexpr std::array kTimes = {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"};

constexpr const char* kVTrainTime = "iteration time (ms)";
constexpr std::array kVTrainNeeded = {"# GPUs",           "global batch",
                                      "micro batch",      "hidden size",
                                      "attention heads",  "# layers",
                                      "sequence length",  "tensor parallelism",
                                      "data parallelism", "pipeline parallelism"};

std::string missing_column(const Line& line, std::span<const char* const> needed) {
  for (const char* column : needed) {
    if (is_blank(line.text(column))) return column;
  }
  return "";
}

constexpr const char* kMixture = "a mixture of experts, which no model here is";

MeasuredRow training_run(Line line) {
  MeasuredRow row{.source = line.text("source"),
                  .gpu = line.text("gpu"),
                  .machine = line.text("machine"),
                  .model = line.text("model"),
                  .sharding = line.text("zero_stage_or_fsdp"),
                  .precision = line.text("precision"),
                  .recompute = line.text("recompute"),
                  .notes = line.text("notes"),
                  .num_gpus = line.count("n_gpus", kMostGpus),
                  .num_layers = line.count("n_layers", kMostLayers),
                  .hidden = line.count("hidden", kMostHidden),
                  .ffn = line.count("ffn", kMostFfn),
                  .heads = line.count("heads", kMostHeads),
                  .kv_heads = line.count("kv_heads", kMostHeads),
                  .vocab = line.count("vocab", kMostWords),
                  .seq_len = line.count("seq", kMostTokens),
                  .global_batch = line.count("gbs", kMostSequences),
                  .microbatch = line.count("mbs", kMostSequences),
                  .tp = line.count("tp", kMostOtherRanks),
                  .pp = line.count("pp", kMostOtherRanks),
                  .cp = line.count("cp", kMostContextRanks),
                  .dp = line.count("dp", kMostGpus),
                  .chunks_per_stage = line.count_or_zero("vp", kMostOtherRanks),
                  .stated_mfu = 0.01 * line.optional_number("mfu_pct")};
  if (row.kv_heads == 0) row.kv_heads = row.heads;
  const std::string missing = missing_column(line, kNeeded);
  const bool is_mixture = notes_experts(row.notes) || (missing.empty() && names_experts(row.model));
  if (is_mixture || !missing.empty()) {
    row.skipped = is_mixture ? std::string(kMixture) : missing;
  } else {
    set_step_time(row, {.step_s = line.number("step_time_s"),
                        .tokens_per_s = line.optional_number("tokens_per_s_per_gpu"),
                        .flops_per_s = 1e12 * line.optional_number("tflops_per_gpu")});
    if (row.step_time_s == 0.0) {
      for (const char* time : kTimes) line.number(time);
      if (row.skipped.empty()) row.skipped = "step_time_s";
    }
  }
  if (!line.bad().empty()) row.skipped = line.bad();
  return row;
}

// vTrain (arXiv 2312.12391) measured GPT models of Megatron-DeepSpeed on A100s: MLP 4 hidden, fp16.
// On several nodes all activations are recomputed and the vocabulary is padded. On one node
// neither: a rank has the integer share of 50,257 words (VIA-Research/vTrain f8dda84 src/config.py,
// src/model/gpt_modeling.py), without tensor parallelism an odd number, whose products reach a
// third of their rate; and layers take the time of three passes, not four.
MeasuredRow vtrain_run(Line line) {
  constexpr int64_t kVocab = 50257;
  constexpr int64_t kPaddedVocab = 51200;
  constexpr int64_t kNode = 8;
  MeasuredRow row{.source = "vTrain",
                  .gpu = "A100-80GB",
                  .precision = "fp16",
                  .num_gpus = line.count("# GPUs", kMostGpus),
                  .num_layers = line.count("# layers", kMostLayers),
                  .hidden = line.count("hidden size", kMostHidden),
                  .ffn = 4 * line.count("hidden size", kMostHidden),
                  .heads = line.count("attention heads", kMostHeads),
                  .kv_heads = line.count("attention heads", kMostHeads),
                  .seq_len = line.count("sequence length", kMostTokens),
                  .global_batch = line.count("global batch", kMostSequences),
                  .microbatch = line.count("micro batch", kMostSequences),
                  .tp = line.count("tensor parallelism", kMostOtherRanks),
                  .pp = line.count("pipeline parallelism", kMostOtherRanks),
                  .cp = 1,
                  .dp = line.count("data parallelism", kMostGpus),
                  .chunks_per_stage = 1,
                  .step_time_s = 1e-3 * line.number(kVTrainTime),
                  .measured_as = kVTrainTime};
  row.model = fmt::format("GPT {}x{}", row.num_layers, row.hidden);
  const bool is_one_node = row.num_gpus <= kNode;
  row.recompute = is_one_node ? "none" : "full";
  row.vocab = is_one_node ? kVocab - kVocab % std::max<int64_t>(row.tp, 1) : kPaddedVocab;
  row.skipped = missing_column(line, kVTrainNeeded);
  if (row.skipped.empty() && !(row.step_time_s > 0.0)) row.skipped = kVTrainTime;
  if (!line.bad().empty()) row.skipped = line.bad();
  return row;
}

void check_sizes(MeasuredRow& row) {
  if (!row.skipped.empty()) return;
  const std::array sizes = {row.num_gpus,     row.num_layers, row.hidden,  row.ffn, row.heads,
                            row.kv_heads,     row.vocab,      row.seq_len, row.tp,  row.pp,
                            row.global_batch, row.microbatch, row.cp,      row.dp};
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t n) { return n < 1; })) {
    row.skipped = "a size of 0";
  } else if (row.hidden % row.heads != 0) {
    row.skipped = fmt::format("hidden = {}, heads = {}: wanted hidden that is a multiple of heads",
                              row.hidden, row.heads);
  } else if (row.heads % row.kv_heads != 0) {
    row.skipped =
        fmt::format("heads = {}, kv_heads = {}: wanted heads that are a multiple of kv_heads",
                    row.heads, row.kv_heads);
  } else if (row.microbatch > kMostTokens / row.seq_len) {
    row.skipped = fmt::format("mbs = {}, seq = {}: wanted at most {} tokens in a microbatch",
                              row.microbatch, row.seq_len, kMostTokens);
  } else if (row.microbatch * row.seq_len > kMostLogits / row.vocab) {
    row.skipped = fmt::format("mbs = {}, seq = {}, vocab = {}: wanted a product of at most {}",
                              row.microbatch, row.seq_len, row.vocab, kMostLogits);
  } else if (!precision_named(row.precision)) {
    row.skipped = unpriced_precision(row.precision);
  } else if (!recompute_named(row.recompute)) {
    row.skipped =
        fmt::format("recompute = {}: wanted none, full, selective, selective-layer or core_attn",
                    printable(row.recompute));
  } else if (row.tp * row.pp * row.cp * row.dp != row.num_gpus) {
    row.skipped = fmt::format("tp {} x pp {} x cp {} x dp {} is not n_gpus {}", row.tp, row.pp,
                              row.cp, row.dp, row.num_gpus);
  } else if (row.step_time_s < kShortestStep || row.step_time_s > kLongestStep) {
    row.skipped = fmt::format("{}: a step of {:.3g} s: wanted {} to {} s", row.measured_as,
                              row.step_time_s, kShortestStep, kLongestStep);
  } else if (row.global_batch % (row.dp * row.microbatch) != 0) {
    row.skipped = fmt::format("gbs {} is not a multiple of dp {} x mbs {}", row.global_batch,
                              row.dp, row.microbatch);
  } else if (row.num_microbatches() > kMostMicrobatches) {
    row.skipped = fmt::format("gbs {} are {} microbatches of dp {} x mbs {}: wanted at most {}",
                              row.global_batch, row.num_microbatches(), row.dp, row.microbatch,
                              kMostMicrobatches);
  }
}

constexpr const char* kWantedColumns =
    "the columns of training_runs.csv (gpu, ..., step_time_s) or of vTrain (# GPUs, ..., iteration "
    "time (ms))";

// What the header's columns say of the file.
class Columns {
 public:
  explicit Columns(const CsvFields& header) : names_(header) {
    for (std::string& name : names_) name = trimmed(name);
  }

  bool has(std::string_view column) const {
    return std::find(names_.begin(), names_.end(), column) != names_.end();
  }

  bool is_vtrain() const { return has(kVTrainTime) && has("# GPUs"); }

  bool has_time() const {
    return std::any_of(kTimes.begin(), kTimes.end(), [&](const char* time) { return has(time); });
  }

  void require_known(const std::string& file) const {
    for (auto name = names_.begin(); name != names_.end(); ++name) {
      const bool is_new = std::find(names_.begin(), name, *name) == name;
      TOK_REQUIRE(is_new || name->empty(), "{}:1: column {} twice", file, printable(*name));
    }
    TOK_REQUIRE(is_vtrain() || (has("gpu") && has_time()), "{}: no column {}: wanted {}, got {}",
                file, fmt::join(missing(), ", "), kWantedColumns,
                printable(fmt::format("{}", fmt::join(names_, ", "))));
  }

 private:
  std::vector<std::string> missing() const {
    std::vector<std::string> out;
    const auto add = [&](const char* column) {
      if (!has(column)) out.emplace_back(column);
    };
    if (has(kVTrainTime) || has("# GPUs")) {
      std::for_each(kVTrainNeeded.begin(), kVTrainNeeded.end(), add);
      add(kVTrainTime);
      return out;
    }
    std::for_each(kNeeded.begin(), kNeeded.end(), add);
    if (!has_time()) out.push_back(fmt::format("{}", fmt::join(kTimes, " or ")));
    return out;
  }

  CsvFields names_;
};

}  // namespace

std::vector<MeasuredRow> parse_measured_rows(const std::string& text, const std::string& name) {
  CsvReader csv(text);
  TOK_REQUIRE(!csv.at_end(), "{}: an empty file: wanted {}", name, kWantedColumns);
  TOK_REQUIRE(mentions(text, "\n") || !mentions(text, "\r"),
              "{}: lines end in CR alone: wanted LF or CR LF", name);
  const CsvFields header = csv.next();
  TOK_REQUIRE(!csv.is_cut(), "{}:1: a quote that does not end", name);
  const Columns columns(header);
  columns.require_known(name);
  std::vector<MeasuredRow> rows;
  while (!csv.at_end()) {
    const int line = csv.line();
    const CsvFields fields = csv.next();
    TOK_REQUIRE(!csv.is_cut(), "{}:{}: a quote that does not end", name, line);
    if (std::all_of(fields.begin(), fields.end(), is_empty)) continue;
    const Line values(header, fields);
    rows.push_back(columns.is_vtrain() ? vtrain_run(values) : training_run(values));
    rows.back().line = line;
    rows.back().number = static_cast<int>(rows.size());
    check_sizes(rows.back());
    const auto surplus =
        fields.begin() + static_cast<std::ptrdiff_t>(std::min(header.size(), fields.size()));
    if (!std::all_of(surplus, fields.end(), is_empty)) {
      rows.back().skipped =
          fmt::format("{} fields, the header has {}: text that has a comma stands in quotes",
                      fields.size(), header.size());
    }
  }
  TOK_REQUIRE(!rows.empty(), "{}: no row below the header", name);
  return rows;
}

std::vector<MeasuredRow> read_measured_rows(const std::filesystem::path& file) {
  return parse_measured_rows(read_file(file), file.string());
}

bool has_gated_mlp(const MeasuredRow& row) {
  const std::string model = plain_word(row.model);
  const auto is_named = [&](std::string_view part) { return mentions(model, part); };
  constexpr std::array<std::string_view, 9> kWithout = {
      "gpt", "mpt", "bloom", "nemotron", "opt", "pythia", "falcon", "mtnlg", "starcoder"};
  constexpr std::array<std::string_view, 11> kWith = {"llama",  "qwen",     "mistral",  "mixtral",
                                                      "gemma",  "internlm", "baichuan", "olmo",
                                                      "smollm", "deepseek", "yi"};
  if (std::any_of(kWith.begin(), kWith.end(), is_named)) return true;
  if (std::any_of(kWithout.begin(), kWithout.end(), is_named)) return false;
  return row.ffn != 4 * row.hidden;
}

std::string software_of(const MeasuredRow& row) {
  if (row.source == "vTrain") return "vtrain";
  const std::string source = plain_word(row.source);
  const auto is_of = [&](auto... names) { return (mentions(source, names) || ...); };
  if (is_of("mosaicml", "llmfoundry", "composer")) return "mosaic";
  if (is_of("tokamak")) return "tokamak";
  if (is_of("llmc", "llmq")) return "llm.c";
  const bool is_torchtitan = is_of("torchtitan");
  const std::string machine = machine_of_gpu(row.gpu);
  const bool is_of_2021 = is_of("210404473", "220505198", "bigscience");
  const bool is_deepspeed = is_of("deepspeed", "gptneox") && machine.starts_with("a100");
  if (is_of_2021 || (is_deepspeed && !mentions(row.notes, "flash"))) return "megatron";
  if (!is_torchtitan &&
      is_of("nvidia", "megatron", "mlcommons", "mlperf", "nemo", "primus", "deepspeed", "gptneox"))
    return "nemo";
  const std::string& notes = row.notes;
  const bool is_compiled = mentions(notes, "compile=yes") || mentions(notes, "compile;") ||
                           mentions(notes, "torch.compile") || notes.ends_with("compile");
  return is_compiled ? "torchtitan-compiled" : "torchtitan";  // and any other trainer of PyTorch
}

}  // namespace tokamak

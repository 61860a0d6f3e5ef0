#include "tokamak/price/report/preset_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/flops.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

constexpr double kTokens = 1e12;
constexpr double kDay = 86400.0;
constexpr double kTera = 1e12;

// The FLOPs of a token and the peak that they are divided by.
struct Count {
  double flops = 0.0;
  std::optional<double> peak;
};

struct Counts {
  Count source;
  Count corrected;
};

double source_flops(const Preset& preset, ModelSpec model, int64_t seq_len, bool as_published) {
  if (as_published) model.vocab_size = preset.count_vocab.value_or(model.vocab_size);
  if (preset.count == "nemo") return nemo_flops_per_token(model, seq_len);
  TOK_REQUIRE(preset.count == "torchtitan",
              "presets/catalog.toml: {}.count: wanted nemo or torchtitan, got \"{}\"", preset.name,
              preset.count);
  return flops_per_token(flops_shape(model, seq_len));
}

Counts counts_of(const Preset& preset, const ModelSpec& model, int64_t seq_len,
                 std::optional<double> peak, bool as_published) {
  Counts counts{
      .source = {.flops = source_flops(preset, model, seq_len, as_published), .peak = peak},
      .corrected = {.flops = megatron_flops_per_token(model, seq_len), .peak = peak}};
  if (as_published && preset.count_tflops) counts.source.peak = *preset.count_tflops * kTera;
  return counts;
}

std::optional<double> mfu_of(const Count& count, double device_tokens_per_s) {
  if (!count.peak) return std::nullopt;
  return 100.0 * count.flops * device_tokens_per_s / *count.peak;
}

// Sets what follows from a rate.
void fill(PresetColumn& column, double tokens_per_s, int64_t num_devices, const Counts& counts) {
  const double of_device = tokens_per_s / static_cast<double>(num_devices);
  column.tokens_per_s = tokens_per_s;
  column.device_tokens_per_s = of_device;
  column.days = kTokens / tokens_per_s / kDay;
  column.device_tflops = counts.source.flops * of_device / kTera;
  column.mfu = mfu_of(counts.source, of_device);
  column.corrected_mfu = mfu_of(counts.corrected, of_device);
}

double tokens_per_step_of(const Preset& preset, const Config& config) {
  const Degrees degrees = resolve_degrees(config.parallelism, preset.num_gpus);
  return static_cast<double>(global_batch_size(config, degrees) * config.training.seq_len);
}

PresetColumn measured_column(const Preset& preset, const PresetRun& run, const std::string& title) {
  PresetColumn column{
      .title = title, .last_step_s = run.last_step_s, .median_step_s = run.median_step_s};
  const bool as_published = !run.is_proxy && run.num_devices == preset.num_gpus;
  if (run.last_step_s) {
    fill(column, run.tokens_per_step / *run.last_step_s, run.num_devices,
         counts_of(preset, run.model, run.seq_len, run.peak_flops, as_published));
  }
  return column;
}

std::string peak_text(const Count& count) {
  return count.peak ? fmt::format("{:.0f} TFLOP/s", *count.peak / kTera) : "no peak";
}

std::string notes_of(const Preset& preset, const ModelSpec& model, const Counts& counts,
                     const PresetRun& run, const std::string& title) {
  std::string notes = fmt::format(
      "source's MFU: {}, a vocabulary of {}, every query against every key, over {}\n"
      "corrected MFU: the model that ran, a vocabulary of {}, keys that causal queries see, over "
      "{}\n",
      preset.count == "nemo" ? "matmuls as NeMo 24.09 counts them" : "parameters but look-ups",
      preset.count_vocab.value_or(model.vocab_size), peak_text(counts.source), model.vocab_size,
      peak_text(counts.corrected));
  if (run.is_proxy) {
    notes += fmt::format(
        "{}: another model on another machine, for looking at how the run works; its time says "
        "nothing about {}\n",
        title, preset.name);
  }
  if (!run.peak_flops)
    notes +=
        fmt::format("{}: no MFU, because the peak here is not known (tokamak doctor)\n", title);
  return notes + published_text(preset);
}

using Figure = std::optional<double> PresetColumn::*;

struct Row {
  const char* text;
  const char* key;
  int decimals;
  Figure figure;
};

constexpr Row kRows[] = {
    {"s/step, last step", "step_time_s", 3, &PresetColumn::last_step_s},
    {"s/step, median", "median_step_time_s", 3, &PresetColumn::median_step_s},
    {"tokens/s", "tokens_per_s", 0, &PresetColumn::tokens_per_s},
    {"tokens/s/device", "tokens_per_s_per_device", 1, &PresetColumn::device_tokens_per_s},
    {"days to 1T tokens", "days_to_1e12_tokens", 2, &PresetColumn::days},
    {"TFLOP/s/device", "tflops_per_device", 3, &PresetColumn::device_tflops},
    {"MFU %, source's", "mfu_percent", 2, &PresetColumn::mfu},
    {"MFU %, corrected", "corrected_mfu_percent", 2, &PresetColumn::corrected_mfu},
};

}  // namespace

PresetColumn published_column(const Preset& preset, double peak_flops) {
  const Config config = load_preset(preset).config;
  const int64_t seq_len = config.training.seq_len;
  const Counts counts = counts_of(preset, spec_of(config), seq_len, peak_flops, true);
  const double tokens_per_step = tokens_per_step_of(preset, config);
  PresetColumn column{.title = "published", .last_step_s = preset.step_s};
  if (preset.step_s) {
    fill(column, tokens_per_step / *preset.step_s, preset.num_gpus, counts);
  } else if (preset.tokens_per_s) {
    const double tokens_per_s = *preset.tokens_per_s * static_cast<double>(preset.num_gpus);
    fill(column, tokens_per_s, preset.num_gpus, counts);
    column.last_step_s = tokens_per_step / tokens_per_s;
  }
  if (preset.tflops) column.device_tflops = preset.tflops;
  if (preset.mfu) column.mfu = preset.mfu;
  return column;
}

PresetTable preset_table(const Preset& preset, const PresetRun& run, const std::string& run_title) {
  const Config config = load_preset(preset).config;
  const price::Machine machine =
      price::with_equal_domains(price::load_machine(preset.cluster), preset.num_gpus);
  const PriceRequest request{.config = config,
                             .degrees = resolve_degrees(config.parallelism, preset.num_gpus),
                             .machine = machine};
  const PricedRun priced = price_run(request);
  const double peak = machine.device.peak_flops[matmul_precision(config, request.precision())];
  const Counts counts = counts_of(preset, priced.model, config.training.seq_len, peak, true);
  PresetColumn own_price{.title = "priced", .last_step_s = priced.step.seconds};
  fill(own_price, priced.tokens_per_step / priced.step.seconds, preset.num_gpus, counts);
  return {.preset = preset.name,
          .notes = notes_of(preset, priced.model, counts, run, run_title),
          .columns = {published_column(preset, peak), own_price,
                      measured_column(preset, run, run_title)}};
}

namespace {

int width(const PresetColumn& column) {
  constexpr int kLeast = 13;
  return std::max(kLeast, static_cast<int>(column.title.size()) + 2);
}

}  // namespace

std::string to_text(const PresetTable& table) {
  constexpr int kLabel = 20;
  std::string text = fmt::format("{}\n{:<{}}", table.preset, "", kLabel);
  for (const PresetColumn& column : table.columns)
    text += fmt::format("{:>{}}", column.title, width(column));
  text += "\n";
  for (const Row& row : kRows) {
    text += fmt::format("{:<{}}", row.text, kLabel);
    for (const PresetColumn& column : table.columns) {
      const std::optional<double> figure = column.*row.figure;
      text += fmt::format("{:>{}}", figure ? fmt::format("{:.{}f}", *figure, row.decimals) : "-",
                          width(column));
    }
    text += "\n";
  }
  return text + table.notes;
}

std::string to_json(const PresetTable& table) {
  OrderedJson columns = OrderedJson::array();
  for (const PresetColumn& column : table.columns) {
    OrderedJson json{{"column", column.title}};
    for (const Row& row : kRows) {
      const std::optional<double> figure = column.*row.figure;
      json[row.key] = figure ? OrderedJson(*figure) : OrderedJson();
    }
    columns.push_back(std::move(json));
  }
  return OrderedJson{{"preset", table.preset}, {"columns", columns}, {"notes", table.notes}}.dump(
             2) +
         "\n";
}

}  // namespace tokamak

#include "tokamak/evidence/row_time.h"

#include <array>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/evidence/row_run.h"
#include "tokamak/evidence/row_words.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak {
namespace {

// Token columns of these releases are rounded by up to 2 %; their FLOP rate is not.
bool has_rounded_tokens(const MeasuredRow& row) {
  return mentions(row.source, "Megatron-Bridge") &&
         (mentions(row.source, "[26.04.01") || mentions(row.source, "[26.06.01") ||
          mentions(row.source, "[26.08"));
}

// Recompute counted, non-causal, one gateless MLP of 4 hidden: the formula of arXiv 2104.04473.
double hardware_flops_per_step(const MeasuredRow& row) {
  const auto h = static_cast<double>(row.hidden);
  const auto s = static_cast<double>(row.seq_len);
  const auto layers = static_cast<double>(row.num_layers);
  return 96.0 * static_cast<double>(row.global_batch) * s * layers * h * h *
         (1.0 + s / (6.0 * h) + static_cast<double>(row.vocab) / (16.0 * layers * h));
}

// Attention without its mask, as all sources that state an MFU beside a time count it.
double whole_flops_per_token(const MeasuredRow& row) {
  return causal_flops_per_token(row) + 6.0 * static_cast<double>(row.num_layers) *
                                           static_cast<double>(row.seq_len) *
                                           static_cast<double>(row.hidden);
}

// Peaks in bf16 that software divides by where they are not the machine file's.
struct StatedPeak {
  std::string_view software;
  std::string_view machine;
  double flops_per_s;
};

constexpr std::array kStatedPeaks = {
    // pytorch/torchtitan torchtitan/tools/utils.py, get_peak_flops: a B200's
    StatedPeak{"torchtitan", "gb200", 2.25e15},
    StatedPeak{"torchtitan-compiled", "gb200", 2.25e15},
    // by the rates beside the MFUs of NVIDIA/dgxc-benchmarking
    StatedPeak{"nemo", "gb200", 2.45e15},
};

// That of which the row's MFU is a share; 0 = the device has none in its precision.
double stated_peak_flops(const MeasuredRow& row, price::Precision precision) {
  const std::string name = machine_of_row(row);
  const price::Device device = price::load_machine(name).device;
  const double peak = device.peak_flops[precision];
  const std::string software = software_of(row);
  for (const StatedPeak& stated : kStatedPeaks) {
    if (stated.software == software && stated.machine == lower_case(name)) {
      return peak / device.peak_flops[price::Precision::kBf16] * stated.flops_per_s;
    }
  }
  return peak;
}

void set_time_of_mfu(MeasuredRow& row, double flops_per_step) {
  const auto precision = precision_named(row.precision);
  if (!precision) {
    row.skipped = unpriced_precision(row.precision);
  } else if (row.stated_mfu > 1.0) {
    row.skipped = fmt::format("mfu_pct = {}: wanted at most 100", 100.0 * row.stated_mfu);
  } else if (machine_of_row(row).empty()) {
    row.skipped = fmt::format("no machine file of gpu {}", printable(row.gpu));
  } else {
    try {
      const double peak = stated_peak_flops(row, *precision);
      if (peak > 0.0) {
        row.step_time_s =
            flops_per_step / (row.stated_mfu * peak * static_cast<double>(row.num_gpus));
      }
    } catch (const Error& error) {
      row.skipped = error.what();
    }
  }
}

}  // namespace

void set_step_time(MeasuredRow& row, const StatedSpeed& stated) {
  const auto gpus = static_cast<double>(row.num_gpus);
  const double tokens = static_cast<double>(row.global_batch * row.seq_len);
  const bool is_hardware = mentions(row.notes, "HARDWARE FLOPs");
  if (stated.step_s > 0.0) {
    row.step_time_s = stated.step_s;
    row.measured_as = "step_time_s";
  } else if (stated.tokens_per_s > 0.0 && !(stated.flops_per_s > 0.0 && has_rounded_tokens(row))) {
    row.step_time_s = tokens / (stated.tokens_per_s * gpus);
    row.measured_as = "tokens_per_s_per_gpu";
  } else if (stated.flops_per_s > 0.0) {
    const double flops =
        is_hardware ? hardware_flops_per_step(row) : causal_flops_per_token(row) * tokens;
    row.step_time_s = flops / (stated.flops_per_s * gpus);
    row.measured_as = "tflops_per_gpu";
  } else if (row.stated_mfu > 0.0) {
    row.measured_as = "mfu_pct";
    set_time_of_mfu(
        row, is_hardware ? hardware_flops_per_step(row) : whole_flops_per_token(row) * tokens);
  }
}

double causal_flops_per_token(const MeasuredRow& row) {
  const auto h = static_cast<double>(row.hidden);
  const double kv = h * static_cast<double>(row.kv_heads) / static_cast<double>(row.heads);
  const double mlp = (has_gated_mlp(row) ? 3.0 : 2.0) * h * static_cast<double>(row.ffn);
  const auto layers = static_cast<double>(row.num_layers);
  const double products = layers * (2.0 * h * (h + kv) + mlp) + h * static_cast<double>(row.vocab);
  return 6.0 * products + 6.0 * layers * static_cast<double>(row.seq_len) * h;
}

}  // namespace tokamak

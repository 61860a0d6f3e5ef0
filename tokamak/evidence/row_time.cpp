#include "tokamak/evidence/row_time.h"

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak {
namespace {

// Recompute counted, non-causal, one gateless MLP of 4 hidden.
double hardware_flops_per_step(const MeasuredRun& run) {
  const auto h = static_cast<double>(run.hidden);
  const auto s = static_cast<double>(run.seq_len);
  const auto layers = static_cast<double>(run.num_layers);
  return 96.0 * static_cast<double>(run.global_batch) * s * layers * h * h *
         (1.0 + s / (6.0 * h) + static_cast<double>(run.vocab) / (16.0 * layers * h));
}

// Attention without its mask, as all sources that state an MFU beside a time count it.
double whole_flops_per_token(const MeasuredRun& run) {
  return causal_flops_per_token(run) + 6.0 * static_cast<double>(run.num_layers) *
                                           static_cast<double>(run.seq_len) *
                                           static_cast<double>(run.hidden);
}

void set_time_of_mfu(MeasuredRun& run, double flops_per_step, double peak_bf16) {
  run.measured_as = "mfu_pct";
  if (run.stated_mfu > 1.0) {
    run.skipped = fmt::format("mfu_pct = {}: wanted at most 100", 100.0 * run.stated_mfu);
  } else if (run.machine.empty()) {
    run.skipped = fmt::format("no machine file of gpu {}", printable(run.gpu));
  } else {
    try {
      const price::Device device = price::load_machine(run.machine).device;
      double peak = device.peak_flops[run.precision];
      if (peak_bf16 > 0.0) peak = peak / device.peak_flops[price::Precision::kBf16] * peak_bf16;
      if (peak > 0.0) {
        run.step_time_s =
            flops_per_step / (run.stated_mfu * peak * static_cast<double>(run.num_gpus));
      }
    } catch (const Error& error) {
      run.skipped = error.what();
    }
  }
}

}  // namespace

void set_step_time(MeasuredRun& run, const StatedSpeed& stated) {
  const auto gpus = static_cast<double>(run.num_gpus);
  const double tokens = static_cast<double>(run.global_batch * run.seq_len);
  const auto flops = [&](double per_token) {
    return stated.hardware_flops ? hardware_flops_per_step(run) : per_token * tokens;
  };
  if (stated.step_s > 0.0) {
    run.step_time_s = stated.step_s;
    run.measured_as = stated.step_column;
  } else if (stated.tokens_per_s > 0.0 && !(stated.flops_per_s > 0.0 && stated.rounds_tokens)) {
    run.step_time_s = tokens / (stated.tokens_per_s * gpus);
    run.measured_as = "tokens_per_s_per_gpu";
  } else if (stated.flops_per_s > 0.0) {
    run.step_time_s = flops(causal_flops_per_token(run)) / (stated.flops_per_s * gpus);
    run.measured_as = "tflops_per_gpu";
  } else if (run.stated_mfu > 0.0) {
    set_time_of_mfu(run, flops(whole_flops_per_token(run)), stated.mfu_peak_flops);
  }
}

double causal_flops_per_token(const MeasuredRun& run) {
  const auto h = static_cast<double>(run.hidden);
  const double kv = h * static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  const double mlp = (run.gated_mlp ? 3.0 : 2.0) * h * static_cast<double>(run.ffn);
  const auto layers = static_cast<double>(run.num_layers);
  const double products = layers * (2.0 * h * (h + kv) + mlp) + h * static_cast<double>(run.vocab);
  return 6.0 * products + 6.0 * layers * static_cast<double>(run.seq_len) * h;
}

}  // namespace tokamak

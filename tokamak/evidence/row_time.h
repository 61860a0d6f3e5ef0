// The time of a step by what a source states of it.
#pragma once

#include "tokamak/evidence/measured_rows.h"

namespace tokamak {

/// Of one device but for the time; 0 = not stated.
struct StatedSpeed {
  double step_s = 0.0;
  std::string step_column;  ///< of which it is
  double tokens_per_s = 0.0;
  double flops_per_s = 0.0;
  double mfu_peak_flops = 0.0;  ///< in bf16, of which the row's MFU is a share; 0 = the machine's
  bool rounds_tokens = false;   ///< more than the FLOP rate beside them
  bool hardware_flops = false;  ///< recompute counted, of a GPT without a causal mask
};

/// Sets step_time_s and measured_as by the first of the time, a rate and the row's stated_mfu, or
/// says in `skipped` why the last cannot be one.
void set_step_time(MeasuredRun& run, const StatedSpeed& stated);

/// Model FLOP of one token, forward and backward: 6 times the parameters of products, the head's
/// included, and causal attention.
double causal_flops_per_token(const MeasuredRun& run);

}  // namespace tokamak

// The time of a step by what a source states of it.
#pragma once

#include "tokamak/evidence/measured_rows.h"

namespace tokamak {

/// Of one device but for the time; 0 = not stated.
struct StatedSpeed {
  double step_s = 0.0;
  double tokens_per_s = 0.0;
  double flops_per_s = 0.0;
};

/// Sets step_time_s and measured_as by the first of the time, a rate and the row's stated_mfu, or
/// says in `skipped` why the last cannot be one. REQUIRES: the row's sizes, software and precision.
void set_step_time(MeasuredRow& row, const StatedSpeed& stated);

/// Model FLOP of one token, forward and backward: 6 times the parameters of products, the head's
/// included, and causal attention.
double causal_flops_per_token(const MeasuredRow& row);

}  // namespace tokamak

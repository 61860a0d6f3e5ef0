// Machines and plans whose prices a test knows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/price/step/step_price.h"

namespace tokamak::price {

/// Moves 8 bytes in a second, so that a copy of n fp32 takes n seconds; messages take no time.
inline Machine clockwork() {
  Machine machine{.name = "clockwork"};
  Device& d = machine.device;
  d.name = "clock";
  d.peak_flops = {1e12, 1e15, 2e15, 0.0};
  d.gemm.efficiency = {1.0, 1.0, 1.0, 1.0};
  d.attention_forward.efficiency = 0.8;
  d.attention_backward.efficiency = 0.6;
  d.num_sms = 100;
  d.gemm.tiles = {{.m = 128, .n = 128, .efficiency = 1.0}};
  d.gemm.k_overhead = 0.0;
  d.memory.bytes = 1e11;
  d.memory.bytes_per_s = 8.0;
  d.memory.efficiency = 1.0;
  d.memory.half_bytes = 0.0;
  d.launch_s = 0.0;
  machine.levels = {{.name = "fabric", .num_devices = 0, .bytes_per_s = 1e300, .efficiency = 1.0}};
  machine.software.host_launch_s = 0.0;
  return machine;
}

inline Operand floats(int64_t n) {
  return {.type = {.dtype = DType::kF32, .dims = {n}}, .strides = {1}};
}

/// A kernel that clockwork() runs for `seconds`.
inline Task copy_of(int64_t seconds, int stream = 0, std::vector<int> waits = {}) {
  return {.rules = &kRules<Accumulate>,
          .op = std::make_shared<const Accumulate>(),
          .variant = &kGpuKernel,
          .in = {floats(seconds)},
          .out = {floats(seconds)},
          .accumulate = {std::nullopt},
          .stream = stream,
          .waits = std::move(waits)};
}

template <class T>
Task communication(T op, int64_t in, int64_t out, int stream) {
  Task task{.rules = &kRules<T>,
            .op = std::make_shared<const T>(std::move(op)),
            .variant = &kCommunication,
            .stream = stream};
  if (in > 0) task.in = {floats(in)};
  if (out > 0) task.out = {floats(out)};
  task.accumulate.resize(task.out.size());
  return task;
}

}  // namespace tokamak::price

// Machines, operands and tasks for tests of prices.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tokamak/price/machine/test_machine.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak::price {

/// Returns clockwork() with a memory that never bounds.
inline Machine fast_memory() {
  Machine machine = clockwork();
  machine.device.memory.bytes_per_s = 1e30;
  return machine;
}

/// Returns the seconds of one [m, k] x [k, n] matmul that reads no memory.
inline double gemm(const Machine& machine, int64_t m, int64_t n, int64_t k,
                   Precision precision = Precision::kBf16) {
  return gemm_seconds(m, n, k, 0.0, precision, machine, {.row_widths = m | n | k});
}

inline Operand bf16(const Dims& dims) {
  return {.type = {.dtype = DType::kBF16, .dims = dims}, .strides = row_major(dims)};
}

/// Returns a task of block 0 that adds into none of its outputs.
template <class T>
Task task_of(T op, const std::vector<Operand>& in, const std::vector<Operand>& out) {
  Task task{.rules = &kRules<T>,
            .op = std::make_shared<const T>(std::move(op)),
            .variant = &kGpuKernel,
            .in = in,
            .out = out};
  task.accumulate.resize(task.out.size());
  task.label.block = 0;
  return task;
}

}  // namespace tokamak::price

// Seconds of one Task on a machine, alone.
#pragma once

#include "tokamak/graph/plan.h"
#include "tokamak/price/collective_time.h"
#include "tokamak/price/machine.h"

namespace tokamak::price {

/// What a price may change about a plan that is not made yet.
struct PriceOptions {
  Precision linear = Precision::kBf16;  ///< of products inside blocks
  bool device_graphs = true;            ///< kernels are launched by captured graphs
};

enum class Category : uint8_t {
  kGemm,
  kAttention,
  kMemoryBound,
  kExposedComm,
  kHost,
  kBubble,
  kOptimizer
};
inline constexpr size_t kNumCategories = 7;

std::string_view name_of(Category category);

/// One product [m, k] x [k, n] with `bytes` moved at least.
double gemm_seconds(int64_t m, int64_t n, int64_t k, double bytes, Precision precision,
                    const Machine& machine);

double memory_seconds(double bytes, const Machine& machine);

/// Of a compute task or a collective, with its launch.
double task_seconds(const Task& task, const GroupTable& groups, const Machine& machine,
                    const PriceOptions& options);

}  // namespace tokamak::price

// Tests the prices of plans with quantized values.
#include <gtest/gtest.h>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/price/task/low_precision.h"
#include "tokamak/price/task/task_time.h"
#include "tokamak/price/task/test_tasks.h"

namespace tokamak::price {
namespace {

double task_seconds(const Task& task, const Machine& machine, const PriceOptions& options = {}) {
  const GroupTable groups;
  return TaskTimes(groups, machine, options).seconds(task, cost_of(task), {});
}

TEST(QuantizedPrice, FollowsScalesAndBits) {
  Machine machine = fast_memory();
  machine.device.gemm.rows_share = 0.8;
  machine.device.gemm.parts_share = 0.5;
  const auto quantized = [](const Dims& dims) {
    return Operand{.type = {.dtype = DType::kE4M3, .dims = dims}, .strides = row_major(dims)};
  };
  const auto scales = [](ScaleGrid grid, int64_t rows) {
    const Dims dims = scale_dims(grid, rows, 4096);
    return Operand{.type = {.dtype = DType::kF32, .dims = dims}, .strides = row_major(dims)};
  };
  const auto matmul = [&](ScaleGrid a, ScaleGrid b) {
    return task_of(
        ScaledMatmul{.out = DType::kBF16, .a_grid = a, .b_grid = b},
        {quantized({1280, 4096}), scales(a, 1280), quantized({1280, 4096}), scales(b, 1280)},
        {bf16({1280, 1280})});
  };
  using enum ScaleGrid;
  const double fp8 = gemm(machine, 1280, 1280, 4096, Precision::kFp8);
  EXPECT_NEAR(task_seconds(matmul(kTensor, kTensor), machine), fp8, 1e-9 * fp8);
  EXPECT_NEAR(task_seconds(matmul(kRows, kTensor), machine), fp8 / 0.8, 1e-9 * fp8);
  EXPECT_NEAR(task_seconds(matmul(kSegments, kBlocks), machine), fp8 / 0.5, 1e-9 * fp8);
  Task emulated = matmul(kTensor, kTensor);
  emulated.op = std::make_shared<ScaledMatmul>(ScaledMatmul{.out = DType::kBF16, .emulate = true});
  EXPECT_EQ(cost_of(emulated).dtype, DType::kF32);

  machine = clockwork();
  machine.device.encode.tensor_share = 0.5;
  const Task encode = task_of(Quantize{}, {bf16({64, 64}), scales(kTensor, 64)},
                              {quantized({64, 64}), scales(kTensor, 64)});
  const double elements = 64.0 * 64.0;
  const double rate = machine.device.memory.bytes_per_s * machine.device.memory.efficiency;
  EXPECT_NEAR(task_seconds(encode, machine), (3.0 * elements + 8.0) / rate / 0.5, 1e-6);
}

// Scales of rows as torchao has them: slower matmuls, casts that read more than once, and values
// that travel in 16 bits, so that every rank casts what it has gathered.
TEST(QuantizedPrice, OtherSoftwareMayCastAndGatherOtherwise) {
  const auto at = [](Operand o, int64_t offset) {
    o.offset = offset;
    return o;
  };
  const CommGroup group{.id = 0, .size = 2};
  const Operand whole = at(bf16({1280, 1280}), 1 << 20);
  const Task gather = task_of(AllGather{.group = group}, {at(bf16({640, 1280}), 0)}, {whole});
  const Task matmul = task_of(Linear{}, {whole, at(bf16({1280, 1280}), 2 << 20)},
                              {at(bf16({1280, 1280}), 4 << 20)});
  const std::vector<Cost> costs = {cost_of(gather), cost_of(matmul)};
  const std::vector<Task> tasks = {gather, matmul};
  EXPECT_EQ(low_precision_flow(tasks, costs).is_low, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(low_precision_flow(tasks, costs).casts, (std::vector<uint8_t>{0, 0}));
  EXPECT_EQ(low_precision_flow(tasks, costs, false).is_low, (std::vector<uint8_t>{0, 0}));
  EXPECT_EQ(low_precision_flow(tasks, costs, false).casts, (std::vector<uint8_t>{0, 1}));

  const PriceOptions fp8{.linear = Precision::kFp8};
  Machine machine = fast_memory();
  const double before = task_seconds(matmul, machine, fp8);
  machine.software.low_share = 0.8;
  EXPECT_NEAR(task_seconds(matmul, machine, fp8), before / 0.8, 1e-9 * before);
  EXPECT_EQ(task_seconds(matmul, machine), task_seconds(matmul, fast_memory()))
      << "bf16 is not slower";

  machine = clockwork();
  const double once = task_seconds(matmul, machine, fp8);
  machine.software.cast_reads = 3.0;
  const double bytes = 2.0 * 2.0 * 1280.0 * 1280.0;
  EXPECT_NEAR(task_seconds(matmul, machine, fp8) - once, bytes / 8.0, 1e-6 * bytes);
}

}  // namespace
}  // namespace tokamak::price

// Every op's GPU kernels against the CPU's reference in double, over every case. Skips where no GPU
// is visible.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/random.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/nccl/nccl_world.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/float8/test_apart.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak::testing {
namespace {

Backend& gpu_backend() {
  static const auto kBackend = gpu::make_backend();
  return *kBackend;
}

// What composites speak to in a group of one.
Communicator& alone() {
  static const auto kControl = make_single_world();
  static const auto kWorld = gpu::make_nccl_world(*kControl, gpu_backend());
  static const auto kGroup = kWorld->make_group("alone", std::array{0});
  return *kGroup;
}

class GpuOps : public ::testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    if (c().rules->has_side_effect) GTEST_SKIP() << "speaks to another rank";
    if (c().rules->is_communication) GTEST_SKIP() << "has no kernel";
    if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  }

  const OpCase& c() const { return GetParam(); }

  std::vector<Numbers> run(DType dtype, const std::vector<Numbers>& values,
                           RunOptions options = {}) const {
    Communicator* const groups[] = {&alone()};
    options.backend = &gpu_backend();
    options.groups = groups;
    return run_op(c(), types_as(c(), dtype), values, options);
  }
};

TEST_P(GpuOps, agrees_with_the_reference_in_double) {
  for (const auto& [dtype, bound] : {std::pair{DType::kF32, 2e-6}, std::pair{DType::kBF16, 6e-3}}) {
    const auto values = fill_inputs(c(), dtype);
    const auto want = run_op(c(), types_as(c(), DType::kF64), values, {.reference_only = true});
    for (const bool reference_only : {false, true}) {
      const auto got = run(dtype, values, {.reference_only = reference_only});
      ASSERT_EQ(got.size(), want.size());
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_LT(relative_error(got[k], want[k]),
                  std::max({bound, c().bound, reference_only ? 0.0 : c().library_bound}))
            << name_of(dtype) << " output " << k << (reference_only ? " plain" : " chosen");
      }
    }
  }
}

// Library kernels may not keep this: cuDNN adds dQ in any order.
TEST_P(GpuOps, plain_kernels_give_the_same_bits_twice) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto values = fill_inputs(c(), dtype);
    EXPECT_EQ(run(dtype, values, {.reference_only = true}),
              run(dtype, values, {.reference_only = true}));
  }
}

TEST_P(GpuOps, fused_and_apart_give_the_same_bits) {
  const auto parts = apart(c());
  if (!parts) GTEST_SKIP() << "not fused";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto values = fill_inputs(c(), dtype);
    const auto want = run_op(*parts, types_as(c(), dtype), values,
                             {.fuses_readers = false, .backend = &gpu_backend()});
    EXPECT_EQ(run(dtype, values), want) << name_of(dtype);
  }
}

TEST_P(GpuOps, accumulates_over_microbatches) {
  const auto outs = c().rules->accumulates(c().op.get());
  if (outs.empty()) GTEST_SKIP() << "no accumulating output";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto values = fill_inputs(c(), dtype);
    for (const bool reference_only : {false, true}) {
      const auto plain = run(dtype, values, {.reference_only = reference_only});
      const auto thrice =
          run(dtype, values, {.reference_only = reference_only, .accumulate = true, .repeats = 3});
      for (const int k : outs) {
        // The result State accumulates too: 1 + 2 + 3 times the plain output.
        Numbers want = plain[k];
        const Types out = c().rules->infer(c().op.get(), types_as(c(), dtype));
        for (double& x : want) x *= c().keeps_greater ? 3.0 : 6.0;
        EXPECT_LT(relative_error(thrice[k], want), accumulation_bound(out[k].dtype))
            << name_of(dtype) << " output " << k << (reference_only ? " plain" : " chosen");
      }
    }
  }
}

TEST_P(GpuOps, replay_from_a_graph_what_they_launch) {
  for (const auto& [dtype, bound] : {std::pair{DType::kF32, 2e-6}, std::pair{DType::kBF16, 6e-3}}) {
    const auto values = fill_inputs(c(), dtype);
    for (const bool reference_only : {false, true}) {
      const auto want = run(dtype, values, {.reference_only = reference_only, .repeats = 6});
      const auto got = run(dtype, values,
                           {.reference_only = reference_only, .repeats = 6, .device_graphs = true});
      if (reference_only) {
        EXPECT_EQ(got, want);
        continue;
      }
      ASSERT_EQ(got.size(), want.size());
      for (size_t k = 0; k < got.size(); ++k)
        EXPECT_LT(relative_error(got[k], want[k]), bound) << name_of(dtype) << " output " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuOps, ::testing::ValuesIn(all_cases().good),
                         [](const auto& of) { return test_name(of.param.rules, of.param.name); });

template <class T>
OpCase case_of(T op, Types in) {
  return {.rules = &kRules<T>, .op = std::make_shared<const T>(op), .in = std::move(in)};
}

// Rows of some per warp to some warps per row, of one or two accesses a thread, odd and too long.
TEST(GpuBackend, a_gradient_emits_the_bits_of_the_norm) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  for (const int64_t D : {8, 33, 256, 1032, 1600, 2048, 4096, 8200, 9216, 32768}) {
    const TensorType x = f32({37, D});
    const OpCase norm = case_of(RmsNorm{}, {x, f32({D})});
    const OpCase grad = case_of(RmsNormGrad{.emits_y = true}, {x, f32({D}), x});
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto values = fill_inputs(grad, dtype);
      const auto run = [&](const OpCase& c, const std::vector<Numbers>& in) {
        return run_op(c, types_as(c, dtype), in, {.backend = &gpu_backend()});
      };
      EXPECT_EQ(run(grad, values)[2], run(norm, {values[0], values[1]})[0])
          << name_of(dtype) << " " << D;
    }
  }
}

// Rows of both lengths go through one kernel, whose limit of shared memory is set when either is
// prepared.
TEST(GpuBackend, narrow_rows_leave_wide_ones_their_shared_memory) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr int64_t kBytes = int64_t{16} << 20U;
  Backend& backend = gpu_backend();
  const auto prepared = [&](int64_t D) {
    const TensorType x{.dtype = DType::kBF16, .dims = {64, D}};
    const LayerNormGrad op;
    const Types in{x, {.dtype = DType::kBF16, .dims = {D}}, x};
    const Types out = op.infer(in);
    const Kernel kernel =
        backend.prepare(kRules<LayerNormGrad>, &op, {.in = in, .out = out}, kGpuKernel.name);
    return [=, &backend] {
      std::vector<std::unique_ptr<Allocation>> memory;
      const auto tensors = [&](const Types& types) {
        std::vector<Tensor> all;
        for (const TensorType& type : types) {
          memory.push_back(backend.allocate(kBytes));
          backend.clear(memory.back()->data(), kBytes);
          Dims strides(type.dims.size(), 1);
          for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * type.dims[d];
          all.push_back(
              {.data = memory.back()->data(), .type = type, .strides = std::move(strides)});
        }
        return all;
      };
      const std::vector<Tensor> from = tensors(in);
      const std::vector<Tensor> to = tensors(out);
      const auto workspace = backend.allocate(kBytes);
      kernel({.in = from,
              .out = to,
              .workspace = workspace->data(),
              .stream = backend.streams()->stream(0)});
      std::byte first{};
      backend.download(&first, static_cast<const std::byte*>(to[0].data), 1);
    };
  };
  const auto wide = prepared(4096);
  const auto narrow = prepared(1024);
  EXPECT_NO_THROW(wide());
  EXPECT_NO_THROW(narrow());
}

// By this the guard sees infinities that quantized values do not keep.
TEST(GpuBackend, squares_of_weight_zero_count_only_if_they_are_not_finite) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  const OpCase c = case_of(SumSquares{.ranges = {{.end = 4, .weight = 0.0}}}, {f32({4})});
  const auto sum_of = [&](double x) {
    return run_op(c, c.in, {{1.0, 3e38, x, 0.0}}, {.backend = &gpu_backend()})[0][0];
  };
  EXPECT_EQ(sum_of(-2.0), 0.0);
  EXPECT_TRUE(std::isnan(sum_of(std::numeric_limits<double>::infinity())));
  EXPECT_TRUE(std::isnan(sum_of(std::numeric_limits<double>::quiet_NaN())));
}

// No product is fused with a sum, and the random bits are the same ones.
TEST(GpuBackend, adamw_has_the_bits_of_the_cpu) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  for (const OpCase& c : all_cases().good) {
    if (c.rules != &kRules<AdamW>) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto values = fill_inputs(c, dtype);
      EXPECT_EQ(run_op(c, types_as(c, dtype), values, {.backend = &gpu_backend()}),
                run_op(c, types_as(c, dtype), values))
          << c.name << " " << name_of(dtype);
    }
  }
}

// cuDNN computes the tanh of caps to 2^-11 of its value.
TEST(GpuAttention, caps_the_scores_of_long_texts_as_a_cpu_does) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr int64_t kTokens = 1100;
  for (const int64_t D : {128, 256}) {
    for (const int64_t window : {0, 300}) {
      SCOPED_TRACE(fmt::format("head dim {}, window {}", D, window));
      const Attention op{.window = window, .cap = 20.0};
      const TensorType q = f32({1, kTokens, 4, D});
      const TensorType k = f32({1, kTokens, 2, D});
      OpCase forward = case_of(op, {q, k, k});
      forward.fill = {{.scale = 4.0}};  // so that scores come near the cap
      auto values = fill_inputs(forward, DType::kBF16);
      const auto want = run_op(forward, types_as(forward, DType::kF32), values);
      const auto got =
          run_op(forward, types_as(forward, DType::kBF16), values, {.backend = &gpu_backend()});
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LT(relative_error(got[i], want[i]), 1e-2) << "output " << i;

      OpCase backward =
          case_of(AttentionGrad{.forward = op}, {q, k, k, q, f32({1, 4, kTokens}), q});
      backward.float_stays = {4, 4};
      values.insert(values.end(), {want[0], want[1], fill_inputs(backward, DType::kBF16)[5]});
      const auto gradients = run_op(backward, types_as(backward, DType::kF32), values);
      const auto found =
          run_op(backward, types_as(backward, DType::kBF16), values, {.backend = &gpu_backend()});
      for (size_t i = 0; i < gradients.size(); ++i)
        EXPECT_LT(relative_error(found[i], gradients[i]), 1e-2) << "gradient " << i;
    }
  }
}

TEST(GpuBackend, says_why_there_is_no_device) {
  EXPECT_EQ(gpu::num_devices() == 0, !gpu::why_none().empty());
}

TEST(GpuBackend, moves_bytes_larger_than_its_staging_memory) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr int64_t kBytes = (int64_t{40} << 20U) + 17;
  const auto device = gpu_backend().allocate(kBytes);
  std::vector<std::byte> sent(kBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(random_u32(1, 2, i));
  std::vector<std::byte> back(kBytes);
  gpu_backend().download(back.data(), device->data(), kBytes);
  EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](std::byte b) { return b == std::byte{0}; }));
  gpu_backend().upload(device->data(), sent.data(), kBytes);
  gpu_backend().download(back.data(), device->data(), kBytes);
  EXPECT_EQ(sent, back);
}

TEST(GpuBackend, copies_within_spare_memory_between_writes) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr int64_t kBytes = (int64_t{40} << 20U) + 17;
  const int64_t counted = gpu_backend().allocated_bytes();
  const auto device = gpu_backend().allocate(kBytes);
  const auto spare = gpu_backend().allocate_spare(kBytes, 1);
  ASSERT_NE(spare, nullptr);
  EXPECT_EQ(gpu_backend().allocated_bytes(), counted + kBytes);
  EXPECT_EQ(gpu_backend().allocate_spare(kBytes, *gpu_backend().free_bytes()), nullptr);
  std::vector<std::byte> sent(kBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(random_u32(5, 6, i));
  gpu_backend().upload(device->data(), sent.data(), kBytes);
  gpu_backend().copy_within(spare->data(), device->data(), kBytes);
  gpu_backend().clear(device->data(), kBytes);
  gpu_backend().settle();
  std::vector<std::byte> back(kBytes);
  gpu_backend().read_beside(back.data(), spare->data(), kBytes);
  EXPECT_EQ(sent, back);
}

TEST(GpuBackend, copies_beside_from_several_threads) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr size_t kThreads = 20;  // more than there are lanes
  constexpr int64_t kBytes = (int64_t{9} << 20U) + 5;
  const auto device = gpu_backend().allocate(kThreads * kBytes);
  std::vector<std::byte> sent(kThreads * kBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(random_u32(3, 4, i));
  std::vector<std::byte> back(sent.size());
  gpu_backend().settle();
  in_parallel(kThreads, kThreads, [&](size_t t) {
    gpu_backend().write_beside(device->data() + t * kBytes, sent.data() + t * kBytes, kBytes);
    gpu_backend().read_beside(back.data() + t * kBytes, device->data() + t * kBytes, kBytes);
  });
  EXPECT_EQ(sent, back);
}

TEST(GpuBackend, copies_beside_to_pinned_memory_and_across_its_ends) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  constexpr int64_t kBytes = int64_t{3} << 20U;
  const auto device = gpu_backend().allocate(kBytes);
  std::vector<std::byte> sent(kBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(random_u32(3, 4, i));
  gpu_backend().write_beside(device->data(), sent.data(), kBytes);
  std::vector<std::byte> back(kBytes);
  gpu_backend().pin(back.data() + 100, kBytes / 2);
  constexpr int64_t kPart = 777'777;
  for (int64_t at = 0; at < kBytes; at += kPart)
    gpu_backend().read_beside(back.data() + at, device->data() + at, std::min(kPart, kBytes - at));
  gpu_backend().unpin(back.data() + 100);
  EXPECT_EQ(sent, back);
}

TEST(GpuBackend, draws_the_bits_of_the_host) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  const RandomRange range{.seed = 7,
                          .stream = 11,
                          .std = 0.02,
                          .normal = TruncatedNormal::between(-3.0, 3.0),
                          .columns = 1000,
                          .first_row = 5,
                          .first_column = 13,
                          .box_columns = 217,
                          .begin = 100,
                          .count = 300000};
  std::vector<float> got(range.count);
  const auto device = gpu_backend().allocate(range.count * 4);
  ASSERT_TRUE(gpu_backend().draw(device->data(), range));
  gpu_backend().download(reinterpret_cast<std::byte*>(got.data()), device->data(), range.count * 4);
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t at = range.begin + i;
    const int64_t element = (range.first_row + at / range.box_columns) * range.columns +
                            range.first_column + at % range.box_columns;
    const uint32_t word = random_u32(range.seed, range.stream, static_cast<uint64_t>(element));
    ASSERT_EQ(got[i], static_cast<float>(range.std * range.normal(word))) << i;
  }
}

TEST(GpuBackend, names_what_it_lacks_of_memory) {
  if (gpu::num_devices() == 0) GTEST_SKIP() << gpu::why_none();
  try {
    gpu_backend().allocate(int64_t{1} << 45U);
    FAIL() << "allocated 32 TiB";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("not enough GPU memory"), std::string::npos);
  }
}

}  // namespace
}  // namespace tokamak::testing

// Products through cuBLASLt and by our own kernel against sums in double. Skips where no GPU is
// visible.
#include "tokamak/gpu/gemm/gemm.h"

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/random.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/gemm_tuner.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/hopper_matmul_gpu.h"

namespace tokamak::gpu {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20U;

Device& device() {
  static Device only(0);
  return only;
}

class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes) {
    void* data = nullptr;
    TOK_CUDA(cudaMalloc(&data, bytes));
    data_ = static_cast<std::byte*>(data);
  }

  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  ~DeviceBytes() { cudaFree(data_); }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// Numbers of bf16, or of a coarser type.
template <class T = BF16>
std::vector<double> numbers(uint64_t stream, int64_t n) {
  std::vector<double> values(n);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<float>(normal_quantile(to_uniform(random_u32(3, stream, i))));
    values[i] = static_cast<double>(static_cast<float>(T(x)));
  }
  return values;
}

std::vector<double> numbers(uint64_t stream, int64_t n, DType dtype) {
  if (dtype == DType::kE4M3) return numbers<E4M3>(stream, n);
  if (dtype == DType::kE5M2) return numbers<E5M2>(stream, n);
  return numbers(stream, n);
}

template <class T>
void upload_as(const DeviceBytes& to, const std::vector<double>& values) {
  std::vector<T> packed;
  for (const double x : values) packed.push_back(T(static_cast<float>(x)));
  device().upload(to.data(), reinterpret_cast<const std::byte*>(packed.data()),
                  static_cast<int64_t>(packed.size() * sizeof(T)));
}

void upload(const DeviceBytes& to, DType dtype, const std::vector<double>& values) {
  if (dtype == DType::kE4M3) return upload_as<E4M3>(to, values);
  if (dtype == DType::kE5M2) return upload_as<E5M2>(to, values);
  dtype == DType::kBF16 ? upload_as<BF16>(to, values) : upload_as<float>(to, values);
}

template <class T>
std::vector<double> download_as(const DeviceBytes& from, int64_t n) {
  std::vector<T> packed(n);
  device().download(reinterpret_cast<std::byte*>(packed.data()), from.data(),
                    n * static_cast<int64_t>(sizeof(T)));
  std::vector<double> values;
  for (const T x : packed) values.push_back(static_cast<double>(static_cast<float>(x)));
  return values;
}

std::vector<double> download(const DeviceBytes& from, DType dtype, int64_t n) {
  return dtype == DType::kBF16 ? download_as<BF16>(from, n) : download_as<float>(from, n);
}

struct Operands {
  std::vector<double> a, b, bias, c;
  std::vector<double> a_scales, b_scales;
};

// Scales that differ, none at all for values.
std::vector<double> scales_of(const GemmShape& s, ScaleGrid grid, int64_t rows) {
  std::vector<double> scales(TensorType{.dims = scale_dims(grid, rows, s.k)}.numel());
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25 * static_cast<double>(i % 7 + 1);
  return scales;
}

Operands operands_of(const GemmShape& s) {
  Operands x{.a = numbers(1, s.m * s.k, s.in),
             .b = numbers(2, s.k * s.n, s.in_b()),
             .bias = numbers(3, s.n),
             .c = numbers(4, s.m * s.n)};
  if (s.scaled) {
    x.a_scales = scales_of(s, s.scaled->a_grid, s.m);
    x.b_scales = scales_of(s, s.scaled->b_grid, s.n);
  }
  return x;
}

double scale_at(const GemmShape& s, const std::vector<double>& scales, ScaleGrid grid, int64_t rows,
                int64_t row, int64_t k) {
  return scales[scale_index(grid, rows, s.k, row, k)];
}

std::vector<double> product_on_host(const GemmShape& s, const Operands& x, bool accumulate) {
  std::vector<double> c(x.c.size());
  const auto at = [](const std::vector<double>& v, int64_t i) { return v[i]; };
  for (int64_t m = 0; m < s.m; ++m) {
    for (int64_t n = 0; n < s.n; ++n) {
      double sum = accumulate ? at(x.c, m * s.n + n) : 0.0;
      if (s.bias) sum += at(x.bias, n);
      for (int64_t k = 0; k < s.k; ++k) {
        double product = at(x.a, s.transpose_a ? k * s.m + m : m * s.k + k) *
                         at(x.b, s.transpose_b ? n * s.k + k : k * s.n + n);
        if (s.scaled)
          product *= scale_at(s, x.a_scales, s.scaled->a_grid, s.m, m, k) *
                     scale_at(s, x.b_scales, s.scaled->b_grid, s.n, n, k);
        sum += product;
      }
      c[m * s.n + n] = sum;
    }
  }
  return c;
}

template <class G>
std::vector<double> product_on_device(const G& gemm, const GemmShape& s, const Operands& x,
                                      bool accumulate) {
  const DeviceBytes a(s.m * s.k * size_of(s.in));
  const DeviceBytes b(s.k * s.n * size_of(s.in_b()));
  const DeviceBytes a_scales(std::ssize(x.a_scales) * size_of(DType::kF32));
  const DeviceBytes b_scales(std::ssize(x.b_scales) * size_of(DType::kF32));
  const DeviceBytes bias(s.n * size_of(s.bias_type()));
  const DeviceBytes c(s.m * s.n * size_of(s.out));
  const DeviceBytes workspace(kWorkspace);
  upload(a, s.in, x.a);
  upload(b, s.in_b(), x.b);
  upload(a_scales, DType::kF32, x.a_scales);
  upload(b_scales, DType::kF32, x.b_scales);
  upload(bias, s.bias_type(), x.bias);
  upload(c, s.out, x.c);
  gemm.run({.a = a.data(),
            .b = b.data(),
            .a_scales = reinterpret_cast<const float*>(a_scales.data()),
            .b_scales = reinterpret_cast<const float*>(b_scales.data()),
            .bias = s.bias ? bias.data() : nullptr,
            .c = c.data(),
            .workspace = workspace.data(),
            .accumulate = accumulate},
           device().stream(0));
  return download(c, s.out, s.m * s.n);
}

double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

std::string to_hex(const std::array<uint64_t, 8>& words) {
  std::string text;
  for (const uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

// fp32 in, bf16 in, bf16 in with an fp32 result; all layouts, with and without bias.
std::vector<GemmShape> shapes() {
  std::vector<GemmShape> all;
  for (const auto& [in, out] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kF32}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool bias : {false, true}) {
          if (bias && in != out) continue;
          all.push_back({.m = 136,
                         .n = 72,
                         .k = 200,
                         .transpose_a = transpose_a,
                         .transpose_b = transpose_b,
                         .in = in,
                         .out = out,
                         .bias = bias,
                         .workspace_bytes = kWorkspace});
        }
      }
    }
  }
  return all;
}

TEST(GpuGemm, equals_sums_in_double) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  for (const GemmShape& shape : shapes()) {
    const Operands x = operands_of(shape);
    const Gemm gemm(shape, device());
    for (const bool accumulate : {false, true}) {
      const double bound = shape.out == DType::kF32 ? 2e-6 : 4e-3;
      EXPECT_LT(relative_error(product_on_device(gemm, shape, x, accumulate),
                               product_on_host(shape, x, accumulate)),
                bound)
          << to_string(shape) << (accumulate ? ", adds" : "");
    }
  }
}

// All pairs of formats and grids that products of training have.
std::vector<GemmShape> scaled_shapes() {
  using enum ScaleGrid;
  constexpr DType kE4M3 = DType::kE4M3;
  std::vector<GemmShape> all;
  for (const bool fast : {false, true}) {
    for (const DType out : {DType::kBF16, DType::kF32}) {
      const auto add = [&](DType in, const ScaledGemm& scaled, bool bias = false) {
        all.push_back({.m = 272,
                       .n = 144,
                       .k = 400,
                       .transpose_b = true,
                       .in = in,
                       .out = out,
                       .bias = bias,
                       .workspace_bytes = kWorkspace,
                       .scaled = scaled});
      };
      if (out == DType::kBF16) add(kE4M3, {.fast_accumulation = fast}, true);
      add(kE4M3, {.fast_accumulation = fast});
      add(DType::kE5M2, {.fast_accumulation = fast});
      add(kE4M3, {.a_grid = kRows, .b_grid = kRows, .fast_accumulation = fast});
      if (fast) continue;
      add(kE4M3, {.a_grid = kSegments, .b_grid = kBlocks});
      add(kE4M3, {.a_grid = kSegments, .b_grid = kSegments});
    }
  }
  return all;
}

// Hopper sums 8-bit products in fewer bits than fp32 has.
TEST(GpuGemm, scaled_matmuls_equal_sums_in_double) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  if (device().arch() < 90) GTEST_SKIP() << "no products of 8-bit codes by all grids";
  for (const GemmShape& shape : scaled_shapes()) {
    SCOPED_TRACE(to_string(shape));
    const Operands x = operands_of(shape);
    const Gemm gemm(shape, device());
    for (const bool accumulate : {false, true}) {
      const double bound = shape.scaled->fast_accumulation ? 1e-2
                           : shape.out == DType::kF32      ? 1e-3
                                                           : 4e-3;
      EXPECT_LT(relative_error(product_on_device(gemm, shape, x, accumulate),
                               product_on_host(shape, x, accumulate)),
                bound)
          << (accumulate ? "adds" : "");
    }
  }
}

// Odd rows, a short last part, columns of an odd number of tiles, more tiles than multiprocessors.
std::vector<GemmShape> hopper_shapes() {
  std::vector<GemmShape> all;
  const auto add = [&](int64_t m, int64_t n, int64_t k, DType in, DType out) {
    all.push_back(
        {.m = m,
         .n = n,
         .k = k,
         .transpose_b = true,
         .in = in,
         .out = out,
         .scaled = ScaledGemm{.a_grid = ScaleGrid::kSegments, .b_grid = ScaleGrid::kBlocks}});
  };
  for (const DType in : {DType::kE4M3, DType::kE5M2}) {
    for (const DType out : {DType::kBF16, DType::kF32}) {
      add(388, 144, 912, in, out);
      add(4, 16, 16, in, out);
    }
  }
  add(1540, 2336, 144, DType::kE4M3, DType::kBF16);
  return all;
}

TEST(GpuGemm, own_kernel_for_hopper_equals_sums_in_double) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  if (device().arch() != 90) GTEST_SKIP() << "for sm_90a";
  for (const GemmShape& shape : hopper_shapes()) {
    SCOPED_TRACE(to_string(shape));
    const Operands x = operands_of(shape);
    const HopperMatmul gemm(shape, device());
    for (const bool accumulate : {false, true}) {
      const double bound = shape.out == DType::kF32 ? 1e-3 : 3e-3;
      const std::vector<double> got = product_on_device(gemm, shape, x, accumulate);
      EXPECT_LT(relative_error(got, product_on_host(shape, x, accumulate)), bound)
          << (accumulate ? "adds" : "");
      EXPECT_EQ(product_on_device(gemm, shape, x, accumulate), got) << "repeats its bits";
    }
  }
}

TEST(GpuGemm, names_of_scaled_shapes_differ) {
  std::set<std::string> names;
  const std::vector<GemmShape> all = scaled_shapes();
  for (const GemmShape& shape : all) names.insert(to_string(shape));
  EXPECT_EQ(names.size(), all.size());
  EXPECT_EQ(to_string({.m = 1, .n = 2, .k = 3, .in = DType::kBF16, .out = DType::kF32}),
            "1x2x3 nn bfloat16 to float32");
}

// Callers of one shape may have other workspaces, which its name does not tell.
TEST(GpuGemm, an_algorithm_fits_the_workspace_of_each_caller) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  GemmTuner tuner(device(), {.is_on = false});
  int num_that_want_some = 0;
  for (const int64_t k : {4096, 16384, 65536}) {
    const auto wanted_within = [&](int64_t workspace_bytes) {
      const GemmShape shape{.m = 128,
                            .n = 128,
                            .k = k,
                            .in = DType::kBF16,
                            .out = DType::kF32,
                            .workspace_bytes = workspace_bytes};
      GemmProblem problem(shape);
      const cublasLtMatmulAlgo_t algo = tuner.choose(shape, problem);
      cublasLtMatmulHeuristicResult_t result{};
      TOK_CUBLAS(cublasLtMatmulAlgoCheck(tuner.handle(), &problem.operation, &problem.first,
                                         &problem.second, &problem.result, &problem.result, &algo,
                                         &result));
      return static_cast<int64_t>(result.workspaceSize);
    };
    const int64_t wanted = wanted_within(kWorkspace);
    if (wanted > 0) ++num_that_want_some;
    for (const int64_t limit : {wanted / 2, int64_t{0}, kWorkspace})
      EXPECT_LE(wanted_within(limit), limit) << "k " << k;
  }
  EXPECT_GT(num_that_want_some, 0);
}

TEST(GpuGemm, same_cache_same_algorithm) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokamak_gemm_test";
  std::filesystem::remove_all(folder);
  const GemmShape shape{.m = 512,
                        .n = 768,
                        .k = 2048,
                        .transpose_a = true,
                        .in = DType::kBF16,
                        .out = DType::kF32,
                        .workspace_bytes = kWorkspace};
  const GemmProblem problem(shape);
  const auto choose = [&](bool is_on) {
    GemmTuner tuner(device(), {.is_on = is_on, .file = folder / "gemm.json"});
    return std::bit_cast<std::array<uint64_t, 8>>(tuner.choose(shape, problem));
  };
  const auto untimed = choose(false);
  EXPECT_FALSE(path_exists(folder / "gemm.json"));
  EXPECT_EQ(choose(false), untimed);
  const auto timed = choose(true);
  EXPECT_TRUE(path_exists(folder / "gemm.json"));
  EXPECT_EQ(choose(true), timed);
  // What the file holds is taken even where another is faster.
  std::string text = read_file(folder / "gemm.json");
  const size_t at = text.find(to_hex(timed));
  ASSERT_NE(at, std::string::npos);
  write_file_atomic(folder / "gemm.json", text.replace(at, to_hex(timed).size(), to_hex(untimed)));
  EXPECT_EQ(choose(true), untimed);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tokamak::gpu

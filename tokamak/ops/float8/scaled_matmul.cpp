#include "tokamak/ops/float8/scaled_matmul.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

constexpr Variant kOneDnn{.name = "onednn",
                          .backend = "cpu",
                          .accepts = [](const void*, const KernelTypes&) -> std::string {
#ifndef TOK_WITH_ONEDNN
                            return "built without oneDNN";
#else
                            return {};
#endif
                          },
                          .workspace = [](const void*, const KernelTypes& types,
                                          const Target&) { return decoded_bytes(types); }};

bool has_parts(ScaleGrid grid) {
  return grid == ScaleGrid::kSegments || grid == ScaleGrid::kBlocks;
}

// Returns why devices do not multiply these quantized values, or "".
std::string refused_by_devices(const ScaledMatmul& op, const KernelTypes& types) {
  if (op.emulate) return "quantize.linear.float8.emulate is set";
  if (types.in[0].dtype == DType::kE5M2 && types.in[2].dtype == DType::kE5M2)
    return "no device multiplies E5M2 by E5M2";
  if (types.in[0].dims.back() % 16 != 0 || types.in[2].dims[0] % 16 != 0)
    return "dims are no multiples of 16";
  if (op.a_grid == ScaleGrid::kMx) return "scales are by 1x32";
  if (!has_parts(op.a_grid) && !has_parts(op.b_grid)) return {};
  if (op.a_grid != ScaleGrid::kSegments || !has_parts(op.b_grid))
    return "no library has these grids together";
  if (rows_of(types.in[0]) % 4 != 0 || types.in[2].dims[0] % 4 != 0)
    return "scales are not rows of whole 16-byte words";
  return {};
}

// Returns whether tiles of 192 x 256 keep the 66 pairs of multiprocessors of a Hopper GPU busy, of
// which the last round may be short.
bool fills_rounds(int64_t m, int64_t n) {
  constexpr int64_t kPairs = 66;
  const int64_t tiles = (m + 191) / 192 * ((n + 255) / 256);
  const int64_t rounds = (tiles + kPairs - 1) / kPairs;
  return rounds == 1 || 4 * tiles >= 3 * rounds * kPairs;
}

constexpr Variant kWgmma{
    .name = "wgmma_fp8",
    .backend = "gpu",
    .library = "sm_90a",
    .accepts = [](const void* op, const KernelTypes& types) -> std::string {
      const auto& mine = *static_cast<const ScaledMatmul*>(op);
      if (auto reason = refused_by_devices(mine, types); !reason.empty()) return reason;
      if (mine.a_grid != ScaleGrid::kSegments || mine.b_grid != ScaleGrid::kBlocks)
        return "is for segments by blocks";
      if (types.in.size() == 5) return "adds no bias";
      if (types.in[2].dtype != DType::kE4M3) return "wants b in E4M3";
      if (!fills_rounds(rows_of(types.in[0]), types.in[2].dims[0]))
        return "the last round of tiles would leave most multiprocessors idle";
      return {};
    }};

constexpr Variant kCublas{
    .name = "cublaslt_fp8",
    .backend = "gpu",
    .library = "cublaslt",
    .accepts = [](const void* op, const KernelTypes& types) -> std::string {
      return refused_by_devices(*static_cast<const ScaledMatmul*>(op), types);
    },
    .workspace = [](const void*, const KernelTypes&, const Target&) { return kCublasWorkspace; }};

// Scales by 1x32 want tensor cores of sm_100 or newer; see Target::lacks.
constexpr Variant kCublasMx{
    .name = "cublaslt_mx",
    .backend = "gpu",
    .library = "cublaslt_mx",
    .accepts = [](const void* op, const KernelTypes& types) -> std::string {
      const auto& mine = *static_cast<const ScaledMatmul*>(op);
      if (mine.emulate) return "quantize.linear.mx.emulate is set";
      if (mine.a_grid != ScaleGrid::kMx) return "scales are not by 1x32";
      if (types.in[0].dtype == DType::kE5M2 && types.in[2].dtype == DType::kE5M2)
        return "no device multiplies E5M2 by E5M2";
      if (types.in[0].dims.back() % kMxBlock != 0 || types.in[2].dims[0] % 16 != 0)
        return "dims are no multiples of 32 and 16";
      return {};
    },
    .workspace = [](const void*, const KernelTypes&, const Target&) { return kCublasWorkspace; }};

void require_scales(const TensorType& scales, ScaleGrid grid, int64_t rows, int64_t columns) {
  const TensorType want{.dtype = scale_type(grid), .dims = scale_dims(grid, rows, columns)};
  TOK_REQUIRE(scales == want, "scaled_matmul: scales by {} want {}, got {}", name_of(grid),
              to_string(want), to_string(scales));
}

}  // namespace

int64_t decoded_bytes(const KernelTypes& types) {
  const int64_t sums = types.out[0].dtype == DType::kF32 ? 0 : types.out[0].numel();
  return (types.in[0].numel() + types.in[2].numel() + sums) * size_of(DType::kF32);
}

Types ScaledMatmul::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 4, 5);
  for (const TensorType& quantized : {in[0], in[2]})
    TOK_REQUIRE(is_scaled(quantized.dtype) && !quantized.dims.empty(),
                "scaled_matmul: wanted quantized values, got {}", to_string(quantized));
  TOK_REQUIRE(in[2].dims.size() == 2 && in[0].dims.back() == in[2].dims[1],
              "scaled_matmul: inner dims differ: a is {}, b is {}", to_string(in[0].dims),
              to_string(in[2].dims));
  TOK_REQUIRE(out == DType::kF32 || out == DType::kBF16,
              "scaled_matmul: returns float32 or bfloat16");
  TOK_REQUIRE((a_grid == ScaleGrid::kMx) == (b_grid == ScaleGrid::kMx),
              "scaled_matmul: scales by {} and by {} do not go together", name_of(a_grid),
              name_of(b_grid));
  const int64_t n = in[2].dims[0];
  require_scales(in[1], a_grid, rows_of(in[0]), in[0].dims.back());
  require_scales(in[3], b_grid, n, in[2].dims[1]);
  TOK_REQUIRE(in.size() < 5 || in[4] == (TensorType{.dtype = out, .dims = {n}}),
              "scaled_matmul: bias wants {}[{}], got {}", name_of(out), n, to_string(in[4]));
  Dims dims = in[0].dims;
  dims.back() = n;
  return {{.dtype = out, .dims = dims}};
}

std::vector<Strategy> ScaledMatmul::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 1)};
}

Cost ScaledMatmul::cost(std::span<const TensorType> in, std::span<const TensorType> yields) const {
  Cost cost = memory_cost(in, yields, 0.0);
  cost.kind = Cost::Kind::kGemm;
  cost.product = product;
  cost.dtype = emulate ? DType::kF32 : in[0].dtype;
  cost.scales = std::max(cost_scales(a_grid), cost_scales(b_grid));
  cost.row_widths = in[0].dims.back() | in[2].dims[0] | in[2].dims[1];
  cost.m = rows_of(in[0]);
  cost.n = in[2].dims[0];
  cost.k = in[2].dims[1];
  cost.flops =
      2.0 * static_cast<double>(cost.m) * static_cast<double>(cost.n) * static_cast<double>(cost.k);
  return cost;
}

std::string ScaledMatmul::describe() const {
  return fmt::format("{} by {}{}", name_of(a_grid), name_of(b_grid),
                     fast_accumulation ? ", fast accumulation" : "");
}

std::span<const Variant> ScaledMatmul::variants() {
  static constexpr std::array kVariants{kOneDnn, kCpuReference, kWgmma,
                                        kCublas, kCublasMx,     kGpuKernel};
  return kVariants;
}

}  // namespace tokamak

#include <algorithm>
#include <optional>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "tokamak/core/error.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/cpu/gemm_widened.h"

// The bf16 call behind oneDNN's inner products, exported but in no header; null where missing.
extern "C" __attribute__((weak)) dnnl_status_t dnnl_gemm_bf16bf16f32(
    char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha, const void* a,
    dnnl_dim_t lda, const void* b, dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc);

namespace tokamak::cpu {
namespace {

dnnl::memory::data_type type_of(DType dtype) {
  TOK_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "GEMM of {}", name_of(dtype));
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

const dnnl::engine& engine() {
  static const dnnl::engine kEngine(dnnl::engine::kind::cpu, 0);
  return kEngine;
}

// `stride` is that of stored rows; 0: they are dense.
dnnl::memory::desc matrix(int64_t rows, int64_t cols, bool transposed, DType dtype,
                          int64_t stride = 0) {
  if (stride == 0) stride = transposed ? rows : cols;
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, cols}, type_of(dtype), strides};
}

// A primitive is empty where the library has none for this CPU: bf16 without AVX-512.
constexpr bool kMayBeEmpty = true;

dnnl::matmul::primitive_desc describe(const GemmShape& s, bool accumulate) {
  dnnl::primitive_attr attr;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const auto a = matrix(s.m, s.k, s.transpose_a, s.in, s.a_stride);
  const auto b = matrix(s.k, s.n, s.transpose_b, s.in);
  const auto c = matrix(s.m, s.n, false, s.out);
#if DNNL_VERSION_MAJOR >= 3
  if (s.bias) return {engine(), a, b, matrix(1, s.n, false, s.in), c, attr, kMayBeEmpty};
  return {engine(), a, b, c, attr, kMayBeEmpty};
#else
  const auto desc = s.bias ? dnnl::matmul::desc(a, b, matrix(1, s.n, false, s.in), c)
                           : dnnl::matmul::desc(a, b, c);
  return {desc, attr, engine(), kMayBeEmpty};
#endif
}

// oneDNN's BLAS call beats its matmul on plain layouts in fp32, by up to 1.3, except where B is
// transposed and A is tall (measured by bench/gemm_bench.cpp).
bool is_for_blas(const GemmShape& s) {
  return s.in == DType::kF32 && s.out == DType::kF32 && !s.bias && (!s.transpose_b || s.m < 32);
}

void run_blas(const GemmShape& s, const void* a, const void* b, void* c, bool accumulate) {
  const dnnl::status status =
      dnnl::sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m, s.n, s.k, 1.0F,
                  static_cast<const float*>(a), s.row_of_a(), static_cast<const float*>(b),
                  s.transpose_b ? s.k : s.n, accumulate ? 1.0F : 0.0F, static_cast<float*>(c), s.n);
  TOK_CHECK(status == dnnl::status::success, "sgemm: status {}", static_cast<int>(status));
}

struct Matmul {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul overwrite;
  dnnl::matmul add;

  Matmul(const dnnl::matmul::primitive_desc& overwrites, const dnnl::matmul::primitive_desc& adds)
      : description(overwrites), overwrite(overwrites), add(adds) {}
};

// A bf16 weight gradient is faster by that call than by matmul, most of all where it accumulates;
// only an overwritten result much larger than the inputs is slower.
bool is_for_bf16_gemm(const GemmShape& s, bool accumulate) {
  return s.in == DType::kBF16 && s.out == DType::kF32 && s.transpose_a && !s.transpose_b &&
         !s.bias && (accumulate || std::max(s.m, s.n) <= 4 * s.k);
}

// Returns whether the library has the call and accepted it.
bool run_bf16_gemm(const GemmShape& s, const void* a, const void* b, void* c, bool accumulate) {
  return dnnl_gemm_bf16bf16f32 != nullptr &&
         dnnl_gemm_bf16bf16f32('T', 'N', s.m, s.n, s.k, 1.0F, a, s.row_of_a(), b, s.n,
                               accumulate ? 1.0F : 0.0F, static_cast<float*>(c),
                               s.n) == dnnl_success;
}

}  // namespace

struct Gemm::Impl {
  enum class Way : uint8_t { kMatmul, kBlas, kWidened };

  GemmShape shape;
  Way way = Way::kMatmul;
  std::optional<Matmul> matmul;

  explicit Impl(const GemmShape& s) : shape(s) {
    if (is_for_blas(s)) {
      way = Way::kBlas;
    } else if (const auto overwrites = describe(s, false), adds = describe(s, true);
               overwrites && adds) {
      matmul.emplace(overwrites, adds);
    } else {
      way = Way::kWidened;
    }
  }
};

Gemm::Gemm(const GemmShape& shape) {
  try {
    impl_ = std::make_shared<const Impl>(shape);
  } catch (const dnnl::error& error) {  // mostly for want of memory for its code
    throw SystemError(fmt::format("oneDNN has made no matmul of {} x {} x {}: {}", shape.m, shape.n,
                                  shape.k, error.message));
  }
}

void Gemm::run(const void* a, const void* b, const void* bias, void* c, bool accumulate) const {
  const GemmShape& shape = impl_->shape;
  using Way = Impl::Way;
  if (impl_->way == Way::kBlas) return run_blas(shape, a, b, c, accumulate);
  if (impl_->way == Way::kWidened) return run_widened(shape, a, b, bias, c, accumulate);
  if (is_for_bf16_gemm(shape, accumulate) && run_bf16_gemm(shape, a, b, c, accumulate)) return;
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));
  };
  dnnl::stream stream(engine());
  const auto& [description, overwrite, add] = *impl_->matmul;
  std::unordered_map<int, dnnl::memory> args{
      {DNNL_ARG_SRC, memory(description.src_desc(), a)},
      {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), b)},
      {DNNL_ARG_DST, memory(description.dst_desc(), c)}};
  if (shape.bias) args.emplace(DNNL_ARG_BIAS, memory(description.bias_desc(), bias));
  (accumulate ? add : overwrite).execute(stream, args);
}

bool Gemm::is_available() {
  return true;
}

std::string Gemm::instruction_set() {
  return fmt::format("{:#x}", static_cast<int>(dnnl::get_effective_cpu_isa()));
}

}  // namespace tokamak::cpu

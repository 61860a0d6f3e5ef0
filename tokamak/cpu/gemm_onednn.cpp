#include <optional>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "tokamak/core/error.h"
#include "tokamak/cpu/gemm.h"

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

dnnl::memory::desc matrix(int64_t rows, int64_t cols, bool transposed, DType dtype) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{cols, 1};
  return {{rows, cols}, type_of(dtype), strides};
}

dnnl::matmul::primitive_desc describe(const GemmShape& s, bool accumulate) {
  dnnl::primitive_attr attr;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const auto a = matrix(s.m, s.k, s.transpose_a, s.in);
  const auto b = matrix(s.k, s.n, s.transpose_b, s.in);
  const auto c = matrix(s.m, s.n, false, s.out);
  if (!s.bias) return {dnnl::matmul::desc(a, b, c), attr, engine()};
  return {dnnl::matmul::desc(a, b, matrix(1, s.n, false, s.in), c), attr, engine()};
}

// oneDNN's BLAS call beats its matmul on plain layouts in fp32, by up to 1.3, except where B is
// transposed and A is tall (measured by bench/gemm_bench.cpp).
bool is_for_blas(const GemmShape& s) {
  return s.in == DType::kF32 && s.out == DType::kF32 && !s.bias && (!s.transpose_b || s.m < 32);
}

void run_blas(const GemmShape& s, const void* a, const void* b, void* c, bool accumulate) {
  const dnnl::status status = dnnl::sgemm(
      s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m, s.n, s.k, 1.0F,
      static_cast<const float*>(a), s.transpose_a ? s.m : s.k, static_cast<const float*>(b),
      s.transpose_b ? s.k : s.n, accumulate ? 1.0F : 0.0F, static_cast<float*>(c), s.n);
  TOK_CHECK(status == dnnl::status::success, "sgemm: status {}", static_cast<int>(status));
}

struct Matmul {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul overwrite;
  dnnl::matmul add;

  explicit Matmul(const GemmShape& s)
      : description(describe(s, false)), overwrite(description), add(describe(s, true)) {}
};

// A weight gradient that overwrites is faster in bf16 as oneDNN's inner product, which reads both
// operands by rows of tokens; it cannot add.
bool is_for_inner_product(const GemmShape& s) {
  return s.in == DType::kBF16 && s.transpose_a && !s.transpose_b && !s.bias;
}

struct InnerProductGrad {
  dnnl::inner_product_backward_weights::primitive_desc description;
  dnnl::inner_product_backward_weights run;

  explicit InnerProductGrad(const GemmShape& s) : description(describe(s)), run(description) {}

  static dnnl::inner_product_backward_weights::primitive_desc describe(const GemmShape& s) {
    const auto x = matrix(s.k, s.n, false, s.in);
    const auto dy = matrix(s.k, s.m, false, s.in);
    const dnnl::inner_product_forward::primitive_desc forward(
        dnnl::inner_product_forward::desc(dnnl::prop_kind::forward_training, x,
                                          matrix(s.m, s.n, false, s.in), dy),
        engine());
    return {dnnl::inner_product_backward_weights::desc(x, matrix(s.m, s.n, false, s.out), dy),
            engine(), forward};
  }
};

}  // namespace

struct Gemm::Impl {
  GemmShape shape;
  std::optional<Matmul> matmul;
  std::optional<InnerProductGrad> inner_product;

  explicit Impl(const GemmShape& s) : shape(s) {
    if (!is_for_blas(s)) matmul.emplace(s);
    if (is_for_inner_product(s)) inner_product.emplace(s);
  }
};

Gemm::Gemm(const GemmShape& shape) : impl_(std::make_shared<const Impl>(shape)) {}

void Gemm::run(const void* a, const void* b, const void* bias, void* c, bool accumulate) const {
  if (!impl_->matmul) {
    run_blas(impl_->shape, a, b, c, accumulate);
    return;
  }
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));
  };
  dnnl::stream stream(engine());
  if (impl_->inner_product && !accumulate) {
    const auto& d = impl_->inner_product->description;
    impl_->inner_product->run.execute(stream,
                                      {{DNNL_ARG_SRC, memory(d.src_desc(), b)},
                                       {DNNL_ARG_DIFF_DST, memory(d.diff_dst_desc(), a)},
                                       {DNNL_ARG_DIFF_WEIGHTS, memory(d.diff_weights_desc(), c)}});
    return;
  }
  const auto& [description, overwrite, add] = *impl_->matmul;
  std::unordered_map<int, dnnl::memory> args{
      {DNNL_ARG_SRC, memory(description.src_desc(), a)},
      {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), b)},
      {DNNL_ARG_DST, memory(description.dst_desc(), c)}};
  if (impl_->shape.bias) args.emplace(DNNL_ARG_BIAS, memory(description.bias_desc(), bias));
  (accumulate ? add : overwrite).execute(stream, args);
}

bool Gemm::is_available() {
  return true;
}

}  // namespace tokamak::cpu

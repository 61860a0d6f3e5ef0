// Rates of attention by shape, beside the rate of dense products of the same machine: GFLOP/s
// counts the op's own price (the causal half only).
#include <algorithm>

#include <benchmark/benchmark.h>

#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/ops/attention/attention.h"

namespace tokamak {
namespace {

struct Shape {
  int64_t B, S, T, H, K, D;
};

class Operands {
 public:
  Operands(Backend& backend, std::span<const TensorType> types) {
    for (const TensorType& type : types) {
      memory_.push_back(backend.allocate(type.bytes()));
      tensors_.push_back(
          {.data = memory_.back()->data(), .type = type, .strides = row_major(type.dims)});
      fill(tensors_.back());
    }
  }

  std::span<const Tensor> tensors() const { return tensors_; }

 private:
  static void fill(const Tensor& t) {
    for (int64_t i = 0; i < t.numel(); ++i) {
      const auto x =
          static_cast<float>(2.0 * to_uniform(static_cast<uint32_t>(i) * 0x9E3779B9U) - 1.0);
      if (t.type.dtype == DType::kF32) t.as<float>()[i] = x;
      if (t.type.dtype == DType::kBF16) t.as<BF16>()[i] = BF16(x);
      if (t.type.dtype == DType::kI64) t.as<int64_t>()[i] = i;
    }
  }

  std::vector<std::unique_ptr<Allocation>> memory_;
  std::vector<Tensor> tensors_;
};

void count(benchmark::State& state, const char* name, double each) {
  state.counters[name] = benchmark::Counter(each * 1e-9 * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

template <class T>
void run(benchmark::State& state, const T& op, const Types& in) {
  const auto backend = cpu::make_backend();
  const Types out = op.infer(in);
  const auto all = T::variants();
  const Variant& variant = *std::find_if(
      all.begin(), all.end(), [](const Variant& v) { return v.backend == kCpuReference.backend; });
  const KernelTypes types{.in = in, .out = out};
  const Kernel kernel = backend->prepare(kRules<T>, &op, types, variant.name);
  const Operands inputs(*backend, in);
  const Operands outputs(*backend, out);
  if (in.back().dtype == DType::kI32)
    inputs.tensors().back().as<int32_t>()[0] = static_cast<int32_t>(in[1].dims[1]);
  const auto scratch = backend->allocate(variant.workspace(&op, types, backend->target()));
  const KernelArgs args{
      .in = inputs.tensors(), .out = outputs.tensors(), .workspace = scratch->data()};
  for (auto _ : state) {
    kernel(args);
    benchmark::ClobberMemory();
  }
  count(state, "GFLOP/s", op.cost(in, out).flops);
  count(state, "GB/s", op.cost(in, out).bytes_read);
}

void run_gemm(benchmark::State& state, DType dtype) {
  constexpr int64_t kSize = 1024;
  if (!cpu::Gemm::is_available()) {
    state.SkipWithError("built without oneDNN");
    return;
  }
  const auto backend = cpu::make_backend();
  const TensorType type{.dtype = dtype, .dims = {kSize, kSize}};
  const Types types{type, type, type};
  const Operands x(*backend, types);
  const cpu::Gemm gemm({.m = kSize, .n = kSize, .k = kSize, .in = dtype, .out = dtype});
  const auto t = x.tensors();
  for (auto _ : state) gemm.run(t[0].data, t[1].data, nullptr, t[2].data, false);
  count(state, "GFLOP/s", 2.0 * kSize * kSize * kSize);
}

template <class F>
void add(const std::string& name, F&& f) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<F>(f))
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void add_shape(const Shape& s, DType dtype, double dropout) {
  const TensorType q{.dtype = dtype, .dims = {s.B, s.S, s.H, s.D}};
  const TensorType k{.dtype = dtype, .dims = {s.B, s.T, s.K, s.D}};
  const TensorType lse{.dtype = DType::kF32, .dims = {s.B, s.H, s.S}};
  const TensorType rows{.dtype = DType::kI64, .dims = {s.B}};
  const std::string name = fmt::format("B{}_S{}_T{}_H{}_K{}_D{}{}/{}", s.B, s.S, s.T, s.H, s.K, s.D,
                                       dropout > 0.0 ? "_dropout" : "", name_of(dtype));
  const Attention op{.dropout_p = dropout};
  Types in{q, k, k};
  Types grad_in{q, k, k, q, lse, q};
  if (dropout > 0.0) in.push_back(rows);
  if (dropout > 0.0) grad_in.push_back(rows);
  add("forward/" + name, [=](benchmark::State& state) { run(state, op, in); });
  add("backward/" + name,
      [=](benchmark::State& state) { run(state, AttentionGrad{.forward = op}, grad_in); });
}

void add_decode(const Shape& s, DType dtype) {
  const TensorType k{.dtype = dtype, .dims = {s.B, s.T, s.K, s.D}};
  const Types in{
      {.dtype = dtype, .dims = {s.B, 1, s.H, s.D}}, k, k, {.dtype = DType::kI32, .dims = {1}}};
  add(fmt::format("decode/B{}_T{}_H{}_K{}_D{}/{}", s.B, s.T, s.H, s.K, s.D, name_of(dtype)),
      [=](benchmark::State& state) { run(state, Attention{.has_length = true}, in); });
}

void add_all(DType dtype) {
  add(fmt::format("onednn_1024/{}", name_of(dtype)),
      [=](benchmark::State& state) { run_gemm(state, dtype); });
  add_shape({4, 512, 512, 12, 12, 64}, dtype, 0.0);
  add_shape({4, 512, 512, 12, 4, 64}, dtype, 0.0);
  add_shape({4, 512, 512, 12, 12, 64}, dtype, 0.1);
  add_shape({1, 2048, 2048, 12, 12, 64}, dtype, 0.0);
  add_shape({1, 2048, 2048, 8, 2, 128}, dtype, 0.0);
  add_shape({1, 8192, 8192, 2, 2, 128}, dtype, 0.0);
  add_decode({1, 1, 2048, 32, 8, 64}, dtype);
  add_decode({1, 1, 2048, 12, 12, 64}, dtype);
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  for (const tokamak::DType dtype : {tokamak::DType::kF32, tokamak::DType::kBF16})
    tokamak::add_all(dtype);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

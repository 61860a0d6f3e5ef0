// The products of a Llama of 768 wide, mlp 2,048, vocabulary 16,384 at 2,048 tokens (the head in
// chunks of 32 MiB of logits), beside oneDNN's best rate: matmul on layouts of its own choice, the
// packing of row-major inputs into them not counted (best) or counted (packed). GFLOP/s by wall
// clock; with OMP_NUM_THREADS=1 the CPU column is fit for a busy machine.
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {
namespace {

void report(benchmark::State& state, const GemmShape& s) {
  const double flops = 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k);
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Zeros at an address as an arena's tensors have, a multiple of 512.
class Buffer {
 public:
  Buffer(int64_t elements, DType dtype)
      : bytes_(static_cast<size_t>(elements * size_of(dtype)) + kAlignment) {}

  std::byte* data() {
    void* at = bytes_.data();
    size_t space = bytes_.size();
    return static_cast<std::byte*>(std::align(kAlignment, 1, at, space));
  }

 private:
  static constexpr size_t kAlignment = 512;
  std::vector<std::byte> bytes_;
};

void run_ours(benchmark::State& state, const GemmShape& s, bool accumulate) {
  Buffer a(s.m * s.k, s.in);
  Buffer b(s.k * s.n, s.in);
  Buffer c(s.m * s.n, s.out);
  const Gemm gemm(s);
  for (auto _ : state) gemm.run(a.data(), b.data(), nullptr, c.data(), accumulate);
  report(state, s);
}

dnnl::memory zeros(const dnnl::memory::desc& desc, const dnnl::engine& engine) {
  dnnl::memory memory(desc, engine);
  std::fill_n(static_cast<std::byte*>(memory.get_data_handle()), desc.get_size(), std::byte{});
  return memory;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// An input as it lies in a training step, and its copy in the layout that the product chose.
struct Input {
  dnnl::memory plain;
  dnnl::memory chosen;
  dnnl::reorder pack;

  Input(int64_t rows, int64_t cols, bool transposed, DType dtype, const dnnl::memory::desc& desc,
        const dnnl::engine& engine)
      : plain(zeros({{rows, cols},
                     type_of(dtype),
                     transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{cols, 1}},
                    engine)),
        chosen(zeros(desc, engine)),
        pack(plain, chosen) {}

  bool is_packed() const { return plain.get_desc() != chosen.get_desc(); }
};

void run_best(benchmark::State& state, const GemmShape& s, bool accumulate, bool count_packing) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto any = [](int64_t rows, int64_t cols, DType dtype) {
    return dnnl::memory::desc({rows, cols}, type_of(dtype), dnnl::memory::format_tag::any);
  };
  const dnnl::memory::desc c({s.m, s.n}, type_of(s.out), dnnl::memory::format_tag::ab);
  dnnl::primitive_attr attr;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  constexpr bool kMayBeEmpty = true;
  const dnnl::matmul::primitive_desc description(
      dnnl::matmul::desc(any(s.m, s.k, s.in), any(s.k, s.n, s.in), c), attr, engine, kMayBeEmpty);
  if (!description) return state.SkipWithError("oneDNN has no such product for this CPU");
  const dnnl::matmul product(description);
  dnnl::stream stream(engine);
  Input a(s.m, s.k, s.transpose_a, s.in, description.src_desc(), engine);
  Input b(s.k, s.n, s.transpose_b, s.in, description.weights_desc(), engine);
  const std::unordered_map<int, dnnl::memory> args{
      {DNNL_ARG_SRC, a.chosen},
      {DNNL_ARG_WEIGHTS, b.chosen},
      {DNNL_ARG_DST, zeros(description.dst_desc(), engine)}};
  for (auto _ : state) {
    for (Input* input : {&a, &b}) {
      if (count_packing && input->is_packed())
        input->pack.execute(stream, input->plain, input->chosen);
    }
    product.execute(stream, args);
  }
  report(state, s);
}

void add(const std::string& name, const GemmShape& shape, bool accumulate) {
  benchmark::RegisterBenchmark((name + "/ours").c_str(), [=](benchmark::State& state) {
    run_ours(state, shape, accumulate);
  })->UseRealTime();
  benchmark::RegisterBenchmark((name + "/best").c_str(), [=](benchmark::State& state) {
    run_best(state, shape, accumulate, false);
  })->UseRealTime();
  benchmark::RegisterBenchmark((name + "/packed").c_str(), [=](benchmark::State& state) {
    run_best(state, shape, accumulate, true);
  })->UseRealTime();
}

// N tokens, I in features, O out features.
void add_layer(const std::string& layer, DType dtype, int64_t N, int64_t O, int64_t I) {
  const std::string name = layer + "/" + std::string(name_of(dtype));
  add(name + "/forward", {.m = N, .n = O, .k = I, .transpose_b = true, .in = dtype, .out = dtype},
      false);
  add(name + "/grad_input", {.m = N, .n = I, .k = O, .in = dtype, .out = dtype}, false);
  const GemmShape grad_weight{.m = O, .n = I, .k = N, .transpose_a = true, .in = dtype};
  add(name + "/grad_weight", grad_weight, false);
  add(name + "/grad_weight_add", grad_weight, true);
}

}  // namespace
}  // namespace tokamak::cpu

int main(int argc, char** argv) {
  using tokamak::DType;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    tokamak::cpu::add_layer("attention", dtype, 2048, 768, 768);
    tokamak::cpu::add_layer("mlp_up", dtype, 2048, 2048, 768);
    tokamak::cpu::add_layer("mlp_down", dtype, 2048, 768, 2048);
    tokamak::cpu::add_layer("head", dtype, dtype == DType::kF32 ? 512 : 1024, 16384, 768);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}

// Rates of the memory-bound ops at a training shape (2,048 tokens, 768 wide, mlp 2,048), beside the
// rate of a copy of the same size: GB/s counts the op's own price (cost().bytes_*).
#include <benchmark/benchmark.h>

#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/ops/table.h"

namespace tokamak {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kSequence = 512;
constexpr int64_t kEmbed = 768;
constexpr int64_t kMlp = 2048;
constexpr int64_t kVocab = 16384;

TensorType tensor(DType dtype, Dims dims) {
  return {.dtype = dtype, .dims = std::move(dims)};
}

TensorType tokens() {
  return tensor(DType::kI32, {kBatch, kSequence});
}

// Tensors of random content, each in its own allocation.
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
      const uint32_t word = static_cast<uint32_t>(i) * 0x9E3779B9U;
      const auto x = static_cast<float>(2.0 * to_uniform(word) - 1.0);
      if (t.type.dtype == DType::kF32) t.as<float>()[i] = x;
      if (t.type.dtype == DType::kBF16) t.as<BF16>()[i] = BF16(x);
      if (t.type.dtype == DType::kF64) t.as<double>()[i] = 0.5;
      if (t.type.dtype == DType::kI32) t.as<int32_t>()[i] = static_cast<int32_t>(word % kSequence);
      if (t.type.dtype == DType::kI64) t.as<int64_t>()[i] = i;
    }
  }

  std::vector<std::unique_ptr<Allocation>> memory_;
  std::vector<Tensor> tensors_;
};

template <class T>
void run(benchmark::State& state, const T& op, const Types& in, bool accumulate) {
  const auto backend = cpu::make_backend();
  const Types out = op.infer(in);
  const Variant& variant = T::variants().front();
  const KernelTypes types{.in = in, .out = out};
  const Kernel kernel = backend->prepare(kRules<T>, &op, types, variant.name);
  const Operands inputs(*backend, in);
  const Operands outputs(*backend, out);
  const int64_t scratch_bytes =
      variant.workspace == nullptr ? 0 : variant.workspace(&op, types, backend->target());
  const auto scratch = backend->allocate(std::max<int64_t>(scratch_bytes, 1));
  KernelArgs args{.in = inputs.tensors(), .out = outputs.tensors(), .workspace = scratch->data()};
  args.accumulate.fill(accumulate);
  for (auto _ : state) {
    kernel(args);
    benchmark::ClobberMemory();
  }
  const Cost cost = op.cost(in, out);
  const double bytes = cost.bytes_read + cost.bytes_written;
  state.counters["GB/s"] = benchmark::Counter(
      bytes * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

template <class T>
void add(const std::string& name, const T& op, const Types& in, bool accumulate = false) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { run(state, op, in, accumulate); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void add_all(DType dtype) {
  const std::string suffix = "/" + std::string(name_of(dtype));
  const TensorType x = tensor(dtype, {kBatch, kSequence, kEmbed});
  const TensorType wide = tensor(dtype, {kBatch, kSequence, kMlp});
  const TensorType heads = tensor(dtype, {kBatch, kSequence, kEmbed / 64, 64});
  const TensorType w = tensor(dtype, {kEmbed});
  const TensorType table = tensor(dtype, {kVocab, kEmbed});
  const TensorType samples = tensor(DType::kI64, {kBatch});
  add("copy" + suffix, Cast{.dtype = dtype}, {x});
  add("add" + suffix, Add{}, {x, x});
  add("accumulate" + suffix, Accumulate{}, {x}, true);
  add("accumulate_table" + suffix, Accumulate{}, {table}, true);
  add("cast_table_to_bf16" + suffix, Cast{.dtype = DType::kBF16}, {table});
  add("embedding" + suffix, Embedding{}, {tokens(), table});
  add("embedding_grad" + suffix, EmbeddingGrad{.vocab = kVocab}, {tokens(), x});
  add("embedding_grad_accumulate" + suffix, EmbeddingGrad{.vocab = kVocab}, {tokens(), x}, true);
  add("rms_norm" + suffix, RmsNorm{}, {x, w});
  add("rms_norm_grad" + suffix, RmsNormGrad{}, {x, w, x});
  add("layer_norm" + suffix, LayerNorm{}, {x, w, w});
  add("layer_norm_grad" + suffix, LayerNormGrad{}, {x, w, x});
  add("rope" + suffix, Rope{}, {heads, tokens()});
  add("swiglu" + suffix, Swiglu{}, {wide, wide});
  add("swiglu_grad" + suffix, SwigluGrad{}, {wide, wide, wide});
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
    const std::string form = "_" + std::string(name_of(kind)) + suffix;
    add("gelu" + form, Gelu{.kind = kind}, {wide});
    add("gelu_grad" + form, GeluGrad{.kind = kind}, {wide, wide});
  }
  add("dropout" + suffix, Dropout{.p = 0.1}, {x, samples});
  const TensorType logits = tensor(dtype, {kSequence, kVocab});
  const TensorType labels = tensor(DType::kI32, {kSequence});
  const TensorType stats = tensor(DType::kF32, {kSequence, 3});
  const TensorType one = tensor(DType::kF32, {1});
  add("softmax_stats" + suffix, SoftmaxStats{}, {logits, labels});
  add("cross_entropy_grad" + suffix, CrossEntropyGrad{}, {logits, labels, stats, one});
  add("sum_squares" + suffix, SumSquares{}, {table});
  add("adamw" + suffix, AdamW{},
      {table, table, table, tensor(DType::kF32, table.dims), tensor(DType::kF64, {4}), one});
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  tokamak::add_all(tokamak::DType::kF32);
  tokamak::add_all(tokamak::DType::kBF16);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}

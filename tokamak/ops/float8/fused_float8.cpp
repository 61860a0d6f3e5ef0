#include "tokamak/ops/float8/fused_float8.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/norm/norm.h"

namespace tokamak {
namespace {

constexpr int64_t kAlignment = 64;

const FusedFloat8& as_fused(const void* op) {
  return *static_cast<const FusedFloat8*>(op);
}

int64_t workspace_of_first(const FusedFloat8& op, const KernelTypes& types, const Target& target,
                           std::string_view variant) {
  const Types out = op.first_outputs(types.in);
  const KernelTypes of_first{.in = types.in.first(op.num_first_inputs(types.in.size())),
                             .out = out};
  for (const Variant& v : op.first.rules->variants()) {
    if (v.name == variant)
      return v.workspace == nullptr ? 0 : v.workspace(op.first.op.get(), of_first, target);
  }
  return 0;
}

Types infer_reader(const Float8Reader& reader, const Types& in) {
  return std::visit([&](const auto& op) { return op.infer(in); }, reader.op);
}

bool is_plain_maximum(const Float8Reader& reader) {
  const auto* amax = std::get_if<Amax>(&reader.op);
  return amax != nullptr && amax->grid == ScaleGrid::kTensor && amax->rounds_to == DType::kF32 &&
         !amax->is_gated;
}

// Whether tiles of values have the scales or maxima of this reader: those of a tensor, of rows or
// of columns, which are known before.
bool is_known_before(const Float8Reader& reader) {
  const auto fits = [](ScaleGrid grid) {
    return grid == ScaleGrid::kTensor || grid == ScaleGrid::kRows;
  };
  if (const auto* amax = std::get_if<Amax>(&reader.op))
    return fits(amax->grid) && amax->rounds_to == DType::kF32 && !reader.takes_maxima;
  const auto& quantize = std::get<Quantize>(reader.op);
  return fits(quantize.grid) && quantize.rounds_to == DType::kF32 && reader.takes_maxima;
}

// Whether tiles of values hold those of each scale of this reader.
bool is_of_segments(const Float8Reader& reader) {
  const Quantize* quantized = reader.quantized_in_one_pass();
  return quantized != nullptr && quantized->grid == ScaleGrid::kSegments;
}

std::string why_no_quantized_rows(const FusedFloat8& op) {
  const int y = output_with_maximum(op.first);
  if (op.is_gated()) {
    return op.readers.size() == 1 && op.readers[0].of == y
               ? ""
               : fmt::format("{} takes one maximum, of output {}", op.first.rules->name, y);
  }
  for (int k = 0; k < std::ssize(op.stores); ++k) {
    if (k != y && !op.stores[k]) return fmt::format("output {} is stored", k);
  }
  if (op.readers.size() != 1 || op.readers[0].of != y)
    return fmt::format("{} quantizes output {} alone, in one layout", op.first.rules->name, y);
  if (const Quantize* quantized = op.readers[0].delayed_rows())
    return quantized->format == DType::kE4M3 ? "" : "rows of gradients are not quantized";
  const Quantize* quantized = op.readers[0].quantized_in_one_pass();
  return quantized != nullptr && quantized->layout == Quantize::Layout::kRows &&
                 quantized->format == DType::kE4M3 &&
                 (quantized->grid == ScaleGrid::kRows || quantized->grid == ScaleGrid::kSegments)
             ? ""
             : "rows have only scales of rows and of their segments";
}

}  // namespace

const Quantize* Float8Reader::quantized_in_one_pass() const {
  const auto* quantized = std::get_if<Quantize>(&op);
  return quantized != nullptr && !takes_maxima && quantized->takes_maxima() &&
                 !quantized->is_delayed && quantized->rounds_to == DType::kF32
             ? quantized
             : nullptr;
}

bool Float8Reader::takes_row() const {
  if (const auto* amax = std::get_if<Amax>(&op)) return amax->is_gated;
  return std::get<Quantize>(op).is_delayed;
}

const Quantize* Float8Reader::delayed_rows() const {
  const auto* quantized = std::get_if<Quantize>(&op);
  return quantized != nullptr && quantized->is_delayed && takes_maxima &&
                 quantized->layout == Quantize::Layout::kRows && quantized->rounds_to == DType::kF32
             ? quantized
             : nullptr;
}

size_t FusedFloat8::num_first_inputs(size_t num_inputs) const {
  for (const Float8Reader& reader : readers) num_inputs -= reader.num_inputs();
  return num_inputs;
}

bool FusedFloat8::is_gated() const {
  return !readers.empty() && std::none_of(stores.begin(), stores.end(), [](bool b) { return b; }) &&
         std::all_of(readers.begin(), readers.end(), [](const Float8Reader& reader) {
           const auto* amax = std::get_if<Amax>(&reader.op);
           return amax != nullptr && amax->is_gated;
         });
}

Types FusedFloat8::first_outputs(std::span<const TensorType> in) const {
  return first.rules->infer(first.op.get(), in.first(num_first_inputs(in.size())));
}

const Amax* FusedFloat8::lone_maximum() const {
  const bool stores_all = std::all_of(stores.begin(), stores.end(), [](bool b) { return b; });
  if (!stores_all || readers.size() != 1 || readers[0].takes_maxima ||
      !is_plain_maximum(readers[0]))
    return nullptr;
  return &std::get<Amax>(readers[0].op);
}

Types FusedFloat8::infer(std::span<const TensorType> in) const {
  size_t own = 0;
  for (const Float8Reader& reader : readers) own += reader.num_inputs();
  TOK_REQUIRE(in.size() > own, "{}: wanted inputs of {} and {} of readers, got {}", kName,
              first.rules->name, own, in.size());
  const Types values = first_outputs(in);
  TOK_REQUIRE(values.size() == stores.size(), "{}: {} has {} outputs, {} may be stored", kName,
              first.rules->name, values.size(), stores.size());
  Types out;
  for (size_t k = 0; k < values.size(); ++k) {
    if (stores[k]) out.push_back(values[k]);
  }
  size_t next = in.size() - own;
  for (const Float8Reader& reader : readers) {
    TOK_REQUIRE(reader.of >= 0 && reader.of < std::ssize(values), "{}: {} has no output {}", kName,
                first.rules->name, reader.of);
    Types of{values[reader.of]};
    for (size_t k = 0; k < reader.num_inputs(); ++k) of.push_back(in[next++]);
    const Types made = infer_reader(reader, of);
    out.insert(out.end(), made.begin(), made.end());
  }
  return out;
}

std::vector<Strategy> FusedFloat8::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), infer(in).size())};
}

Cost FusedFloat8::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  // Tables have scales in all steps but the first.
  if (is_gated()) return memory_cost(in.subspan(num_first_inputs(in.size())), out, 0.0);
  Cost cost = memory_cost(in, out, 0.0);
  const Types values = first_outputs(in);
  const auto inputs = in.first(num_first_inputs(in.size()));
  cost.flops = first.rules->cost(first.op.get(), inputs, values).flops;
  for (const Float8Reader& reader : readers) {
    if (const auto* quantized = std::get_if<Quantize>(&reader.op))
      cost.scales = std::max(cost.scales, std::optional(cost_scales(quantized->grid)));
  }
  return cost;
}

std::vector<Alias> FusedFloat8::aliases() const {
  // The inputs of quantized values may be computed twice, from inputs that must still be there.
  const auto is_encoded = [&](int out) {
    return lone_maximum() == nullptr &&
           (quantizes_tiles(first) ||
            std::any_of(readers.begin(), readers.end(),
                        [&](const Float8Reader& reader) { return reader.of == out; }));
  };
  std::vector<Alias> all;
  for (Alias alias : first.rules->aliases(first.op.get())) {
    if (!stores[alias.out] || (!alias.must && is_encoded(alias.out))) continue;
    alias.out = static_cast<int>(std::count(stores.begin(), stores.begin() + alias.out, true));
    all.push_back(alias);
  }
  return all;
}

std::vector<int> FusedFloat8::accumulates() const {
  std::vector<int> all;
  for (const int out : first.rules->accumulates(first.op.get())) {
    if (stores[out])
      all.push_back(static_cast<int>(std::count(stores.begin(), stores.begin() + out, true)));
  }
  return all;
}

std::string FusedFloat8::describe() const {
  std::string text(first.rules->name);
  if (const std::string of = first.rules->describe(first.op.get()); !of.empty()) text += " " + of;
  for (const Float8Reader& reader : readers) {
    std::visit(
        [&]<class T>(const T& op) {
          text += fmt::format("; {} {} of {}", T::kName, op.describe(), reader.of);
        },
        reader.op);
  }
  return text;
}

std::span<const Variant> FusedFloat8::variants() {
  static constexpr std::array kVariants{
      Variant{.name = kCpuReference.name,
              .backend = kCpuReference.backend,
              .workspace =
                  [](const void* op, const KernelTypes& types, const Target& target) {
                    const FusedFloat8& fused = as_fused(op);
                    const Types values = fused.first_outputs(types.in);
                    int64_t bytes = 0;
                    for (size_t k = 0; k < values.size(); ++k) {
                      if (!fused.stores[k])
                        bytes += (values[k].bytes() + kAlignment - 1) / kAlignment * kAlignment;
                    }
                    return bytes + workspace_of_first(fused, types, target, kCpuReference.name);
                  }},
      Variant{
          .name = kGpuKernel.name,
          .backend = kGpuKernel.backend,
          .accepts = [](const void* op,
                        const KernelTypes& types) { return why_not_fused(as_fused(op), types.in); },
          .workspace =
              [](const void* op, const KernelTypes& types, const Target& target) {
                return workspace_of_first(as_fused(op), types, target, kGpuKernel.name);
              }}};
  return kVariants;
}

int output_with_maximum(const AnyOp& op) {
  if (op.as<AddRmsNorm>() != nullptr || op.as<AddLayerNorm>() != nullptr) return 1;
  if (op.as<RmsNorm>() != nullptr || op.as<LayerNorm>() != nullptr ||
      op.as<RmsNormGrad>() != nullptr || op.as<LayerNormGrad>() != nullptr ||
      op.as<Swiglu>() != nullptr || op.as<Gelu>() != nullptr || op.as<GeluGrad>() != nullptr ||
      op.as<Rope>() != nullptr || op.as<RopeConcat>() != nullptr)
    return 0;
  const auto* gates = op.as<SwigluGrad>();
  return gates != nullptr && gates->packed ? 0 : -1;
}

bool quantizes_rows(const AnyOp& op) {
  return op.as<RmsNorm>() != nullptr || op.as<AddRmsNorm>() != nullptr ||
         op.as<LayerNorm>() != nullptr || op.as<AddLayerNorm>() != nullptr ||
         op.as<Swiglu>() != nullptr || op.as<Gelu>() != nullptr;
}

bool quantizes_tiles(const AnyOp& op) {
  const auto* gates = op.as<SwigluGrad>();
  const auto* gelu = op.as<GeluGrad>();
  return (gates != nullptr && gates->packed && gates->kind == GateKind::kSilu) ||
         (gelu != nullptr && (gelu->kind == GeluKind::kTanh || gelu->kind == GeluKind::kExact));
}

bool stores_beside_tiles(const AnyOp& op, int out) {
  return out == 0 && op.as<GeluGrad>() != nullptr;
}

std::string why_not_fused(const FusedFloat8& op, std::span<const TensorType> in) {
  if (op.lone_maximum() != nullptr) {
    return op.readers[0].of == output_with_maximum(op.first)
               ? ""
               : fmt::format("{} takes no maximum of output {}", op.first.rules->name,
                             op.readers[0].of);
  }
  if (quantizes_rows(op.first)) return why_no_quantized_rows(op);
  if (!quantizes_tiles(op.first)) return fmt::format("{} quantizes nothing", op.first.rules->name);
  for (int k = 0; k < std::ssize(op.stores); ++k) {
    if (op.stores[k] && !stores_beside_tiles(op.first, k))
      return "values that are quantized are not stored";
  }
  if (op.first.as<GeluGrad>() != nullptr &&
      !std::all_of(op.readers.begin(), op.readers.end(),
                   [](const Float8Reader& reader) { return reader.takes_row(); }))
    return "gelu_grad quantizes under delayed scales only";
  if (!std::all_of(op.readers.begin(), op.readers.end(), is_known_before) &&
      !std::all_of(op.readers.begin(), op.readers.end(), is_of_segments))
    return "scales of tensors, rows and columns are known before, or all are of segments";
  if (is_of_segments(op.readers[0]) && in[1].dims.back() % kScaleBlock != 0)
    return fmt::format("segments of {} columns cross tiles", in[1].dims.back());
  const auto amaxes = std::count_if(op.readers.begin(), op.readers.end(), [](const auto& r) {
    return std::holds_alternative<Amax>(r.op);
  });
  if (amaxes != 0 && amaxes != std::ssize(op.readers))
    return "maxima or quantized values, not both";
  if (amaxes != 0 && op.readers[0].takes_row() != op.is_gated())
    return "maxima for want of a scale stand alone";
  for (size_t i = 0; i < op.readers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Float8Reader& a = op.readers[i];
      const Float8Reader& b = op.readers[j];
      if (a.of != b.of) continue;
      if (amaxes != 0) {
        const auto& x = std::get<Amax>(a.op);
        const auto& y = std::get<Amax>(b.op);
        if (x.grid == y.grid && x.transposed == y.transposed) return "one maximum twice";
        continue;
      }
      const auto& x = std::get<Quantize>(a.op);
      const auto& y = std::get<Quantize>(b.op);
      if (x.layout == y.layout || x.layout == Quantize::Layout::kBoth ||
          y.layout == Quantize::Layout::kBoth)
        return "one layout twice";
      if (x.format != y.format) return "one value in two formats";
      if (x.has_amax && y.has_amax) return "one maximum twice";
    }
    if (amaxes == 0 && op.readers[i].of > 0 &&
        std::get<Quantize>(op.readers[i].op).format != DType::kE4M3)
      return "an emitted value is not a gradient";
  }
  return "";
}

}  // namespace tokamak

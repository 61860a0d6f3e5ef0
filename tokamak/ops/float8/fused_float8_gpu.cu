#include "tokamak/ops/float8/fused_float8_gpu.cuh"
#include "tokamak/ops/float8/gate_tiles_gpu.cuh"
#include "tokamak/ops/float8/tile_segments_gpu.cuh"

namespace tokamak::gpu {
namespace {

template <class... Ops>
Kernel prepare_one_of(const AnyOp& op, const KernelTypes& types, const FusedOutput& fused,
                      const Setup& setup) {
  Kernel kernel;
  const auto prepare_as = [&](const auto* made) {
    if (made != nullptr) kernel = prepare_fused(*made, types, fused, setup);
  };
  (prepare_as(op.as<Ops>()), ...);
  return kernel;
}

FusedOutput output_of(const FusedFloat8& op, const Setup& setup) {
  const Float8Reader& reader = op.readers[0];
  FusedOutput fused{.stores = op.stores[reader.of]};
  if (const Quantize* codes = reader.codes_in_one_pass()) {
    fused.makes_codes = true;
    fused.of_segments = codes->grid == ScaleGrid::kSegments;
    fused.power_of_two = codes->power_of_two;
    fused.takes_columns = codes->has_amax;
    fused.most_blocks = most_blocks_of_rows(setup);
  } else {
    fused.takes_maximum = true;
  }
  return fused;
}

template <class T>
Gates<T> gates_of(const KernelArgs& args) {
  const Tensor& dy = args.in[1];
  const int64_t F = dy.dim(-1);
  return {.both = args.in[0].as<T>(), .dy = dy.as<T>(), .M = F == 0 ? 0 : dy.numel() / F, .F = F};
}

template <class T>
void take_maxima(const std::vector<Float8Reader>& readers, const KernelArgs& args) {
  TileMaxima of[2];
  for (size_t r = 0; r < readers.size(); ++r) {
    const auto& amax = std::get<Amax>(readers[r].op);
    auto* most = args.out[r].as<uint32_t>();
    clear_maxima(most, args.out[r].numel(), args.stream);
    TileMaxima& mine = of[readers[r].of];
    (amax.grid == ScaleGrid::kTensor ? mine.all
     : amax.transposed               ? mine.columns
                                     : mine.rows) = most;
  }
  const Gates<T> gates = gates_of<T>(args);
  if (gates.M * gates.F > 0) launch_gate_maxima(gates, of[0], of[1], as_stream(args.stream));
}

struct InverseScales {
  const float* amax;
  float* inverse;
  bool is_e4m3, power_of_two;

  __device__ void operator()(int64_t i) const {
    inverse[i] = 1.0F / (is_e4m3 ? scale_of<E4M3>(amax[i], power_of_two)
                                 : scale_of<E5M2>(amax[i], power_of_two));
  }
};

// The two outputs' codes, as the readers want them.
struct GateLayouts {
  TileLayouts d, y;
};

GateLayouts layouts_of(const std::vector<Float8Reader>& readers, const KernelArgs& args) {
  GateLayouts all;
  size_t out = 0;
  for (size_t r = 0; r < readers.size(); ++r) {
    const auto& op = std::get<Quantize>(readers[r].op);
    TileLayouts& of = readers[r].of == 0 ? all.d : all.y;
    const bool has_rows = op.layout != Quantize::Layout::kTransposed;
    const bool has_transposed = op.layout != Quantize::Layout::kRows;
    const size_t last = out + (has_rows && has_transposed ? 2 : 1);
    const CodesUnderScales codes{.amax = args.in[2 + r].as<float>(),
                                 .inverse = args.out[last].as<float>(),
                                 .is_tensor = op.grid == ScaleGrid::kTensor,
                                 .power_of_two = op.power_of_two};
    if (has_rows) (of.rows = codes).codes = args.out[out].as<uint8_t>();
    if (has_transposed) (of.transposed = codes).codes = args.out[last - 1].as<uint8_t>();
    if (args.in[1].numel() == 0) {
      launch_for(args.out[last].numel(), args.stream,
                 InverseScales{.amax = codes.amax,
                               .inverse = codes.inverse,
                               .is_e4m3 = op.format == DType::kE4M3,
                               .power_of_two = op.power_of_two});
    }
    out = last + 1;
  }
  return all;
}

template <class T>
Kernel codes_of_gates(const std::vector<Float8Reader>& readers) {
  DType format = DType::kE4M3;
  bool has_axes = false;
  for (const Float8Reader& reader : readers) {
    const auto& op = std::get<Quantize>(reader.op);
    if (reader.of == 0) format = op.format;
    has_axes = has_axes || op.grid != ScaleGrid::kTensor;
  }
  return by_float8(format, [&]<class Format>() -> Kernel {
    const GateCodes<T> whole = gate_codes_of<Format, T>(true, has_axes);
    const GateCodes<T> any = gate_codes_of<Format, T>(false, has_axes);
    return [=](const KernelArgs& args) {
      const Gates<T> gates = gates_of<T>(args);
      const GateLayouts to = layouts_of(readers, args);
      if (gates.M * gates.F == 0) return;
      const auto blocks = static_cast<unsigned>(tiles_of(gates.M) * tiles_of(gates.F));
      const bool is_whole = has_whole_rows(gates) && detail::is_aligned(to.d.rows.codes) &&
                            detail::is_aligned(to.y.rows.codes);
      (is_whole ? whole : any)<<<blocks, kThreads, kGateTileBytes, as_stream(args.stream)>>>(
          gates, to.d, to.y);
      TOK_CUDA_LAUNCHED();
    };
  });
}

// Segments of tiles: codes and inverse scales of each reader.
template <class T>
Kernel segments_of_gates(const std::vector<Float8Reader>& readers) {
  DType format = DType::kE4M3;
  for (const Float8Reader& reader : readers) {
    if (reader.of == 0) format = std::get<Quantize>(reader.op).format;
  }
  return by_float8(format, [&]<class Format>() -> Kernel {
    const auto launch = prepare_segments_of_tiles<Format, GateSource<T>>();
    return [=](const KernelArgs& args) {
      const Gates<T> gates = gates_of<T>(args);
      SegmentLayouts of[2];
      size_t out = 0;
      for (const Float8Reader& reader : readers) {
        const auto& op = std::get<Quantize>(reader.op);
        const auto codes = [&](bool transposed) {
          const size_t scales = out + static_cast<size_t>(op.inverse_output(transposed));
          const bool is_second = transposed && op.layout == Quantize::Layout::kBoth;
          return SegmentCodes{.codes = args.out[out + (is_second ? 1 : 0)].as<uint8_t>(),
                              .inverse = args.out[scales].as<float>(),
                              .power_of_two = op.power_of_two};
        };
        SegmentLayouts& to = of[reader.of];
        if (op.layout != Quantize::Layout::kTransposed) to.rows = codes(false);
        if (op.layout != Quantize::Layout::kRows) to.transposed = codes(true);
        out += static_cast<size_t>(op.num_codes_and_scales());
      }
      if (gates.M * gates.F == 0) return;
      launch({gates}, has_whole_rows(gates), gates.M, gates.F,
             {{{of[0], 2 * gates.F, 0}, {of[0], 2 * gates.F, gates.F}, {of[1], gates.F, 0}}},
             as_stream(args.stream));
    };
  });
}

Kernel prepare_codes_of_tiles(const FusedFloat8& fused, const KernelTypes& types) {
  const Float8Reader& first = fused.readers[0];
  return by_float(types.in[1].dtype, [&]<class T>() -> Kernel {
    if (first.codes_in_one_pass() != nullptr) return segments_of_gates<T>(fused.readers);
    if (std::holds_alternative<Quantize>(first.op)) return codes_of_gates<T>(fused.readers);
    return [readers = fused.readers](const KernelArgs& args) { take_maxima<T>(readers, args); };
  });
}

}  // namespace

// The variant has refused all other ops and readers.
Kernel prepare(const FusedFloat8& op, const KernelTypes& types, const Setup& setup) {
  if (op.lone_maximum() == nullptr && makes_codes_of_tiles(op.first))
    return prepare_codes_of_tiles(op, types);
  return prepare_one_of<RmsNorm, AddRmsNorm, RmsNormGrad, LayerNorm, AddLayerNorm, LayerNormGrad,
                        Swiglu, SwigluGrad, Gelu, GeluGrad, Rope, RopeConcat>(
      op.first, types, output_of(op, setup), setup);
}

}  // namespace tokamak::gpu

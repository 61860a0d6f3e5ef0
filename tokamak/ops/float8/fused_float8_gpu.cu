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
  FusedOutput fused{.stores = op.stores[reader.of], .stores_others = !op.is_gated()};
  if (const Quantize* quantized = reader.quantized_in_one_pass()) {
    fused.quantizes = true;
    fused.of_segments = quantized->grid == ScaleGrid::kSegments;
    fused.power_of_two = quantized->power_of_two;
    fused.takes_columns = quantized->has_amax;
    fused.most_blocks = most_blocks_of_rows(setup);
  } else if (const Quantize* delayed = reader.delayed_rows()) {
    fused.quantizes = fused.is_delayed = true;
    fused.takes_maximum = delayed->has_amax;
    fused.power_of_two = delayed->power_of_two;
  } else {
    fused.takes_maximum = true;
    fused.is_delayed = reader.takes_row();
  }
  return fused;
}

// A source of tiles, and whether its rows and those that it stores are whole accesses.
template <class Source>
struct Tiles {
  Source source;
  bool is_packed = false;
  int64_t M = 0;
  int64_t F = 0;
};

template <class T>
Tiles<GateSource<T>> tiles_of_gates(const KernelArgs& args) {
  const Tensor& dy = args.in[1];
  const int64_t F = dy.dim(-1);
  const int64_t M = F == 0 ? 0 : dy.numel() / F;
  const Gates<T> gates{.both = args.in[0].as<T>(), .dy = dy.as<T>(), .M = M, .F = F};
  return {.source = {gates}, .is_packed = has_whole_rows(gates), .M = M, .F = F};
}

template <class T, class Form>
Tiles<GeluSource<T, Form>> tiles_of_gelu(const KernelArgs& args, bool stores_dx) {
  const Tensor& x = args.in[0];
  const int64_t F = x.dim(-1);
  const int64_t M = F == 0 ? 0 : x.numel() / F;
  const GeluSource<T, Form> source{.x = x.as<T>(),
                                   .dy = args.in[1].as<T>(),
                                   .dx = stores_dx ? args.out[0].as<T>() : nullptr,
                                   .M = M,
                                   .F = F};
  const bool is_packed =
      has_whole_rows(source.x, F) && detail::is_aligned(source.dy) && detail::is_aligned(source.dx);
  return {.source = source, .is_packed = is_packed, .M = M, .F = F};
}

template <class Source>
void take_maxima(const Tiles<Source>& tiles, const std::vector<Float8Reader>& readers,
                 const KernelArgs& args) {
  TileMaxima of[2];
  size_t in = 2;
  for (size_t r = 0; r < readers.size(); ++r) {
    const auto& amax = std::get<Amax>(readers[r].op);
    auto* most = args.out[r].as<uint32_t>();
    if (amax.is_gated) {
      launch_gated_max(tiles.M * tiles.F, args.stream,
                       SourceMagnitudes<Source>{tiles.source, readers[r].of != 0},
                       {.row = args.in[in++].as<float>(), .most = most});
      continue;
    }
    clear_maxima(most, args.out[r].numel(), args.stream);
    TileMaxima& mine = of[readers[r].of];
    (amax.grid == ScaleGrid::kTensor ? mine.all
     : amax.transposed               ? mine.columns
                                     : mine.rows) = most;
  }
  if (tiles.M * tiles.F == 0 || std::get<Amax>(readers[0].op).is_gated) return;
  launch_tile_maxima(tiles.source, tiles.is_packed, tiles.M, tiles.F, of[0], of[1],
                     as_stream(args.stream));
}

struct InverseScales {
  QuantizedUnderScales quantized;
  bool is_e4m3;

  __device__ void operator()(int64_t i) const {
    quantized.inverse[i] = 1.0F / (is_e4m3 ? quantized.template scale_at<E4M3>(i)
                                           : quantized.template scale_at<E5M2>(i));
  }
};

// The two outputs' quantized values, as the readers want them.
struct OutputLayouts {
  TileLayouts d, y;
};

OutputLayouts layouts_of(const std::vector<Float8Reader>& readers, size_t num_stored,
                         const KernelArgs& args) {
  OutputLayouts all;
  size_t in = 2;
  size_t out = num_stored;
  for (size_t r = 0; r < readers.size(); ++r) {
    const auto& op = std::get<Quantize>(readers[r].op);
    TileLayouts& of = readers[r].of == 0 ? all.d : all.y;
    const bool has_rows = op.layout != Quantize::Layout::kTransposed;
    const bool has_transposed = op.layout != Quantize::Layout::kRows;
    const size_t last = out + (has_rows && has_transposed ? 2 : 1);
    QuantizedUnderScales quantized{.amax = args.in[in++].as<float>(),
                                   .inverse = args.out[last].as<float>(),
                                   .is_tensor = op.grid == ScaleGrid::kTensor,
                                   .power_of_two = op.power_of_two};
    if (op.is_delayed) quantized.delayed.row = args.in[in++].as<float>();
    if (op.has_amax) {
      of.most = args.out[last + 1].as<uint32_t>();
      clear_maxima(of.most, 1, args.stream);
    }
    if (has_rows) (of.rows = quantized).values = args.out[out].as<uint8_t>();
    if (has_transposed) (of.transposed = quantized).values = args.out[last - 1].as<uint8_t>();
    if (args.in[1].numel() == 0) {
      launch_for(args.out[last].numel(), args.stream,
                 InverseScales{quantized, op.format == DType::kE4M3});
    }
    out = last + (op.has_amax ? 2 : 1);
  }
  return all;
}

template <class Source, class MakeTiles>
Kernel tiles_quantized(const FusedFloat8& fused, const MakeTiles& tiles_of) {
  DType format = DType::kE4M3;
  bool has_axes = false;
  for (const Float8Reader& reader : fused.readers) {
    const auto& op = std::get<Quantize>(reader.op);
    if (reader.of == 0) format = op.format;
    has_axes = has_axes || op.grid != ScaleGrid::kTensor;
  }
  const auto num_stored =
      static_cast<size_t>(std::count(fused.stores.begin(), fused.stores.end(), true));
  return by_float8(format, [&]<class Format>() -> Kernel {
    const TileEncoder<Source> whole = tile_encoder_of<Format, Source>(true, has_axes);
    const TileEncoder<Source> any = tile_encoder_of<Format, Source>(false, has_axes);
    return [=, readers = fused.readers](const KernelArgs& args) {
      const Tiles<Source> tiles = tiles_of(args);
      const OutputLayouts to = layouts_of(readers, num_stored, args);
      if (tiles.M * tiles.F == 0) return;
      const auto blocks = static_cast<unsigned>(gpu::tiles_of(tiles.M) * gpu::tiles_of(tiles.F));
      const bool is_whole = tiles.is_packed && detail::is_aligned(to.d.rows.values) &&
                            detail::is_aligned(to.y.rows.values);
      (is_whole ? whole : any)<<<blocks, kThreads, kTileBytes<Source>, as_stream(args.stream)>>>(
          tiles.source, to.d, to.y);
      TOK_CUDA_LAUNCHED();
    };
  });
}

// Returns the kernel that takes maxima of tiles, or quantizes them under scales known before.
template <class Source, class MakeTiles>
Kernel kernel_of_tiles(const FusedFloat8& fused, const MakeTiles& tiles_of) {
  if (std::holds_alternative<Quantize>(fused.readers[0].op))
    return tiles_quantized<Source>(fused, tiles_of);
  return [=, readers = fused.readers](const KernelArgs& args) {
    take_maxima<Source>(tiles_of(args), readers, args);
  };
}

// Segments of tiles: quantized values and inverse scales of each reader.
template <class T>
Kernel segments_of_gates(const std::vector<Float8Reader>& readers) {
  DType format = DType::kE4M3;
  for (const Float8Reader& reader : readers) {
    if (reader.of == 0) format = std::get<Quantize>(reader.op).format;
  }
  return by_float8(format, [&]<class Format>() -> Kernel {
    const auto launch = prepare_segments_of_tiles<Format, GateSource<T>>();
    return [=](const KernelArgs& args) {
      const Tiles<GateSource<T>> tiles = tiles_of_gates<T>(args);
      SegmentLayouts of[2];
      size_t out = 0;
      for (const Float8Reader& reader : readers) {
        const auto& op = std::get<Quantize>(reader.op);
        const auto quantized = [&](bool transposed) {
          const size_t scales = out + static_cast<size_t>(op.inverse_output(transposed));
          const bool is_second = transposed && op.layout == Quantize::Layout::kBoth;
          return QuantizedSegments{.values = args.out[out + (is_second ? 1 : 0)].as<uint8_t>(),
                                   .inverse = args.out[scales].as<float>(),
                                   .power_of_two = op.power_of_two};
        };
        SegmentLayouts& to = of[reader.of];
        if (op.layout != Quantize::Layout::kTransposed) to.rows = quantized(false);
        if (op.layout != Quantize::Layout::kRows) to.transposed = quantized(true);
        out += static_cast<size_t>(op.num_quantized_and_scales());
      }
      const int64_t F = tiles.F;
      if (tiles.M * F == 0) return;
      launch(tiles.source, tiles.is_packed, tiles.M, F,
             {{{of[0], 2 * F, 0}, {of[0], 2 * F, F}, {of[1], F, 0}}}, as_stream(args.stream));
    };
  });
}

Kernel prepare_tiles(const FusedFloat8& fused, const KernelTypes& types) {
  return by_float(types.in[1].dtype, [&]<class T>() -> Kernel {
    if (fused.readers[0].quantized_in_one_pass() != nullptr)
      return segments_of_gates<T>(fused.readers);
    const auto* grad = fused.first.as<GeluGrad>();
    if (grad == nullptr) return kernel_of_tiles<GateSource<T>>(fused, tiles_of_gates<T>);
    const auto of_form = [&]<class Form>() -> Kernel {
      return kernel_of_tiles<GeluSource<T, Form>>(
          fused, [stores = bool{fused.stores[0]}](const KernelArgs& args) {
            return tiles_of_gelu<T, Form>(args, stores);
          });
    };
    return grad->kind == GeluKind::kTanh ? of_form.template operator()<gelu::Tanh>()
                                         : of_form.template operator()<gelu::Exact>();
  });
}

}  // namespace

// The variant has refused all other ops and readers.
Kernel prepare(const FusedFloat8& op, const KernelTypes& types, const Setup& setup) {
  if (op.lone_maximum() == nullptr && quantizes_tiles(op.first)) return prepare_tiles(op, types);
  return prepare_one_of<RmsNorm, AddRmsNorm, RmsNormGrad, LayerNorm, AddLayerNorm, LayerNormGrad,
                        Swiglu, SwigluGrad, Gelu, GeluGrad, Rope, RopeConcat>(
      op.first, types, output_of(op, setup), setup);
}

}  // namespace tokamak::gpu

#include "tokamak/core/error.h"
#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/norm/norm.h"

namespace tokamak::cpu {

Kernel prepare(const Amax&, const KernelTypes&, std::string_view);
Kernel prepare(const Quantize&, const KernelTypes&, std::string_view);
Kernel prepare(const RmsNorm&, const KernelTypes&, std::string_view);
Kernel prepare(const AddRmsNorm&, const KernelTypes&, std::string_view);
Kernel prepare(const RmsNormGrad&, const KernelTypes&, std::string_view);
Kernel prepare(const LayerNorm&, const KernelTypes&, std::string_view);
Kernel prepare(const AddLayerNorm&, const KernelTypes&, std::string_view);
Kernel prepare(const LayerNormGrad&, const KernelTypes&, std::string_view);
Kernel prepare(const Swiglu&, const KernelTypes&, std::string_view);
Kernel prepare(const SwigluGrad&, const KernelTypes&, std::string_view);
Kernel prepare(const Gelu&, const KernelTypes&, std::string_view);
Kernel prepare(const GeluGrad&, const KernelTypes&, std::string_view);
Kernel prepare(const Rope&, const KernelTypes&, std::string_view);
Kernel prepare(const RopeConcat&, const KernelTypes&, std::string_view);

namespace {

template <class... Ops>
Kernel prepare_one_of(const AnyOp& op, const KernelTypes& types) {
  Kernel kernel;
  const auto prepare_as = [&](const auto* made) {
    if (made != nullptr) kernel = prepare(*made, types, kCpuReference.name);
  };
  (prepare_as(op.as<Ops>()), ...);
  TOK_CHECK(kernel != nullptr, "{} is not fused", op.rules->name);
  return kernel;
}

Kernel prepare_first(const AnyOp& op, const KernelTypes& types) {
  return prepare_one_of<RmsNorm, AddRmsNorm, RmsNormGrad, LayerNorm, AddLayerNorm, LayerNormGrad,
                        Swiglu, SwigluGrad, Gelu, GeluGrad, Rope, RopeConcat>(op, types);
}

// A reader's kernel, and its share of the fused op's operands.
struct Reader {
  Kernel kernel;
  size_t of = 0;
  size_t first_in = 0;
  size_t num_in = 0;
  size_t first_out = 0;
  size_t num_out = 0;
};

struct Parts {
  Kernel first;
  size_t num_inputs = 0;
  Types values;
  std::vector<bool> stores;
  std::vector<Reader> readers;
};

Parts parts_of(const FusedFloat8& op, const KernelTypes& types) {
  Parts parts{.num_inputs = op.num_first_inputs(types.in.size()),
              .values = op.first_outputs(types.in),
              .stores = op.stores};
  parts.first =
      prepare_first(op.first, {.in = types.in.first(parts.num_inputs), .out = parts.values});
  size_t input = parts.num_inputs;
  auto out = static_cast<size_t>(std::count(op.stores.begin(), op.stores.end(), true));
  for (const Float8Reader& reader : op.readers) {
    Types in{parts.values[reader.of]};
    for (size_t k = 0; k < reader.num_inputs(); ++k) in.push_back(types.in[input + k]);
    std::visit(
        [&](const auto& made) {
          const Types results = made.infer(in);
          parts.readers.push_back({.kernel = prepare(made, {.in = in, .out = results}, ""),
                                   .of = static_cast<size_t>(reader.of),
                                   .first_in = input,
                                   .num_in = reader.num_inputs(),
                                   .first_out = out,
                                   .num_out = results.size()});
          out += results.size();
        },
        reader.op);
    input += reader.num_inputs();
  }
  return parts;
}

void run(const Parts& parts, const KernelArgs& args) {
  std::vector<Tensor> values;
  KernelArgs first{.in = args.in.first(parts.num_inputs), .stream = args.stream};
  auto* next = static_cast<std::byte*>(args.workspace);
  size_t stored = 0;
  for (size_t k = 0; k < parts.values.size(); ++k) {
    if (parts.stores[k]) {
      first.accumulate[k] = args.accumulate[stored];
      values.push_back(args.out[stored++]);
      continue;
    }
    values.push_back(
        {.data = next, .type = parts.values[k], .strides = row_major(parts.values[k].dims)});
    next += (parts.values[k].bytes() + 63) / 64 * 64;
  }
  first.out = values;
  first.workspace = next;
  parts.first(first);
  for (const Reader& reader : parts.readers) {
    std::vector<Tensor> in{values[reader.of]};
    for (size_t k = 0; k < reader.num_in; ++k) in.push_back(args.in[reader.first_in + k]);
    reader.kernel({.in = in, .out = args.out.subspan(reader.first_out, reader.num_out)});
  }
}

}  // namespace

Kernel prepare(const FusedFloat8& op, const KernelTypes& types, std::string_view) {
  return [parts = parts_of(op, types)](const KernelArgs& args) { run(parts, args); };
}

}  // namespace tokamak::cpu

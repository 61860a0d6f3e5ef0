#include <map>
#include <set>

#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_quantized.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/train/bench/op_scenes.h"

namespace tokamak {
namespace {

// A linear layer and its gradients in 8-bit floats.
class Float8Scene {
 public:
  // dims: tokens, out, in
  Float8Scene(SceneBuilder& b, const Dims& d) : b_(b), d_(d) {}

  void build(const Float8Recipe& recipe) {
    const Value x = b_.normal({d_[0], d_[2]});
    const Value w = b_.normal({d_[1], d_[2]});
    const Value g = b_.normal({d_[0], d_[1]});
    keeps_columns_ = recipe.of_dw == ScaleGrid::kRows ? std::set<Value>{x, g} : std::set<Value>{};
    const QuantizedValues x_quantized = quantized(x, recipe.x_of_y, DType::kE4M3, Layout::kRows);
    const QuantizedValues w_quantized = quantized(w, recipe.w_of_y, DType::kE4M3, Layout::kRows);
    multiply({.out = b_.dtype(), .fast_accumulation = recipe.fast_y}, recipe.x_of_y, x_quantized,
             recipe.w_of_y, w_quantized);
    const bool both =  // in one pass
        recipe.of_dw == ScaleGrid::kTensor || recipe.of_dw == ScaleGrid::kSegments;
    const std::vector<Value> g_both =
        quantize(g, recipe.g_of_dx, recipe.gradient, both ? Layout::kBoth : Layout::kRows);
    const size_t inverse = both ? 2 : 1;
    multiply({.out = b_.dtype(), .product = Cost::Product::kInputGradient}, recipe.g_of_dx,
             {g_both[0], g_both[inverse]}, recipe.w_of_dx,
             transpose(w, w_quantized, recipe.w_of_dx));
    const QuantizedValues g_transposed =
        both ? QuantizedValues{g_both[1], g_both.back()}
             : quantized(g, recipe.of_dw, recipe.gradient, Layout::kTransposed);
    b_.accumulate(multiply({.product = Cost::Product::kWeightGradient}, recipe.of_dw, g_transposed,
                           recipe.of_dw,
                           quantized(x, recipe.of_dw, DType::kE4M3, Layout::kTransposed)));
  }

 private:
  using Layout = Quantize::Layout;

  struct QuantizedValues {
    Value values, inverse;
  };

  std::vector<Value> quantize(Value v, ScaleGrid grid, DType format, Layout layout) {
    Quantize op{.format = format, .grid = grid, .layout = layout};
    op.has_amax = layout == Layout::kRows && keeps_columns_.contains(v);
    std::vector<Value> in{v};
    if (!op.takes_maxima()) {
      const bool of_columns = layout == Layout::kTransposed && grid != ScaleGrid::kTensor;
      const auto known = columns_.find(v);
      in.push_back(known != columns_.end()
                       ? known->second
                       : b_.run(Amax{.grid = grid, .transposed = of_columns}, {v})[0]);
    }
    std::vector<Value> out = b_.run(op, in);
    if (op.has_amax) columns_[v] = out.back();
    return out;
  }

  QuantizedValues quantized(Value v, ScaleGrid grid, DType format, Layout layout) {
    const std::vector<Value> out = quantize(v, grid, format, layout);
    return {out[0], out[1]};
  }

  QuantizedValues transpose(Value w, const QuantizedValues& rows, ScaleGrid grid) {
    if (grid == ScaleGrid::kRows) return quantized(w, grid, DType::kE4M3, Layout::kTransposed);
    std::vector<Value> in{rows.values};
    if (grid == ScaleGrid::kBlocks) in.push_back(rows.inverse);
    const std::vector<Value> out = b_.run(TransposeQuantized{.grid = grid}, in);
    return {out[0], out.size() > 1 ? out[1] : rows.inverse};
  }

  Value multiply(ScaledMatmul op, ScaleGrid a_grid, const QuantizedValues& a, ScaleGrid b_grid,
                 const QuantizedValues& b) {
    op.a_grid = a_grid;
    op.b_grid = b_grid;
    return b_.run(op, {a.values, a.inverse, b.values, b.inverse})[0];
  }

  std::set<Value> keeps_columns_;  // taken where quantized values of rows are made
  std::map<Value, Value> columns_;
  SceneBuilder& b_;
  const Dims& d_;
};

void build_tensorwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("tensorwise"));
}

void build_rowwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("rowwise"));
}

void build_blockwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("blockwise"));
}

}  // namespace

std::vector<OpScene> low_precision_scenes() {
  static const std::vector<Dims> kFloat8Dims{
      {16384, 4096, 4096}, {16384, 14336, 4096}, {32768, 8192, 2048}};  // the last one 1B's
  static const std::vector<Dims> kFloat8FewDims{{256, 128, 256}};
  return {
      {"float8_tensorwise", "tokens x out x in", kFloat8Dims, kFloat8FewDims, build_tensorwise,
       "float8"},
      {"float8_rowwise", "tokens x out x in", kFloat8Dims, kFloat8FewDims, build_rowwise, "float8"},
      {"float8_blockwise", "tokens x out x in", kFloat8Dims, kFloat8FewDims, build_blockwise,
       "float8"},
  };
}

}  // namespace tokamak

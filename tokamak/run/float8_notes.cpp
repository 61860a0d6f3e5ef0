#include "tokamak/run/float8_notes.h"

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// Whether several ranks own parts of one weight.
bool has_owners(const RunShape& shape) {
  return shape.distribute.mesh.degree(kShardAxes) > 1;
}

std::string float8_line_of(const Float8Marks& marks, const RunShape& shape) {
  const Float8Recipe& recipe = shape.float8->recipe;
  const std::string_view compute = name_of(shape.training.compute);
  std::string line =
      fmt::format("float8: {}, {} products, head in {}; scales per {}", recipe.name,
                  recipe.shares_scales ? marks.products : marks.weights,
                  marks.head ? "float8" : compute, recipe.shares_scales ? "product" : "module");
  if (has_owners(shape))
    line += fmt::format("; weights travel in {}", recipe.gathers_quantized() ? "fp8" : compute);
  return line;
}

}  // namespace

Float8Notes mark_and_note(Graph& graph, const RunShape& shape) {
  Float8Notes out;
  if (!shape.float8) return out;
  const Float8Recipe& recipe = shape.float8->recipe;
  const Float8Marks marks = mark_float8(graph, shape.float8->layers, out.notes);
  TOK_REQUIRE(marks.weights > 0 || marks.head,
              "model.converters: no matmul of this model is in float8; {}", out.notes.front());
  const bool loses_tail =
      recipe.gradient == DType::kE4M3 && recipe.g_of_dx != ScaleGrid::kSegments && !recipe.is_mx();
  if (marks.head && loses_tail) {
    out.notes.push_back(
        fmt::format("float8: {} loses small gradients of logits in E4M3; \"output\" in "
                    "quantize.linear.float8.filter_fqns leaves the head in {}",
                    recipe.name, name_of(shape.training.compute)));
  }
  if (has_owners(shape) && !recipe.gathers_quantized()) {
    out.notes.push_back(
        fmt::format("float8: weights travel in {}: {} has scales of which an owner's slice has a "
                    "part",
                    name_of(shape.training.compute), recipe.name));
  }
  out.line = float8_line_of(marks, shape);
  out.notes.push_back(out.line);
  return out;
}

}  // namespace tokamak

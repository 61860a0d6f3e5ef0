#include "tokamak/parallel/low_precision.h"

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/parallel/float8/low_precision_choice.h"
#include "tokamak/parallel/float8/quantize_matmuls.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {
namespace {

// Whether several ranks own parts of one weight.
bool has_owners(const Mesh& mesh) {
  return mesh.degree(kShardAxes) > 1;
}

std::string line_of(const Float8Marks& marks, const Float8Recipe& recipe, const Mesh& mesh,
                    std::string_view compute) {
  std::string line =
      fmt::format("float8: {}, {} matmuls, head in {}; scales per {}", recipe.name,
                  recipe.shares_scales ? marks.matmuls : marks.weights,
                  marks.head ? "float8" : compute, recipe.shares_scales ? "matmul" : "module");
  if (has_owners(mesh))
    line += fmt::format("; weights travel in {}", recipe.gathers_quantized() ? "fp8" : compute);
  return line;
}

}  // namespace

LowPrecision::LowPrecision(LowPrecisionChoice choice)
    : choice_(std::make_shared<const LowPrecisionChoice>(std::move(choice))) {}

std::string_view LowPrecision::recipe() const {
  return choice_ ? choice_->recipe.name : "";
}

bool LowPrecision::is_mx() const {
  return choice_ && choice_->recipe.is_mx();
}

int64_t LowPrecision::multiple() const {
  return choice_ ? choice_->recipe.multiple() : 1;
}

bool LowPrecision::gathers() const {
  return choice_ && choice_->recipe.gathers_quantized();
}

bool LowPrecision::merges() const {
  return !choice_ || choice_->recipe.shares_scales;
}

bool LowPrecision::fuses() const {
  return choice_ && choice_->recipe.fuses;
}

std::string LowPrecision::why_not(const Target& target) const {
  return choice_ ? why_no_float8(choice_->recipe, target) : "";
}

LowPrecision LowPrecision::in_all_blocks() const {
  if (!choice_) return {};
  LowPrecisionChoice all = *choice_;
  all.layers.bf16_at_start = all.layers.bf16_at_end = 0;
  return LowPrecision(std::move(all));
}

LowPrecisionNotes LowPrecision::mark(Graph& graph, const Mesh& mesh, DType compute) const {
  LowPrecisionNotes out;
  if (!choice_) return out;
  const Float8Recipe& recipe = choice_->recipe;
  const Float8Marks marks = mark_float8(graph, choice_->layers, out.notes);
  TOK_REQUIRE(marks.weights > 0 || marks.head,
              "model.converters: no matmul of this model is in float8; {}", out.notes.front());
  const bool loses_tail =
      recipe.gradient == DType::kE4M3 && recipe.g_of_dx != ScaleGrid::kSegments && !recipe.is_mx();
  if (marks.head && loses_tail) {
    out.notes.push_back(
        fmt::format("float8: {} loses small gradients of logits in E4M3; \"output\" in "
                    "quantize.linear.float8.filter_fqns leaves the head in {}",
                    recipe.name, name_of(compute)));
  }
  if (has_owners(mesh) && !recipe.gathers_quantized()) {
    out.notes.push_back(
        fmt::format("float8: weights travel in {}: {} has scales of which an owner's slice has a "
                    "part",
                    name_of(compute), recipe.name));
  }
  out.line = line_of(marks, recipe, mesh, name_of(compute));
  out.notes.push_back(out.line);
  return out;
}

Graph LowPrecision::lower(const Graph& graph, const WeightGroups& groups) const {
  return choice_ ? quantize_matmuls(graph, choice_->recipe, groups) : graph;
}

LoweredStep LowPrecision::lower_step(const Graph& graph, const WeightGroups& groups) const {
  if (!choice_ || !choice_->recipe.is_delayed()) return {lower(graph, groups), {}};
  return {quantize_matmuls(graph, choice_->recipe, groups, true), lower(graph, groups)};
}

}  // namespace tokamak

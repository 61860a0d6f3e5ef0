#include "tokamak/ops/float8/amax_history.h"

#include <algorithm>

#include <fmt/format.h>

namespace tokamak {
namespace {

void require_floats(std::string_view op, std::string_view name, const TensorType& type,
                    const Dims& dims) {
  const TensorType wanted{.dtype = DType::kF32, .dims = dims};
  TOK_REQUIRE(type == wanted, "{}: {} want {}, got {}", op, name, to_string(wanted),
              to_string(type));
}

}  // namespace

Types StageMaxima::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, kMostInputs);
  TOK_REQUIRE(row_of.size() == in.size(), "stage_maxima: {} rows for {} inputs", row_of.size(),
              in.size());
  for (const TensorType& type : in) require_floats(kName, "maxima", type, {1});
  const int rows = *std::max_element(row_of.begin(), row_of.end()) + 1;
  for (int row = 0; row < rows; ++row) {
    TOK_REQUIRE(std::find(row_of.begin(), row_of.end(), row) != row_of.end(),
                "stage_maxima: row {} has no input", row);
  }
  return {{.dtype = DType::kF32, .dims = {rows}}};
}

std::vector<Strategy> StageMaxima::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 1)};
}

Cost StageMaxima::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string StageMaxima::describe() const {
  return fmt::format("{} of {}", row_of.size(), row_of.back() + 1);
}

Types AmaxHistory::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  const auto sites = static_cast<int64_t>(largest.size());
  TOK_REQUIRE(in[0].dtype == DType::kF32 && in[0].dims.size() == 2 && in[0].dims[0] == sites &&
                  in[0].dims[1] >= 2,
              "amax_history: wanted a table float32[{}, 2 or more], got {}", sites,
              to_string(in[0]));
  require_floats(kName, "maxima", in[1], {sites});
  require_floats(kName, "the factor", in[2], {1});
  return {in[0], {.dtype = DType::kF64, .dims = {1}}};
}

std::vector<Strategy> AmaxHistory::place(std::span<const TensorType>) const {
  return {replicate(3, 2)};
}

Cost AmaxHistory::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string AmaxHistory::describe() const {
  return fmt::format("{} sites{}{}", largest.size(), most_recent ? ", most recent" : "",
                     margin != 0 ? fmt::format(", margin {}", margin) : "");
}

}  // namespace tokamak

#include "tokamak/ops/layout/slice_rows.h"

#include <fmt/format.h>

namespace tokamak {

Types SliceRows::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(!in[0].dims.empty() && 0 <= begin && begin < end && end <= in[0].dims[0],
              "slice_rows: no rows {} to {} in {}", begin, end, to_string(in[0].dims));
  TensorType out = in[0];
  out.dims[0] = end - begin;
  return {out};
}

std::vector<Strategy> SliceRows::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(1, 1)};
  for (int d = 1; d < static_cast<int>(in[0].dims.size()); ++d)
    all.push_back({.in = {cut(d)}, .out = {cut(d)}});
  all.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return all;
}

Cost SliceRows::cost(std::span<const TensorType>, std::span<const TensorType>) const {
  return {};
}

Layout SliceRows::view(const Layout& in) const {
  Layout out = in;
  out.dims[0] = end - begin;
  out.offset += begin * in.strides[0];
  return out;
}

std::string SliceRows::describe() const {
  return fmt::format("[{}:{}]", begin, end);
}

}  // namespace tokamak

#include "tokamak/ops/layout/reshape.h"

namespace tokamak {
namespace {

Dims resolve(const Dims& wanted, const Dims& in) {
  Dims dims = wanted;
  int64_t left = 1;
  for (const int64_t d : in) left *= d;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && i < in.size()) dims[i] = in[i];
    if (dims[i] > 0) left /= dims[i];
  }
  for (int64_t& d : dims) {
    if (d == -1) d = left;
  }
  return dims;
}

}  // namespace

Types Reshape::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  const TensorType out{.dtype = in[0].dtype, .dims = resolve(dims, in[0].dims)};
  TOK_REQUIRE(out.numel() == in[0].numel(), "reshape: {} does not fill {}", to_string(in[0].dims),
              to_string(dims));
  return {out};
}

std::vector<Strategy> Reshape::place(std::span<const TensorType> in) const {
  std::vector<Strategy> strategies{replicate(1, 1)};
  size_t same = 0;
  while (same < dims.size() && same < in[0].dims.size() && dims[same] == 0) {
    const Shard s = cut(static_cast<int>(same++));
    strategies.push_back({.in = {s}, .out = {s}});
  }
  if (same < dims.size() && same < in[0].dims.size() && dims[same] == -1) {
    const Shard s = cut(static_cast<int>(same));
    strategies.push_back({.in = {s}, .out = {s}});
  }
  strategies.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return strategies;
}

std::vector<Value> Reshape::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  Dims back = g.type(n.in[0]).dims;
  for (size_t i = 0; i < back.size() && i < dims.size() && dims[i] == 0; ++i) back[i] = 0;
  for (size_t i = 0; i < back.size() && i < dims.size(); ++i) {
    if (dims[i] == 0) continue;
    if (dims[i] == -1) back[i] = -1;
    break;
  }
  return {g.apply(Reshape{.dims = back}, {dy[0]})};
}

Cost Reshape::cost(std::span<const TensorType>, std::span<const TensorType>) const {
  return {};
}

Layout Reshape::view(const Layout& in) const {
  TOK_CHECK(in.strides == row_major(in.dims), "reshape of a strided value");
  const Dims out = resolve(dims, in.dims);
  return {.dims = out, .strides = row_major(out), .offset = in.offset};
}

}  // namespace tokamak

#include "tokamak/ops/elementwise/dropout.h"

namespace tokamak {

Types Dropout::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 3);
  TOK_REQUIRE(!in[0].dims.empty() && is_float(in[0].dtype),
              "dropout: x wants float [batch, ..], got {}", to_string(in[0]));
  TOK_REQUIRE(in[1].dtype == DType::kI64 && in[1].dims == Dims{in[0].dims[0]},
              "dropout: rows want int64[{}], got {}", in[0].dims[0], to_string(in[1]));
  TOK_REQUIRE(p >= 0.0 && p < 1.0, "dropout: p is {}, wanted at least 0 and under 1", p);
  if (in.size() == 3) {
    const Dims& x = in[0].dims;
    TOK_REQUIRE(x.size() == 3 && in[2].dtype == DType::kI32 && in[2].dims == Dims({x[0], x[1]}),
                "dropout: x is {}, positions are {}; wanted [batch, sequence, embed] and int32 "
                "[batch, sequence]",
                to_string(in[0]), to_string(in[2]));
    TOK_REQUIRE(first_column >= 0 && (columns == 0 || first_column + x[2] <= columns),
                "dropout: columns {} to {} are outside the {}", first_column, first_column + x[2],
                columns);
  }
  return {in[0]};
}

// Without positions, a cut within a sample would restart the count of its elements.
std::vector<Strategy> Dropout::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(in.size(), 1)};
  all.push_back({.in = std::vector<Shard>(in.size(), cut(0)), .out = {cut(0)}});
  if (in.size() < 3) return all;
  all.push_back({.in = {cut(1), kReplicated, cut(1)}, .out = {cut(1)}});
  all.push_back({.in = {cut(2), kReplicated, kReplicated}, .out = {cut(2)}});
  return all;
}

std::optional<AnyOp> Dropout::localize(const LocalContext& context) const {
  if (context.strategy.in[0] != cut(2)) return std::nullopt;
  Dropout local = *this;
  if (columns == 0) local.columns = context.in_ranges[0].back().end;
  local.first_column += context.in[0].begin;
  return any_op(local);
}

std::vector<Value> Dropout::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  return {g.apply(*this, {dy[0], n.in[1], n.in.size() > 2 ? n.in[2] : Value{}})};
}

Cost Dropout::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 1.0);
}

std::string Dropout::describe() const {
  const std::string part =
      columns > 0 ? fmt::format(" columns from {} of {}", first_column, columns) : "";
  return fmt::format("p={} stream={:x}{}", p, stream, part);
}

}  // namespace tokamak

#include "tokamak/ops/comm/collective.h"

namespace tokamak {
namespace {

std::string describe_group(const CommGroup& group) {
  if (group.id < 0) return "";
  return fmt::format("group {}, {} of {}", group.id, group.rank, group.size);
}

std::string describe_dim(int dim) {
  return dim < 0 ? "" : fmt::format(", dim {}", dim);
}

void require_group(std::string_view op, const CommGroup& group) {
  TOK_REQUIRE(group.size >= 1 && group.rank >= 0 && group.rank < group.size,
              "{}: no member {} in a group of {}", op, group.rank, group.size);
}

void require_pair(std::string_view op, const CommGroup& group) {
  require_group(op, group);
  TOK_REQUIRE(group.size == 2, "{}: wanted a group of two ranks, got {}", op, group.size);
}

// Requires a row for each member.
void require_rows(std::string_view op, const CommGroup& group, std::span<const TensorType> in) {
  require_inputs(op, in, 1, 1);
  require_group(op, group);
  TOK_REQUIRE(!in[0].dims.empty() && in[0].dims[0] == group.size,
              "{}: wanted a row for each of {} ranks, got {}", op, group.size, to_string(in[0]));
}

void require_dim(std::string_view op, const TensorType& x, int dim, int64_t multiple) {
  const bool is_there = dim >= 0 && dim < static_cast<int>(x.dims.size());
  TOK_REQUIRE(is_there && x.dims[dim] % multiple == 0 && x.numel() > 0,
              "{}: wanted a dim {} that is a multiple of {}, got {}", op, dim, multiple,
              to_string(x));
}

TensorType without_rows(const TensorType& type) {
  return {.dtype = type.dtype, .dims = Dims(type.dims.begin() + 1, type.dims.end())};
}

Cost collective_cost(Cost::Collective kind, const CommGroup& group, double bytes_sent,
                     std::span<const TensorType> in, std::span<const TensorType> out) {
  Cost cost = memory_cost(in, out, 0.0);
  cost.kind = Cost::Kind::kCollective;
  cost.collective = kind;
  cost.dtype = in.empty() ? out[0].dtype : in[0].dtype;
  cost.group_size = group.size;
  cost.bytes_sent = bytes_sent;
  return cost;
}

Cost message_cost(const CommGroup& group, double bytes_sent, std::span<const TensorType> in,
                  std::span<const TensorType> out) {
  Cost cost = collective_cost(Cost::Collective::kSendRecv, group, bytes_sent, in, out);
  cost.is_message = true;
  return cost;
}

double bytes_of(const TensorType& type) {
  return static_cast<double>(type.bytes());
}

double others(const CommGroup& group) {
  return static_cast<double>(group.size - 1);
}

}  // namespace

Types AllGather::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 2);
  require_group(kName, group);
  TensorType out = in[0];
  if (dim < 0) {
    out.dims.insert(out.dims.begin(), group.size);
  } else {
    require_dim(kName, out, dim, 1);
    out.dims[dim] *= group.size;
  }
  return {out};
}

std::vector<Strategy> AllGather::place(std::span<const TensorType>) const {
  return {replicate(1, 1)};
}

Cost AllGather::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return collective_cost(Cost::Collective::kAllGather, group, others(group) * bytes_of(in[0]),
                         in.first(1), out);
}

std::string AllGather::describe() const {
  return describe_group(group) + describe_dim(dim);
}

Types ReduceScatter::infer(std::span<const TensorType> in) const {
  if (dim < 0) {
    require_rows(kName, group, in);
  } else {
    require_inputs(kName, in, 1, 1);
    require_group(kName, group);
    require_dim(kName, in[0], dim, group.size);
  }
  TOK_REQUIRE(is_float(in[0].dtype), "reduce_scatter: wanted floats, got {}", to_string(in[0]));
  if (dim < 0) return {without_rows(in[0])};
  TensorType out = in[0];
  out.dims[dim] /= group.size;
  return {out};
}

std::vector<Strategy> ReduceScatter::place(std::span<const TensorType>) const {
  return {replicate(1, 1)};
}

Cost ReduceScatter::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = collective_cost(Cost::Collective::kReduceScatter, group,
                              others(group) * bytes_of(out[0]), in, out);
  cost.flops = others(group) * static_cast<double>(out[0].numel());
  return cost;
}

std::string ReduceScatter::describe() const {
  return describe_group(group) + describe_dim(dim);
}

Types AllReduce::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  require_group(kName, group);
  TOK_REQUIRE(is_float(in[0].dtype), "all_reduce: wanted floats, got {}", to_string(in[0]));
  return {in[0]};
}

std::vector<Strategy> AllReduce::place(std::span<const TensorType>) const {
  return {replicate(1, 1)};
}

Cost AllReduce::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  const double share = 2.0 * others(group) / static_cast<double>(group.size);
  Cost cost =
      collective_cost(Cost::Collective::kAllReduce, group, share * bytes_of(in[0]), in, out);
  cost.flops = others(group) * static_cast<double>(in[0].numel());
  return cost;
}

std::string AllReduce::describe() const {
  return fmt::format("{}{}{}", describe_group(group), op == ReduceOp::kMax ? " max" : "",
                     in_place ? " in place" : "");
}

Types AllToAll::infer(std::span<const TensorType> in) const {
  require_rows(kName, group, in);
  return {in[0]};
}

std::vector<Strategy> AllToAll::place(std::span<const TensorType>) const {
  return {replicate(1, 1)};
}

Cost AllToAll::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return collective_cost(Cost::Collective::kAllToAll, group,
                         others(group) * bytes_of(without_rows(in[0])), in, out);
}

std::string AllToAll::describe() const {
  return describe_group(group);
}

Types Shift::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  require_group(kName, group);
  return {in[0]};
}

std::vector<Strategy> Shift::place(std::span<const TensorType>) const {
  return {replicate(1, 1)};
}

Cost Shift::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  const bool stays = offset % group.size == 0;
  return collective_cost(Cost::Collective::kSendRecv, group, stays ? 0.0 : bytes_of(in[0]), in,
                         out);
}

std::string Shift::describe() const {
  return fmt::format("{} by {}", describe_group(group), offset);
}

Types Send::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  require_pair(kName, group);
  return {};
}

std::vector<Strategy> Send::place(std::span<const TensorType>) const {
  return {replicate(1, 0)};
}

Cost Send::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return message_cost(group, bytes_of(in[0]), in, out);
}

std::string Send::describe() const {
  return describe_group(group);
}

Types Recv::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 0, 0);
  require_pair(kName, group);
  return {type};
}

std::vector<Strategy> Recv::place(std::span<const TensorType>) const {
  return {replicate(0, 1)};
}

Cost Recv::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return message_cost(group, 0.0, in, out);
}

std::string Recv::describe() const {
  return describe_group(group);
}

}  // namespace tokamak

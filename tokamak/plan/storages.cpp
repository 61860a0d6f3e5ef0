#include "tokamak/plan/storages.h"

namespace tokamak {

Write Buffers::bytes_of(Value v) const {
  const TensorType& type = graph.type(v);
  const Layout& where = placed(v).layout;
  const int64_t begin = where.offset * size_of(type.dtype);
  return {.node = v.node, .begin = begin, .end = begin + extent_bytes(type, where.strides)};
}

std::string Buffers::name_of_producer(int32_t i) const {
  return node(i).is_leaf() ? "state " + graph.states()[node(i).state].name
                           : std::string(node(i).rules->name);
}

int64_t Buffers::workspace_bytes(int32_t i) const {
  const Variant* variant = variants[i];
  if (variant == nullptr || variant->workspace == nullptr) return 0;
  Types in;
  for (const Value v : node(i).in) in.push_back(graph.type(v));
  return variant->workspace(node(i).op.get(), {.in = in, .out = node(i).out}, target);
}

}  // namespace tokamak

#include <algorithm>
#include <utility>

#include "tokamak/graph/streams.h"
#include "tokamak/ops/attention/context_parts.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/comm/collective_dim.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/layout/reshape.h"

namespace tokamak {
namespace {

// A group's communication shares one stream, so layers that gather use the ring's where other
// layers go round the ring.
bool has_stream(const Attention& a) {
  return a.beside_matmuls || (a.context == ContextMethod::kRing && a.zigzag);
}

// x [B, S, ..] of every member -> [B, n S, ..] in natural order.
Value gather_sequence(Graph& g, const Context& c, Value x) {
  const int32_t first = g.size();
  Value whole;
  if (c.attention.zigzag) {
    Dims dims = g.type(x).dims;
    dims[1] *= c.group.size;
    const Value rows = g.apply(AllGather{.group = c.group}, {x});
    whole = g.apply(Join{.dim = 1, .sizes = c.sizes(), .dims = dims, .order = c.order()},
                    {g.apply(Reshape{.dims = {c.group.size, -1}}, {rows})});
  } else {
    whole = gather_dim(g, x, 1, c.group);
  }
  if (has_stream(c.attention)) put_communication_on(g, first, kContextStream);
  return whole;
}

// The sum over members of x [B, n S, ..] in natural order -> this rank's [B, S, ..].
Value scatter_sequence(Graph& g, const Context& c, Value x) {
  const int32_t first = g.size();
  Value mine;
  if (c.attention.zigzag) {
    Dims dims = g.type(x).dims;
    dims[1] = c.S;
    const Value rows = g.apply(Split{.dim = 1, .sizes = c.sizes(), .order = c.order()}, {x});
    mine = g.apply(Reshape{.dims = dims}, {g.apply(ReduceScatter{.group = c.group}, {rows})});
  } else {
    mine = sum_scatter_dim(g, x, 1, c.group);
  }
  if (has_stream(c.attention)) put_communication_on(g, first, kContextStream);
  return mine;
}

// One of this rank's chunks of queries, and the keys that they see: up to the chunk's end, from
// where its first query's window begins.
struct Prefix {
  Attention attention;
  int64_t begin = 0;  // of the queries, in this rank's
  int64_t end = 0;
  int64_t first_key = 0;
  int64_t end_key = 0;
};

std::vector<Prefix> prefixes(const Context& c) {
  std::vector<Prefix> all;
  int64_t begin = 0;
  for (const int chunk : c.chunks(c.group.rank)) {
    Prefix p{.attention = c.attention, .begin = begin, .end = begin + c.chunk()};
    const int64_t first = chunk * c.chunk();
    p.end_key = first + c.chunk();
    if (c.attention.window > 0) p.first_key = std::max<int64_t>(first - c.attention.window + 1, 0);
    p.attention.first_query += first;
    p.attention.first_key += p.first_key;
    all.push_back(p);
    begin = p.end;
  }
  return all;
}

// Gathers what the forward has gathered. A rank whose backward runs the forward again takes it from
// there, so both have one origin.
std::pair<Value, Value> gather_again(Graph& g, const Context& c, const Operands& x) {
  Label label = g.label;
  label.origin = g.producer(x.o).label.origin;
  const LabelScope scope(g, label);
  const Value k = gather_sequence(g, c, x.k);
  return {k, gather_sequence(g, c, x.v)};
}

}  // namespace

std::vector<Value> gathered_attention(Graph& g, const Context& c, const Operands& x) {
  const Value k = gather_sequence(g, c, x.k);
  const Value v = gather_sequence(g, c, x.v);
  std::vector<Value> o;
  std::vector<Value> lse;
  for (const Prefix& p : prefixes(c)) {
    const Operands part{.q = slice(g, c, x.q, 1, p.begin, p.end),
                        .k = slice(g, c, k, 1, p.first_key, p.end_key),
                        .v = slice(g, c, v, 1, p.first_key, p.end_key),
                        .rows = x.rows};
    const auto out = g.add(p.attention, part.forward());
    o.push_back(out[0]);
    lse.push_back(out[1]);
  }
  return {concat(g, 1, std::move(o)), concat(g, 2, std::move(lse))};
}

std::vector<Value> gathered_attention_grad(Graph& g, const Context& c, const Operands& x) {
  const std::pair<Value, Value> whole = gather_again(g, c, x);
  const Value k = whole.first;
  const Value v = whole.second;
  std::vector<Value> dq;
  std::vector<Value> dk;
  std::vector<Value> dv;
  std::vector<int64_t> begins;
  for (const Prefix& p : prefixes(c)) {
    const Operands part{.q = slice(g, c, x.q, 1, p.begin, p.end),
                        .k = slice(g, c, k, 1, p.first_key, p.end_key),
                        .v = slice(g, c, v, 1, p.first_key, p.end_key),
                        .rows = x.rows,
                        .o = slice(g, c, x.o, 1, p.begin, p.end),
                        .lse = slice(g, c, x.lse, 2, p.begin, p.end),
                        .dy = slice(g, c, x.dy, 1, p.begin, p.end)};
    const auto out = g.add(AttentionGrad{.forward = p.attention}, part.backward());
    dq.push_back(out[0]);
    dk.push_back(out[1]);
    dv.push_back(out[2]);
    begins.push_back(p.first_key);
  }
  const auto total = [&](const std::vector<Value>& parts) {
    const SumSlices sum{.dim = 1, .extent = g.type(k).dims[1], .begins = begins};
    return scatter_sequence(g, c, g.apply(sum, parts));
  };
  // Both sums start before either is waited for.
  const Value dk_total = total(dk);
  const Value dv_total = total(dv);
  const DType dtype = g.type(k).dtype;
  return {concat(g, 1, std::move(dq)), cast(g, dk_total, dtype), cast(g, dv_total, dtype)};
}

}  // namespace tokamak

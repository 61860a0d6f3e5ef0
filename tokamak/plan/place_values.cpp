#include "tokamak/plan/place_values.h"

#include <algorithm>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

int32_t new_storage(Buffers& b, Storage storage) {
  b.storages.push_back(std::move(storage));
  return static_cast<int32_t>(b.storages.size()) - 1;
}

Layout contiguous(const TensorType& type) {
  return {.dims = type.dims, .strides = row_major(type.dims)};
}

void put(Buffers& b, Value v, Placed where) {
  b.members.resize(std::max(b.members.size(), b.storages.size()));
  b.members[where.storage].push_back(v);
  b.placed(v) = std::move(where);
}

void place_leaf(Buffers& b, int32_t i) {
  const Node& n = b.node(i);
  b.placed_values[i].resize(n.out.size());
  if (!n.is_leaf()) return;
  const int32_t s =
      new_storage(b, {.arena = b.layout.is_in_host(n.state) ? ArenaKind::kHost : ArenaKind::kState,
                      .state = n.state,
                      .bytes = n.out[0].bytes(),
                      .offset = b.layout[n.state]});
  put(b, {i, 0}, {.storage = s, .layout = contiguous(n.out[0])});
}

void read(Buffers& b, Value v, int32_t reader) {
  TOK_CHECK(b.placed(v).storage >= 0, "{} reads a value of {} before it is made",
            b.node(reader).rules->name, b.name_of_producer(v.node));
  Storage& s = b.storage_of(v);
  TOK_CHECK(!holds_state(s.arena) || s.offset != StateLayout::kNowhere,
            "{} uses {}, which is absent on this rank", b.node(reader).rules->name,
            b.name_of_producer(v.node));
  const Write here = b.bytes_of(v);
  for (size_t w = b.placed(v).version; w < s.writes.size(); ++w) {
    const Write& later = s.writes[w];
    TOK_CHECK(later.end <= here.begin || here.end <= later.begin,
              "{} reads a value of {} whose storage was donated to {}", b.node(reader).rules->name,
              b.name_of_producer(v.node), b.name_of_producer(later.node));
  }
  s.life.last = std::max(s.life.last, b.order(reader));
  s.last_segment = std::max(s.last_segment, b.segment_of(reader));
  const int stream = b.node(reader).stream;
  s.read_by_stream = s.read_by_stream == Storage::kNoStream || s.read_by_stream == stream
                         ? stream
                         : Storage::kManyStreams;
}

// Kernels write dense outputs; a taken value has the output's bytes.
Layout layout_over(const Buffers& b, Value taken, const TensorType& type, std::string_view op) {
  const TensorType& old = b.graph.type(taken);
  const Layout& layout = b.placed(taken).layout;
  TOK_CHECK(layout.strides == row_major(layout.dims) && old.bytes() == type.bytes() &&
                layout.offset * size_of(old.dtype) % size_of(type.dtype) == 0,
            "{} writes {} over a strided or different {}", op, to_string(type), to_string(old));
  Layout over = contiguous(type);
  over.offset = layout.offset * size_of(old.dtype) / size_of(type.dtype);
  return over;
}

// Whether no value of this storage is read after node i, through any view.
bool is_last_use(const Buffers& b, int32_t storage, int32_t i) {
  const auto& members = b.members.at(static_cast<size_t>(storage));
  return std::none_of(members.begin(), members.end(), [&](Value v) {
    const auto it = b.last_use.find(v);
    return it != b.last_use.end() && it->second > b.order(i);
  });
}

bool may_donate(const Buffers& b, int32_t i, Value in, const TensorType& out,
                const std::vector<Value>& takes) {
  const Storage& s = b.storage_of(in);
  if (holds_state(s.arena) || s.segment != b.segment_of(i) || s.bytes != out.bytes()) return false;
  if (b.placed(in).layout.offset != 0 ||
      b.placed(in).layout.strides != row_major(b.placed(in).layout.dims))
    return false;
  // The node would have to wait for the other stream's reader.
  if (s.read_by_stream != b.node(i).stream) return false;
  const auto shares = [&](Value v) {
    return v.valid() && b.placed(v).storage == b.placed(in).storage;
  };
  if (std::any_of(takes.begin(), takes.end(), shares)) return false;
  int uses_here = 0;
  for_each_use(b.node(i), [&](Value v) { uses_here += shares(v) ? 1 : 0; });
  return uses_here == 1 && is_last_use(b, b.placed(in).storage, i);
}

// Returns for each output the value whose bytes it takes.
std::vector<Value> taken_by(const Buffers& b, int32_t i) {
  const Node& n = b.node(i);
  std::vector<Value> takes(n.out.size());
  for (const Accumulation& a : n.accumulations) takes[a.out] = a.into;
  for (const Alias& alias : n.rules->aliases(n.op.get())) {
    Value& take = takes[alias.out];
    if (take.valid() || alias.in >= static_cast<int>(n.in.size())) continue;
    const Value in = n.in[alias.in];
    if (alias.must || may_donate(b, i, in, n.out[alias.out], takes)) take = in;
  }
  return takes;
}

void place_node(Buffers& b, int32_t i) {
  const Node& n = b.node(i);
  if (n.rules->is_view) {
    const Placed& base = b.placed(n.in[0]);
    put(b, {i, 0},
        {.storage = base.storage,
         .version = base.version,
         .layout = n.rules->view(n.op.get(), base.layout)});
    return;
  }
  for_each_use(n, [&](Value v) { read(b, v, i); });
  const std::vector<Value> takes = taken_by(b, i);
  for (size_t k = 0; k < n.out.size(); ++k) {
    const Value v{i, static_cast<int32_t>(k)};
    Placed where;
    if (takes[k].valid()) {
      where = {.storage = b.placed(takes[k]).storage,
               .layout = layout_over(b, takes[k], n.out[k], n.rules->name)};
    } else {
      where = {.storage = new_storage(b, {.bytes = n.out[k].bytes(),
                                          .segment = b.segment_of(i),
                                          .last_segment = b.segment_of(i),
                                          .life = {.first = b.order(i), .last = b.order(i)},
                                          .from_forward = n.label.phase == Phase::kForward}),
               .layout = contiguous(n.out[k])};
    }
    put(b, v, std::move(where));
    Storage& s = b.storage_of(v);
    s.writes.push_back(b.bytes_of(v));
    b.placed(v).version = s.writes.size();
  }
  for (const Value root : b.graph.roots) {
    if (root.node == i) b.storage_of(root).is_kept = true;
  }
}

}  // namespace

void number_nodes(Buffers& b) {
  b.segment_of_node.assign(static_cast<size_t>(b.graph.size()), -1);
  b.order_of_node.assign(static_cast<size_t>(b.graph.size()), -1);
  int32_t next = 0;
  for (size_t s = 0; s < b.segments.size(); ++s) {
    for (const int32_t i : b.segments[s].nodes) {
      b.segment_of_node[i] = static_cast<int32_t>(s);
      b.order_of_node[i] = next++;
    }
  }
}

void find_last_uses(Buffers& b) {
  for (const SegmentNodes& segment : b.segments) {
    for (const int32_t i : segment.nodes) {
      for_each_use(b.node(i),
                   [&](Value v) { b.last_use[v] = std::max(b.last_use[v], b.order(i)); });
    }
  }
  for (auto s = b.segments.rbegin(); s != b.segments.rend(); ++s) {
    for (auto it = s->nodes.rbegin(); it != s->nodes.rend(); ++it) {
      const Node& n = b.node(*it);
      if (!n.rules->is_view) continue;
      const auto of_view = b.last_use.find({*it, 0});
      if (of_view != b.last_use.end())
        b.last_use[n.in[0]] = std::max(b.last_use[n.in[0]], of_view->second);
    }
  }
  for (const Value root : b.graph.roots) b.last_use[root] = INT32_MAX;
}

void place_values(Buffers& b) {
  b.placed_values.resize(static_cast<size_t>(b.graph.size()));
  for (int32_t i = 0; i < b.graph.size(); ++i) place_leaf(b, i);
  for (const SegmentNodes& segment : b.segments) {
    for (const int32_t i : segment.nodes) place_node(b, i);
  }
}

}  // namespace tokamak

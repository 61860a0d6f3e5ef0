#include "tokamak/graph/buffers.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

int64_t align(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// A range of bytes that one or several values share over time.
struct Storage {
  ArenaKind arena = ArenaKind::kScratch;
  StateId state;
  int64_t bytes = 0;
  int64_t offset = 0;
  int32_t segment = -1;
  Lifetime life;
  int32_t last_read = -1;
  int32_t version_node = -1;  // node whose output is the present content
  bool from_forward = false;
};

struct Placed {
  int32_t storage = -1;
  int32_t version = -1;
  Layout layout;
};

class Assigner {
 public:
  Assigner(const Graph& graph, const StateLayout& layout, const std::vector<SegmentNodes>& segments,
           const ChosenVariants& variants, const Target& target)
      : graph_(graph),
        layout_(layout),
        segments_(segments),
        variants_(variants),
        target_(target),
        segment_of_(static_cast<size_t>(graph.size()), -1),
        order_(static_cast<size_t>(graph.size()), -1),
        placed_(static_cast<size_t>(graph.size())) {}

  Plan run() {
    index_nodes();
    count_uses();
    for (int32_t i = 0; i < graph_.size(); ++i) place_leaf(i);
    for (const SegmentNodes& segment : segments_) {
      for (const int32_t i : segment.nodes) place_node(i);
    }
    choose_arenas();
    pack_arenas();
    emit();
    fill_memory_table();
    return std::move(plan_);
  }

 private:
  const Node& node(int32_t i) const { return graph_.node(i); }

  Placed& placed(Value v) {
    return placed_[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
  }

  Storage& storage_of(Value v) { return storages_[static_cast<size_t>(placed(v).storage)]; }

  int32_t order(int32_t i) const { return order_[static_cast<size_t>(i)]; }

  int32_t segment_of(int32_t i) const { return segment_of_[static_cast<size_t>(i)]; }

  void index_nodes() {
    int32_t next = 0;
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (const int32_t i : segments_[s].nodes) {
        segment_of_[static_cast<size_t>(i)] = static_cast<int32_t>(s);
        order_[static_cast<size_t>(i)] = next++;
      }
    }
  }

  // Last use of each value in task order, looking through views.
  void count_uses() {
    for (const SegmentNodes& segment : segments_) {
      for (const int32_t i : segment.nodes) {
        for_each_use(node(i), [&](Value v) { last_use_[v] = std::max(last_use_[v], order(i)); });
      }
    }
    for (auto s = segments_.rbegin(); s != segments_.rend(); ++s) {
      for (auto it = s->nodes.rbegin(); it != s->nodes.rend(); ++it) {
        const Node& n = node(*it);
        if (!n.rules->is_view) continue;
        const auto of_view = last_use_.find({*it, 0});
        if (of_view != last_use_.end())
          last_use_[n.in[0]] = std::max(last_use_[n.in[0]], of_view->second);
      }
    }
    for (const Value root : graph_.roots) last_use_[root] = INT32_MAX;
  }

  int32_t new_storage(Storage storage) {
    storages_.push_back(storage);
    return static_cast<int32_t>(storages_.size()) - 1;
  }

  static Layout contiguous(const TensorType& type) {
    return {.dims = type.dims, .strides = row_major(type.dims)};
  }

  void place_leaf(int32_t i) {
    const Node& n = node(i);
    placed_[static_cast<size_t>(i)].resize(n.out.size());
    if (!n.is_leaf()) return;
    const int32_t s = new_storage({.arena = ArenaKind::kState,
                                   .state = n.state,
                                   .bytes = n.out[0].bytes(),
                                   .offset = layout_[n.state],
                                   .version_node = i});
    put({i, 0}, {.storage = s, .version = i, .layout = contiguous(n.out[0])});
  }

  void read(Value v, int32_t reader) {
    Storage& s = storage_of(v);
    TOK_CHECK(placed(v).version == s.version_node,
              "{} reads a value of {} whose storage was donated to {}", node(reader).rules->name,
              name_of_producer(v.node), name_of_producer(s.version_node));
    s.life.last = std::max(s.life.last, order(reader));
    if (s.segment != segment_of(reader)) crosses_[placed(v).storage] = true;
  }

  std::string name_of_producer(int32_t i) const {
    return node(i).is_leaf() ? "state " + graph_.states()[node(i).state].name
                             : std::string(node(i).rules->name);
  }

  void place_node(int32_t i) {
    const Node& n = node(i);
    if (n.rules->is_view) {
      const Placed& base = placed(n.in[0]);
      put({i, 0}, {.storage = base.storage,
                   .version = base.version,
                   .layout = n.rules->view(n.op.get(), base.layout)});
      return;
    }
    for_each_use(n, [&](Value v) { read(v, i); });
    std::vector<int32_t> taken(n.out.size(), -1);
    for (const Accumulation& a : n.accumulations)
      taken[static_cast<size_t>(a.out)] = placed(a.into).storage;
    for (const Alias& alias : n.rules->aliases(n.op.get())) {
      auto& slot = taken[static_cast<size_t>(alias.out)];
      if (slot >= 0 || alias.in >= static_cast<int>(n.in.size())) continue;
      const Value in = n.in[static_cast<size_t>(alias.in)];
      if (alias.must || may_donate(i, in, n.out[static_cast<size_t>(alias.out)], taken))
        slot = placed(in).storage;
    }
    for (size_t k = 0; k < n.out.size(); ++k) {
      const Value v{i, static_cast<int32_t>(k)};
      if (taken[k] < 0) {
        taken[k] = new_storage({.bytes = n.out[k].bytes(),
                                .segment = segment_of(i),
                                .life = {.first = order(i), .last = order(i)},
                                .from_forward = n.label.phase == Phase::kForward});
      }
      Storage& s = storages_[static_cast<size_t>(taken[k])];
      s.version_node = i;
      put(v, {.storage = taken[k], .version = i, .layout = contiguous(n.out[k])});
    }
    for (const Value root : graph_.roots) {
      if (root.node == i) crosses_[placed(root).storage] = true;
    }
  }

  bool may_donate(int32_t i, Value in, const TensorType& out, const std::vector<int32_t>& taken) {
    const Storage& s = storage_of(in);
    if (s.arena == ArenaKind::kState || s.segment != segment_of(i) || s.bytes != out.bytes())
      return false;
    if (placed(in).layout.offset != 0 ||
        placed(in).layout.strides != row_major(placed(in).layout.dims))
      return false;
    if (std::find(taken.begin(), taken.end(), placed(in).storage) != taken.end()) return false;
    const Node& n = node(i);
    int uses_here = 0;
    for_each_use(n, [&](Value v) { uses_here += placed(v).storage == placed(in).storage ? 1 : 0; });
    return uses_here == 1 && is_last_use(placed(in).storage, i);
  }

  // No value of this storage is read after node i, through whatever view.
  bool is_last_use(int32_t storage, int32_t i) const {
    const auto& members = members_.at(static_cast<size_t>(storage));
    return std::none_of(members.begin(), members.end(), [&](Value v) {
      const auto it = last_use_.find(v);
      return it != last_use_.end() && it->second > order(i);
    });
  }

  void put(Value v, Placed where) {
    members_.resize(std::max(members_.size(), storages_.size()));
    members_[static_cast<size_t>(where.storage)].push_back(v);
    placed(v) = std::move(where);
  }

  void choose_arenas() {
    for (const auto& [index, crosses] : crosses_) {
      Storage& s = storages_[static_cast<size_t>(index)];
      if (s.arena == ArenaKind::kState) continue;
      const bool once =
          segments_[static_cast<size_t>(s.segment)].runs == Segment::Runs::kOncePerStep;
      s.arena = once ? ArenaKind::kCarried : ArenaKind::kSlot;
    }
  }

  void pack_arenas() {
    auto& bytes = plan_.arena_bytes;
    bytes[static_cast<size_t>(ArenaKind::kState)] = layout_.bytes;
    for (Storage& s : storages_) {
      if (s.arena != ArenaKind::kCarried && s.arena != ArenaKind::kSlot) continue;
      s.offset = bytes[static_cast<size_t>(s.arena)];
      bytes[static_cast<size_t>(s.arena)] += align(s.bytes);
    }
    for (size_t g = 0; g < segments_.size(); ++g) pack_scratch(static_cast<int32_t>(g));
  }

  void pack_scratch(int32_t segment) {
    std::vector<Lifetime> lives;
    std::vector<Storage*> owners;
    for (Storage& s : storages_) {
      if (s.arena != ArenaKind::kScratch || s.segment != segment) continue;
      lives.push_back({.first = s.life.first, .last = s.life.last, .bytes = align(s.bytes)});
      owners.push_back(&s);
    }
    std::vector<int32_t> workspace_nodes;
    for (const int32_t i : segments_[static_cast<size_t>(segment)].nodes) {
      const int64_t bytes = workspace_bytes(i);
      if (bytes == 0) continue;
      workspace_nodes.push_back(i);
      lives.push_back({.first = order(i), .last = order(i), .bytes = align(bytes)});
    }
    const int64_t need = pack(lives);
    for (size_t k = 0; k < owners.size(); ++k) owners[k]->offset = lives[k].offset;
    for (size_t k = 0; k < workspace_nodes.size(); ++k) {
      workspace_offset_[workspace_nodes[k]] = lives[owners.size() + k].offset;
    }
    auto& scratch = plan_.arena_bytes[static_cast<size_t>(ArenaKind::kScratch)];
    if (need <= scratch) return;
    scratch = need;
    split_scratch(lives, owners, need);
  }

  // Saved activations are what the backward still reads when it begins; the rest of the peak is
  // temporary.
  void split_scratch(const std::vector<Lifetime>& lives, const std::vector<Storage*>& owners,
                     int64_t need) {
    int32_t first_backward = INT32_MAX;
    for (const SegmentNodes& segment : segments_) {
      for (const int32_t i : segment.nodes) {
        if (node(i).label.phase == Phase::kBackward)
          first_backward = std::min(first_backward, order(i));
      }
    }
    int64_t saved = 0;
    for (size_t k = 0; k < owners.size(); ++k) {
      if (owners[k]->from_forward && lives[k].first < first_backward &&
          lives[k].last >= first_backward) {
        saved += lives[k].bytes;
      }
    }
    activation_bytes_ = std::min(saved, need);
  }

  int64_t workspace_bytes(int32_t i) const {
    const Variant* variant = variants_[static_cast<size_t>(i)];
    if (variant == nullptr || variant->workspace == nullptr) return 0;
    Types in;
    for (const Value v : node(i).in) in.push_back(graph_.type(v));
    return variant->workspace(node(i).op.get(), {.in = in, .out = node(i).out}, target_);
  }

  Operand operand(Value v) {
    const Placed& p = placed(v);
    const Storage& s = storages_[static_cast<size_t>(p.storage)];
    const TensorType& type = graph_.type(v);
    return {.arena = s.arena,
            .offset = s.offset + p.layout.offset * size_of(type.dtype),
            .type = type,
            .strides = p.layout.strides};
  }

  void emit() {
    for (const SegmentNodes& nodes : segments_) {
      Segment segment{.name = nodes.name, .runs = nodes.runs, .tasks = {}};
      for (const int32_t i : nodes.nodes) {
        const Node& n = node(i);
        if (n.rules->is_view) continue;
        Task task{.rules = n.rules,
                  .op = n.op,
                  .variant = variants_[static_cast<size_t>(i)],
                  .label = n.label,
                  .is_clone = n.is_clone};
        for (const Value v : n.in) task.in.push_back(operand(v));
        for (size_t k = 0; k < n.out.size(); ++k) {
          task.out.push_back(operand({i, static_cast<int32_t>(k)}));
          const auto a = n.accumulation(static_cast<int>(k));
          task.accumulate.push_back(a ? std::optional(a->mode) : std::nullopt);
        }
        task.workspace_bytes = workspace_bytes(i);
        if (const auto it = workspace_offset_.find(i); it != workspace_offset_.end())
          task.workspace_offset = it->second;
        segment.tasks.push_back(std::move(task));
      }
      plan_.segments.push_back(std::move(segment));
    }
  }

  void fill_memory_table() {
    std::map<StateKind, int64_t> by_kind;
    const StateTable& states = graph_.states();
    for (int32_t i = 0; i < states.size(); ++i)
      by_kind[states[{i}].kind] += align(states[{i}].type.bytes());
    const auto arena = [&](ArenaKind kind) { return plan_.arena_bytes[static_cast<size_t>(kind)]; };
    plan_.memory = {
        {"parameters", by_kind[StateKind::kParameter]},
        {"gradients", by_kind[StateKind::kGradient]},
        {"optimizer moments", by_kind[StateKind::kMoment]},
        {"compute weights", arena(ArenaKind::kCarried)},
        {"saved activations", activation_bytes_ + arena(ArenaKind::kSlot)},
        {"temporaries and workspace", arena(ArenaKind::kScratch) - activation_bytes_},
        {"KV cache", by_kind[StateKind::kCache]},
        {"inputs and results", by_kind[StateKind::kInput] + by_kind[StateKind::kResult]},
    };
    std::erase_if(plan_.memory, [](const MemoryRow& row) { return row.bytes == 0; });
  }

  const Graph& graph_;
  const StateLayout& layout_;
  const std::vector<SegmentNodes>& segments_;
  const ChosenVariants& variants_;
  const Target& target_;
  std::vector<int32_t> segment_of_;
  std::vector<int32_t> order_;
  std::vector<std::vector<Placed>> placed_;
  std::vector<Storage> storages_;
  std::vector<std::vector<Value>> members_;  // values by storage
  std::map<Value, int32_t> last_use_;
  std::map<int32_t, bool> crosses_;
  std::map<int32_t, int64_t> workspace_offset_;
  int64_t activation_bytes_ = 0;
  Plan plan_;
};

}  // namespace

int64_t pack(std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> by_size(lifetimes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<size_t> done;  // by offset
  int64_t total = 0;
  for (const size_t i : by_size) {
    Lifetime& life = lifetimes[i];
    int64_t offset = 0;
    for (const size_t j : done) {
      const Lifetime& other = lifetimes[j];
      if (other.last < life.first || life.last < other.first) continue;
      if (other.offset >= offset + life.bytes) break;
      offset = std::max(offset, other.offset + other.bytes);
    }
    life.offset = offset;
    total = std::max(total, offset + life.bytes);
    const auto at =
        std::upper_bound(done.begin(), done.end(), offset,
                         [&](int64_t value, size_t j) { return value < lifetimes[j].offset; });
    done.insert(at, i);
  }
  return total;
}

Plan assign_buffers(const Graph& graph, const StateLayout& layout,
                    const std::vector<SegmentNodes>& segments, const ChosenVariants& variants,
                    const Target& target) {
  return Assigner(graph, layout, segments, variants, target).run();
}

}  // namespace tokamak

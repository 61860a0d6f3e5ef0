#include "tokamak/plan/buffers.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tokamak/core/error.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

int64_t align(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Bytes of a storage that node `node` has written.
struct Write {
  int32_t node = -1;
  int64_t begin = 0;
  int64_t end = 0;
};

// A range of bytes that one or several values share over time.
struct Storage {
  static constexpr int kNoStream = -1;
  static constexpr int kManyStreams = -2;

  ArenaKind arena = ArenaKind::kScratch;
  StateId state;
  int64_t bytes = 0;
  int64_t offset = 0;
  int32_t segment = -1;
  int32_t last_segment = -1;  // that reads it
  bool is_kept = false;       // beyond its segment
  int slot_class = -1;
  Lifetime life;
  std::vector<Write> writes;
  int read_by_stream = kNoStream;
  bool from_forward = false;
};

// A value: the bytes that `layout` selects, as they were after the first `version` writes.
struct Placed {
  int32_t storage = -1;
  size_t version = 0;
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
    for (const SegmentNodes& segment : segments_) hold_operands(segment);
    pack_arenas();
    emit();
    set_waits(plan_);
    fill_memory_table();
    return std::move(plan_);
  }

 private:
  const Node& node(int32_t i) const { return graph_.node(i); }

  Placed& placed(Value v) { return placed_[v.node][v.out]; }

  Storage& storage_of(Value v) { return storages_[placed(v).storage]; }

  int32_t order(int32_t i) const { return order_[i]; }

  int32_t segment_of(int32_t i) const { return segment_of_[i]; }

  void index_nodes() {
    int32_t next = 0;
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (const int32_t i : segments_[s].nodes) {
        segment_of_[i] = static_cast<int32_t>(s);
        order_[i] = next++;
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
    storages_.push_back(std::move(storage));
    return static_cast<int32_t>(storages_.size()) - 1;
  }

  static Layout contiguous(const TensorType& type) {
    return {.dims = type.dims, .strides = row_major(type.dims)};
  }

  void place_leaf(int32_t i) {
    const Node& n = node(i);
    placed_[i].resize(n.out.size());
    if (!n.is_leaf()) return;
    const int32_t s = new_storage({.arena = ArenaKind::kState,
                                   .state = n.state,
                                   .bytes = n.out[0].bytes(),
                                   .offset = layout_[n.state]});
    put({i, 0}, {.storage = s, .layout = contiguous(n.out[0])});
  }

  // The bytes of a value in its storage.
  Write bytes_of(Value v) {
    const TensorType& type = graph_.type(v);
    const Layout& layout = placed(v).layout;
    const int64_t begin = layout.offset * size_of(type.dtype);
    return {.node = v.node, .begin = begin, .end = begin + extent_bytes(type, layout.strides)};
  }

  void read(Value v, int32_t reader) {
    TOK_CHECK(placed(v).storage >= 0, "{} reads a value of {} before it is made",
              node(reader).rules->name, name_of_producer(v.node));
    Storage& s = storage_of(v);
    TOK_CHECK(s.arena != ArenaKind::kState || s.offset != StateLayout::kNowhere,
              "{} uses {}, which is absent on this rank", node(reader).rules->name,
              name_of_producer(v.node));
    const Write here = bytes_of(v);
    for (size_t w = placed(v).version; w < s.writes.size(); ++w) {
      const Write& later = s.writes[w];
      TOK_CHECK(later.end <= here.begin || here.end <= later.begin,
                "{} reads a value of {} whose storage was donated to {}", node(reader).rules->name,
                name_of_producer(v.node), name_of_producer(later.node));
    }
    s.life.last = std::max(s.life.last, order(reader));
    s.last_segment = std::max(s.last_segment, segment_of(reader));
    const int stream = node(reader).stream;
    s.read_by_stream = s.read_by_stream == Storage::kNoStream || s.read_by_stream == stream
                           ? stream
                           : Storage::kManyStreams;
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
    const std::vector<Value> takes = taken_by(i);
    for (size_t k = 0; k < n.out.size(); ++k) {
      const Value v{i, static_cast<int32_t>(k)};
      Placed where;
      if (takes[k].valid()) {
        where = {.storage = placed(takes[k]).storage,
                 .layout = layout_over(takes[k], n.out[k], n.rules->name)};
      } else {
        where = {.storage = new_storage({.bytes = n.out[k].bytes(),
                                         .segment = segment_of(i),
                                         .last_segment = segment_of(i),
                                         .life = {.first = order(i), .last = order(i)},
                                         .from_forward = n.label.phase == Phase::kForward}),
                 .layout = contiguous(n.out[k])};
      }
      put(v, std::move(where));
      Storage& s = storage_of(v);
      s.writes.push_back(bytes_of(v));
      placed(v).version = s.writes.size();
    }
    for (const Value root : graph_.roots) {
      if (root.node == i) storage_of(root).is_kept = true;
    }
  }

  // By output: the value whose bytes it takes.
  std::vector<Value> taken_by(int32_t i) {
    const Node& n = node(i);
    std::vector<Value> takes(n.out.size());
    for (const Accumulation& a : n.accumulations) takes[a.out] = a.into;
    for (const Alias& alias : n.rules->aliases(n.op.get())) {
      Value& take = takes[alias.out];
      if (take.valid() || alias.in >= static_cast<int>(n.in.size())) continue;
      const Value in = n.in[alias.in];
      if (alias.must || may_donate(i, in, n.out[alias.out], takes)) take = in;
    }
    return takes;
  }

  // Kernels write dense outputs; a taken value has the output's bytes.
  Layout layout_over(Value taken, const TensorType& type, std::string_view op) {
    const TensorType& old = graph_.type(taken);
    const Layout& layout = placed(taken).layout;
    TOK_CHECK(layout.strides == row_major(layout.dims) && old.bytes() == type.bytes() &&
                  layout.offset * size_of(old.dtype) % size_of(type.dtype) == 0,
              "{} writes {} over a strided or different {}", op, to_string(type), to_string(old));
    Layout over = contiguous(type);
    over.offset = layout.offset * size_of(old.dtype) / size_of(type.dtype);
    return over;
  }

  bool may_donate(int32_t i, Value in, const TensorType& out, const std::vector<Value>& takes) {
    const Storage& s = storage_of(in);
    if (s.arena == ArenaKind::kState || s.segment != segment_of(i) || s.bytes != out.bytes())
      return false;
    if (placed(in).layout.offset != 0 ||
        placed(in).layout.strides != row_major(placed(in).layout.dims))
      return false;
    // It would wait for the other stream's reader.
    if (s.read_by_stream != node(i).stream) return false;
    const auto shares = [&](Value v) {
      return v.valid() && placed(v).storage == placed(in).storage;
    };
    if (std::any_of(takes.begin(), takes.end(), shares)) return false;
    int uses_here = 0;
    for_each_use(node(i), [&](Value v) { uses_here += shares(v) ? 1 : 0; });
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
    members_[where.storage].push_back(v);
    placed(v) = std::move(where);
  }

  bool runs_once(int32_t segment) const {
    return segments_[segment].runs != Segment::Runs::kPerMicrobatch;
  }

  void choose_arenas() {
    for (Storage& s : storages_) {
      if (s.arena == ArenaKind::kState || (!s.is_kept && s.last_segment == s.segment)) continue;
      if (runs_once(s.segment)) {
        s.arena = ArenaKind::kCarried;
        continue;
      }
      TOK_CHECK(!runs_once(s.last_segment), "{} reads a value of one microbatch",
                segments_[s.last_segment].name);
      s.arena = ArenaKind::kSlot;
      s.slot_class = slot_class(s.segment, s.last_segment);
    }
  }

  int slot_class(int32_t first, int32_t last) {
    auto& slots = plan_.slots;
    const auto it = std::find_if(slots.begin(), slots.end(), [&](const SlotClass& c) {
      return c.first_segment == first && c.last_segment == last;
    });
    if (it != slots.end()) return static_cast<int>(it - slots.begin());
    slots.push_back({.first_segment = first, .last_segment = last});
    return static_cast<int>(slots.size()) - 1;
  }

  // Lengthens lives of what tasks of other streams use (buffers.h).
  void hold_operands(const SegmentNodes& segment) {
    std::vector<int32_t> nodes;
    std::vector<StreamTask> tasks;
    for (const int32_t i : segment.nodes) {
      if (node(i).rules->is_view) continue;
      nodes.push_back(i);
      tasks.push_back({.stream = node(i).stream, .when = node(i).when});
    }
    const bool one_stream =
        std::all_of(tasks.begin(), tasks.end(), [](const StreamTask& t) { return t.stream == 0; });
    if (one_stream) return;
    const std::vector<ByteUse> uses = storage_uses(nodes);
    const std::vector<int> known = first_known(tasks, derive_waits(tasks, uses));
    const int count = static_cast<int>(nodes.size());
    std::map<std::pair<int, const OpRules*>, std::vector<int>> followers;  // the nearest last
    for (int t = count; t-- > 0;) {
      const int32_t i = nodes[t];
      auto& same = followers[{node(i).stream, node(i).rules}];
      const int second = same.size() < 2 ? count : same[same.size() - 2];
      same.push_back(t);
      const int end = std::min(known[t], second);
      if (node(i).stream != 0) held_until_[i] = order(nodes[static_cast<size_t>(end) - 1]);
    }
    for (const ByteUse& use : uses) {
      const auto held = held_until_.find(nodes[use.task]);
      if (held == held_until_.end() || use.space < 0) continue;
      Lifetime& life = storages_[use.space].life;
      life.last = std::max(life.last, held->second);
    }
  }

  // Uses as if no two storages shared bytes; State is one space, for it has windows.
  std::vector<ByteUse> storage_uses(const std::vector<int32_t>& nodes) {
    std::vector<ByteUse> uses;
    for (size_t t = 0; t < nodes.size(); ++t) {
      const auto add = [&](Value v, bool writes) {
        const Storage& s = storage_of(v);
        const bool is_state = s.arena == ArenaKind::kState;
        const Write bytes = bytes_of(v);
        const int64_t at = is_state ? s.offset : 0;
        uses.push_back({.task = static_cast<int>(t),
                        .writes = writes,
                        .space = is_state ? -1 : placed(v).storage,
                        .begin = at + bytes.begin,
                        .end = at + bytes.end});
      };
      const Node& n = node(nodes[t]);
      for_each_use(n, [&](Value v) { add(v, false); });
      for (int32_t k = 0; k < std::ssize(n.out); ++k) add({nodes[t], k}, true);
    }
    return uses;
  }

  void pack_arenas() {
    auto& bytes = plan_.arena_bytes;
    bytes[ArenaKind::kState] = layout_.bytes;
    for (Storage& s : storages_) {
      if (s.arena != ArenaKind::kCarried && s.arena != ArenaKind::kSlot) continue;
      int64_t& end = s.arena == ArenaKind::kCarried ? bytes[ArenaKind::kCarried]
                                                    : plan_.slots[s.slot_class].bytes;
      s.offset = end;
      end += align(s.bytes);
    }
    for (SlotClass& slots : plan_.slots) {
      slots.offset = bytes[ArenaKind::kSlot];
      bytes[ArenaKind::kSlot] += slots.bytes;
    }
    // What runs in the background has scratch of its own, after that of all others.
    int64_t& scratch = bytes[ArenaKind::kScratch];
    for (size_t g = 0; g < segments_.size(); ++g) {
      if (!segments_[g].is_background)
        scratch = std::max(scratch, pack_scratch(static_cast<int32_t>(g), 0));
    }
    for (size_t g = 0; g < segments_.size(); ++g) {
      if (segments_[g].is_background) scratch += pack_scratch(static_cast<int32_t>(g), scratch);
    }
  }

  // Packs what lives within one segment from byte `base` on; returns the bytes taken.
  int64_t pack_scratch(int32_t segment, int64_t base) {
    std::vector<Lifetime> lives;
    std::vector<Storage*> owners;
    for (Storage& s : storages_) {
      if (s.arena != ArenaKind::kScratch || s.segment != segment) continue;
      lives.push_back({.first = s.life.first, .last = s.life.last, .bytes = align(s.bytes)});
      owners.push_back(&s);
    }
    std::vector<int32_t> workspace_nodes;
    for (const int32_t i : segments_[segment].nodes) {
      const int64_t bytes = workspace_bytes(i);
      if (bytes == 0) continue;
      workspace_nodes.push_back(i);
      const auto held = held_until_.find(i);
      lives.push_back({.first = order(i),
                       .last = held == held_until_.end() ? order(i) : held->second,
                       .bytes = align(bytes)});
    }
    const int64_t need = pack(lives);
    for (size_t k = 0; k < owners.size(); ++k) owners[k]->offset = base + lives[k].offset;
    for (size_t k = 0; k < workspace_nodes.size(); ++k) {
      workspace_offset_[workspace_nodes[k]] = base + lives[owners.size() + k].offset;
    }
    if (need > plan_.arena_bytes[ArenaKind::kScratch]) split_scratch(lives, owners, need);
    return need;
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
    const Variant* variant = variants_[i];
    if (variant == nullptr || variant->workspace == nullptr) return 0;
    Types in;
    for (const Value v : node(i).in) in.push_back(graph_.type(v));
    return variant->workspace(node(i).op.get(), {.in = in, .out = node(i).out}, target_);
  }

  Operand operand(Value v) {
    const Placed& p = placed(v);
    const Storage& s = storages_[p.storage];
    const TensorType& type = graph_.type(v);
    return {.arena = s.arena,
            .offset = s.offset + p.layout.offset * size_of(type.dtype),
            .type = type,
            .strides = p.layout.strides,
            .slot_class = s.slot_class};
  }

  void emit() {
    for (const SegmentNodes& nodes : segments_) {
      Segment segment{.name = nodes.name,
                      .runs = nodes.runs,
                      .point = nodes.point,
                      .tasks = {},
                      .is_background = nodes.is_background};
      for (const int32_t i : nodes.nodes) {
        const Node& n = node(i);
        if (n.rules->is_view) continue;
        Task task{.rules = n.rules,
                  .op = n.op,
                  .variant = variants_[i],
                  .label = n.label,
                  .stream = n.stream,
                  .is_clone = n.is_clone,
                  .when = n.when};
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
    for (int32_t i = 0; i < states.size(); ++i) {
      const StateDecl& decl = states[{i}];
      if (!decl.is_absent && !decl.window_of.valid())
        by_kind[decl.kind] += align(decl.type.bytes());
    }
    const auto arena = [&](ArenaKind kind) { return plan_.arena_bytes[kind]; };
    plan_.memory = {
        {"parameters", by_kind[StateKind::kParameter]},
        {"gradients", by_kind[StateKind::kGradient]},
        {"optimizer moments", by_kind[StateKind::kMoment]},
        {"compute weights", by_kind[StateKind::kCopy] + arena(ArenaKind::kCarried)},
        {std::string(kSavedActivationsRow), activation_bytes_ + arena(ArenaKind::kSlot)},
        {"temporaries and workspace", arena(ArenaKind::kScratch) - activation_bytes_},
        {"KV cache", by_kind[StateKind::kCache]},
        {"communication buffers", by_kind[StateKind::kBuffer]},
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
  std::map<int32_t, int64_t> workspace_offset_;
  std::map<int32_t, int32_t> held_until_;  // by node of another stream, in task order
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

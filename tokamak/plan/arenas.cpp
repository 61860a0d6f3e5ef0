#include "tokamak/plan/arenas.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

bool runs_once(const Buffers& b, int32_t segment) {
  return b.segments[segment].runs != Segment::Runs::kPerMicrobatch;
}

int slot_class(Buffers& b, int32_t first, int32_t last) {
  auto& slots = b.plan.slots;
  const auto it = std::find_if(slots.begin(), slots.end(), [&](const SlotClass& c) {
    return c.first_segment == first && c.last_segment == last;
  });
  if (it != slots.end()) return static_cast<int>(it - slots.begin());
  slots.push_back({.first_segment = first, .last_segment = last});
  return static_cast<int>(slots.size()) - 1;
}

// Returns uses as if no two storages shared bytes. State is one space, because it has windows.
std::vector<ByteUse> storage_uses(const Buffers& b, const std::vector<int32_t>& nodes) {
  std::vector<ByteUse> uses;
  for (size_t t = 0; t < nodes.size(); ++t) {
    const auto add = [&](Value v, bool writes) {
      const Storage& s = b.storage_of(v);
      const bool is_state = holds_state(s.arena);
      const Write bytes = b.bytes_of(v);
      const int64_t at = is_state ? s.offset : 0;
      const int64_t space = s.arena == ArenaKind::kHost ? -2 : -1;
      uses.push_back({.task = static_cast<int>(t),
                      .writes = writes,
                      .space = is_state ? space : b.placed(v).storage,
                      .begin = at + bytes.begin,
                      .end = at + bytes.end});
    };
    const Node& n = b.node(nodes[t]);
    for_each_use(n, [&](Value v) { add(v, false); });
    for (int32_t k = 0; k < std::ssize(n.out); ++k) add({nodes[t], k}, true);
  }
  return uses;
}

void hold_operands(Buffers& b, const SegmentNodes& segment) {
  std::vector<int32_t> nodes;
  std::vector<StreamTask> tasks;
  for (const int32_t i : segment.nodes) {
    if (b.node(i).rules->is_view) continue;
    nodes.push_back(i);
    tasks.push_back({.stream = b.node(i).stream, .when = b.node(i).when});
  }
  const bool one_stream =
      std::all_of(tasks.begin(), tasks.end(), [](const StreamTask& t) { return t.stream == 0; });
  if (one_stream) return;
  const std::vector<ByteUse> uses = storage_uses(b, nodes);
  const std::vector<int> known = first_known(tasks, derive_waits(tasks, uses));
  const int count = static_cast<int>(nodes.size());
  std::map<std::pair<int, const OpRules*>, std::vector<int>> followers;  // the nearest last
  for (int t = count; t-- > 0;) {
    const int32_t i = nodes[t];
    auto& same = followers[{b.node(i).stream, b.node(i).rules}];
    const int second = same.size() < 2 ? count : same[same.size() - 2];
    same.push_back(t);
    const int end = std::min(known[t], second);
    if (b.node(i).stream != 0) b.held_until[i] = b.order(nodes[static_cast<size_t>(end) - 1]);
  }
  for (const ByteUse& use : uses) {
    const auto held = b.held_until.find(nodes[use.task]);
    if (held == b.held_until.end() || use.space < 0) continue;
    Lifetime& life = b.storages[use.space].life;
    life.last = std::max(life.last, held->second);
  }
}

// Saved activations are what the backward still reads when it begins; the rest of the peak is
// temporary.
void split_scratch(Buffers& b, const std::vector<Lifetime>& lives,
                   const std::vector<Storage*>& owners, int64_t need) {
  int32_t first_backward = INT32_MAX;
  for (const SegmentNodes& segment : b.segments) {
    for (const int32_t i : segment.nodes) {
      if (b.node(i).label.phase == Phase::kBackward)
        first_backward = std::min(first_backward, b.order(i));
    }
  }
  int64_t saved = 0;
  for (size_t k = 0; k < owners.size(); ++k) {
    if (owners[k]->from_forward && lives[k].first < first_backward &&
        lives[k].last >= first_backward) {
      saved += lives[k].bytes;
    }
  }
  b.activation_bytes = std::min(saved, need);
}

// Packs what lives within one segment from byte `base` on; returns the bytes taken.
int64_t pack_scratch(Buffers& b, int32_t segment, int64_t base) {
  std::vector<Lifetime> lives;
  std::vector<Storage*> owners;
  for (Storage& s : b.storages) {
    if (s.arena != ArenaKind::kScratch || s.segment != segment) continue;
    lives.push_back({.first = s.life.first, .last = s.life.last, .bytes = align(s.bytes)});
    owners.push_back(&s);
  }
  std::vector<int32_t> workspace_nodes;
  for (const int32_t i : b.segments[segment].nodes) {
    const int64_t bytes = b.workspace_bytes(i);
    if (bytes == 0) continue;
    workspace_nodes.push_back(i);
    const auto held = b.held_until.find(i);
    lives.push_back({.first = b.order(i),
                     .last = held == b.held_until.end() ? b.order(i) : held->second,
                     .bytes = align(bytes)});
  }
  const int64_t need = pack(lives);
  for (size_t k = 0; k < owners.size(); ++k) owners[k]->offset = base + lives[k].offset;
  for (size_t k = 0; k < workspace_nodes.size(); ++k) {
    b.workspace_offset[workspace_nodes[k]] = base + lives[owners.size() + k].offset;
  }
  if (need > b.plan.arena_bytes[ArenaKind::kScratch]) split_scratch(b, lives, owners, need);
  return need;
}

}  // namespace

void choose_arenas(Buffers& b) {
  for (Storage& s : b.storages) {
    if (holds_state(s.arena) || (!s.is_kept && s.last_segment == s.segment)) continue;
    if (runs_once(b, s.segment)) {
      s.arena = ArenaKind::kCarried;
      continue;
    }
    TOK_CHECK(!runs_once(b, s.last_segment), "{} reads a value of one microbatch",
              b.segments[s.last_segment].name);
    s.arena = ArenaKind::kSlot;
    s.slot_class = slot_class(b, s.segment, s.last_segment);
  }
}

void hold_operands(Buffers& b) {
  for (const SegmentNodes& segment : b.segments) hold_operands(b, segment);
}

void pack_arenas(Buffers& b) {
  auto& bytes = b.plan.arena_bytes;
  bytes[ArenaKind::kState] = b.layout.bytes;
  bytes[ArenaKind::kHost] = b.layout.host_bytes;
  for (Storage& s : b.storages) {
    if (s.arena != ArenaKind::kCarried && s.arena != ArenaKind::kSlot) continue;
    int64_t& end = s.arena == ArenaKind::kCarried ? bytes[ArenaKind::kCarried]
                                                  : b.plan.slots[s.slot_class].bytes;
    s.offset = end;
    end += align(s.bytes);
  }
  for (SlotClass& slots : b.plan.slots) {
    slots.offset = bytes[ArenaKind::kSlot];
    bytes[ArenaKind::kSlot] += slots.bytes;
  }
  // Each background segment has its own scratch, after that of all others.
  int64_t& scratch = bytes[ArenaKind::kScratch];
  for (size_t g = 0; g < b.segments.size(); ++g) {
    if (!b.segments[g].is_background)
      scratch = std::max(scratch, pack_scratch(b, static_cast<int32_t>(g), 0));
  }
  for (size_t g = 0; g < b.segments.size(); ++g) {
    if (b.segments[g].is_background) scratch += pack_scratch(b, static_cast<int32_t>(g), scratch);
  }
}

}  // namespace tokamak

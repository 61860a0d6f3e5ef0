#include "tokamak/plan/buffers.h"

#include <map>

#include "tokamak/plan/arenas.h"
#include "tokamak/plan/place_values.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

Operand operand(const Buffers& b, Value v) {
  const Placed& p = b.placed(v);
  const Storage& s = b.storages[p.storage];
  const TensorType& type = b.graph.type(v);
  return {.arena = s.arena,
          .offset = s.offset + p.layout.offset * size_of(type.dtype),
          .type = type,
          .strides = p.layout.strides,
          .slot_class = s.slot_class};
}

void emit_tasks(Buffers& b) {
  for (const SegmentNodes& nodes : b.segments) {
    Segment segment{.name = nodes.name,
                    .runs = nodes.runs,
                    .point = nodes.point,
                    .tasks = {},
                    .is_background = nodes.is_background,
                    .before_stage = nodes.before_stage};
    for (const int32_t i : nodes.nodes) {
      const Node& n = b.node(i);
      if (n.rules->is_view) continue;
      Task task{.rules = n.rules,
                .op = n.op,
                .variant = b.variants[i],
                .label = n.label,
                .stream = n.stream,
                .is_clone = n.is_clone,
                .when = n.when};
      for (const Value v : n.in) task.in.push_back(operand(b, v));
      for (size_t k = 0; k < n.out.size(); ++k) {
        task.out.push_back(operand(b, {i, static_cast<int32_t>(k)}));
        const auto a = n.accumulation(static_cast<int>(k));
        task.accumulate.push_back(a ? std::optional(a->mode) : std::nullopt);
      }
      task.workspace_bytes = b.workspace_bytes(i);
      if (const auto it = b.workspace_offset.find(i); it != b.workspace_offset.end())
        task.workspace_offset = it->second;
      segment.tasks.push_back(std::move(task));
    }
    b.plan.segments.push_back(std::move(segment));
  }
}

void fill_memory_table(Buffers& b) {
  std::map<StateKind, int64_t> by_kind;
  std::map<StateKind, int64_t> in_host;
  const StateTable& states = b.graph.states();
  for (int32_t i = 0; i < states.size(); ++i) {
    const StateDecl& decl = states[{i}];
    if (decl.is_absent || decl.window_of.valid()) continue;
    (b.layout.is_in_host({i}) ? in_host : by_kind)[decl.kind] += align(decl.type.bytes());
  }
  const auto arena = [&](ArenaKind kind) { return b.plan.arena_bytes[kind]; };
  b.plan.memory = {
      {"parameters", by_kind[StateKind::kParameter], in_host[StateKind::kParameter]},
      {"gradients", by_kind[StateKind::kGradient]},
      {"optimizer moments", by_kind[StateKind::kMoment], in_host[StateKind::kMoment]},
      {"compute weights", by_kind[StateKind::kCopy] + arena(ArenaKind::kCarried)},
      {std::string(kSavedActivationsRow), b.activation_bytes + arena(ArenaKind::kSlot)},
      {std::string(kTemporariesRow), arena(ArenaKind::kScratch) - b.activation_bytes},
      {"KV cache", by_kind[StateKind::kCache]},
      {"communication buffers", by_kind[StateKind::kBuffer]},
      {"inputs and results", by_kind[StateKind::kInput] + by_kind[StateKind::kResult]},
  };
  std::erase_if(b.plan.memory,
                [](const MemoryRow& row) { return row.bytes + row.host_bytes == 0; });
}

}  // namespace

Plan assign_buffers(const Graph& graph, const StateLayout& layout,
                    const std::vector<SegmentNodes>& segments, const ChosenVariants& variants,
                    const Target& target) {
  Buffers b{.graph = graph,
            .layout = layout,
            .segments = segments,
            .variants = variants,
            .target = target};
  number_nodes(b);
  find_last_uses(b);
  place_values(b);
  choose_arenas(b);
  hold_operands(b);
  pack_arenas(b);
  emit_tasks(b);
  set_waits(b.plan);
  fill_memory_table(b);
  return std::move(b.plan);
}

}  // namespace tokamak

#include "tokamak/plan/gather_groups.h"

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"

namespace tokamak {

bool gathers_beside_compute(const Task& task) {
  return task.rules == &kRules<AllGather> && task.stream != 0 &&
         task.in[0].arena == ArenaKind::kScratch && task.out[0].arena == ArenaKind::kScratch;
}

std::vector<bool> gather_groups(std::span<const Plan* const> plans) {
  const size_t num_groups = plans[0]->groups.entries.size();
  std::vector<bool> gathers(num_groups);
  std::vector<bool> does_else(num_groups);
  for (const Plan* plan : plans) {
    TOK_CHECK(plan->groups.entries == plans[0]->groups.entries, "plans of other groups");
    for (const Segment& segment : plan->segments) {
      for (const Task& task : segment.tasks) {
        if (!task.rules->is_communication) continue;
        const auto id = static_cast<size_t>(task.rules->group(task.op.get()).id);
        (gathers_beside_compute(task) ? gathers : does_else).at(id) = true;
      }
    }
  }
  for (size_t id = 0; id < num_groups; ++id) gathers[id] = gathers[id] && !does_else[id];
  return gathers;
}

}  // namespace tokamak

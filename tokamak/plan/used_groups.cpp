#include "tokamak/plan/used_groups.h"

#include <algorithm>
#include <vector>

namespace tokamak {
namespace {

template <class Use>
void for_each_communication(std::span<Plan* const> plans, const Use& use) {
  for (Plan* plan : plans) {
    for (Segment& segment : plan->segments) {
      for (Task& task : segment.tasks) {
        if (task.rules->is_communication) use(task, task.rules->group(task.op.get()));
      }
    }
  }
}

}  // namespace

void drop_unused_groups(std::span<Plan* const> plans) {
  const GroupTable all = plans.front()->groups;
  std::vector<bool> is_used(all.entries.size(), false);
  for_each_communication(plans,
                         [&](const Task&, const CommGroup& group) { is_used[group.id] = true; });
  if (std::find(is_used.begin(), is_used.end(), false) == is_used.end()) return;

  GroupTable used;
  std::vector<int> new_id(all.entries.size(), -1);
  for (size_t id = 0; id < all.entries.size(); ++id) {
    if (!is_used[id]) continue;
    new_id[id] = static_cast<int>(used.entries.size());
    used.entries.push_back(all.entries[id]);
  }
  for_each_communication(plans, [&](Task& task, CommGroup group) {
    group.id = new_id[group.id];
    task.op = task.rules->in_group(task.op.get(), group);
  });
  for (Plan* plan : plans) plan->groups = used;
}

}  // namespace tokamak

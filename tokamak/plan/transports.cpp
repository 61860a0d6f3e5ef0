#include "tokamak/plan/transports.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"

namespace tokamak {
namespace {

// Ranks fill hosts in order.
bool is_of_one_host(const GroupTable::Entry& group, int devices_per_host) {
  const auto host = [&](int rank) { return rank / devices_per_host; };
  return std::all_of(group.ranks.begin(), group.ranks.end(),
                     [&](int rank) { return host(rank) == host(group.ranks.front()); });
}

bool wants_copy_engines(const GroupTable::Entry& group, const Target& target,
                        const TransportOptions& options) {
  if (options.choice == CopyEngines::kAlways) return true;
  return options.num_ranks <= target.devices_per_host ||
         (options.by_group && group.axes == AxisSet{MeshAxis::kTp} &&
          is_of_one_host(group, target.devices_per_host));
}

}  // namespace

bool gathers_beside_compute(const Task& task) {
  return task.rules == &kRules<AllGather> && task.stream != 0 && !holds_state(task.in[0].arena) &&
         !holds_state(task.out[0].arena);
}

void choose_transports(std::span<Plan* const> plans, const Target& target,
                       const TransportOptions& options) {
  if (target.backend != "gpu" || options.choice == CopyEngines::kNever) return;
  if (options.choice == CopyEngines::kAuto && target.devices_per_host == 0) return;
  const GroupTable& groups = plans[0]->groups;
  const size_t num_groups = groups.entries.size();
  std::vector<bool> gathers(num_groups);
  std::vector<bool> does_else(num_groups);
  for (const Plan* plan : plans) {
    TOK_CHECK(plan->groups.entries == groups.entries, "plans of other groups");
    for (const Segment& segment : plan->segments) {
      for (const Task& task : segment.tasks) {
        if (!task.rules->is_communication) continue;
        const auto id = static_cast<size_t>(task.rules->group(task.op.get()).id);
        (gathers_beside_compute(task) ? gathers : does_else).at(id) = true;
      }
    }
  }
  std::vector<Transport> transports(num_groups, Transport::kKernels);
  for (size_t id = 0; id < num_groups; ++id) {
    if (!gathers[id] || does_else[id] || !wants_copy_engines(groups.entries[id], target, options))
      continue;
    transports[id] = groups.entries[id].axes.meets(options.unlike) ? Transport::kCopyEnginesIfAlike
                                                                   : Transport::kCopyEngines;
  }
  for (Plan* plan : plans) plan->transports = transports;
}

}  // namespace tokamak

#include "tokamak/exec/gathered_memory.h"

#include "tokamak/core/error.h"
#include "tokamak/ops/collective.h"

namespace tokamak {
namespace {

// FNV-1a.
class Digest {
 public:
  void add(int64_t value) {
    for (int bit = 0; bit < 64; bit += 8) {
      hash_ ^= static_cast<uint64_t>(value) >> bit & 0xFF;
      hash_ *= 0x100000001B3;
    }
  }

  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

struct GroupUse {
  Digest digest;
  bool gathers = false;
  bool does_else = false;
};

bool gathers_beside_compute(const Task& task) {
  return task.rules == &kRules<AllGather> && task.stream != 0 &&
         task.in[0].arena == ArenaKind::kScratch && task.out[0].arena == ArenaKind::kScratch;
}

void add(const Task& task, std::vector<GroupUse>& uses) {
  if (!task.rules->is_communication) return;
  GroupUse& use = uses.at(static_cast<size_t>(task.rules->group(task.op.get()).id));
  if (!gathers_beside_compute(task)) {
    use.does_else = true;
    return;
  }
  use.gathers = true;
  for (const Operand* x : {&task.in[0], &task.out[0]}) use.digest.add(x->offset);
  use.digest.add(task.in[0].type.bytes());
}

}  // namespace

std::vector<GatheredMemory> gathered_memory(std::span<const Plan* const> plans,
                                            const Memory& memory) {
  std::vector<GroupUse> uses(plans[0]->groups.entries.size());
  for (const Plan* plan : plans) {
    TOK_CHECK(plan->groups.entries == plans[0]->groups.entries, "plans of other groups");
    for (const Segment& segment : plan->segments) {
      for (const Task& task : segment.tasks) add(task, uses);
    }
  }
  std::vector<GatheredMemory> found(uses.size());
  for (size_t id = 0; id < uses.size(); ++id) {
    if (!uses[id].gathers || uses[id].does_else) continue;
    const int64_t bytes = memory.bytes(ArenaKind::kScratch);
    uses[id].digest.add(bytes);
    found[id] = {.base = memory.base(ArenaKind::kScratch),
                 .bytes = bytes,
                 .layout = uses[id].digest.value()};
  }
  return found;
}

}  // namespace tokamak

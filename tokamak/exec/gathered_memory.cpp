#include "tokamak/exec/gathered_memory.h"

#include "tokamak/plan/carriers.h"

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

void add(const Task& task, std::vector<Digest>& digests) {
  if (!gathers_beside_compute(task)) return;
  Digest& digest = digests.at(static_cast<size_t>(task.rules->group(task.op.get()).id));
  for (const Operand* x : {&task.in[0], &task.out[0]}) digest.add(x->offset);
  digest.add(task.in[0].type.bytes());
}

}  // namespace

std::vector<GatheredMemory> gathered_memory(std::span<const Plan* const> plans,
                                            const Memory& memory) {
  const std::vector<Carrier>& carriers = plans[0]->carriers;
  if (carriers.empty()) return {};
  std::vector<Digest> digests(carriers.size());
  for (const Plan* plan : plans) {
    for (const Segment& segment : plan->segments) {
      for (const Task& task : segment.tasks) add(task, digests);
    }
  }
  const int64_t bytes = memory.bytes(ArenaKind::kScratch);
  std::vector<GatheredMemory> found(carriers.size());
  for (size_t id = 0; id < found.size(); ++id) {
    if (carriers[id] == Carrier::kKernels) continue;
    digests[id].add(bytes);
    found[id] = {
        .base = memory.base(ArenaKind::kScratch), .bytes = bytes, .layout = digests[id].value()};
  }
  return found;
}

}  // namespace tokamak

#include "tokamak/exec/gathered_memory.h"

#include "tokamak/plan/transports.h"

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

// The calls of one group. If their digests agree, ranks make each call at the same offsets.
struct Calls {
  Digest digest;
  EnumArray<ArenaKind, bool, kNumArenas> uses{};
};

void add_slots(const Plan& plan, Digest& digest) {
  for (const SlotClass& c : plan.slots)
    for (const int64_t x : {c.offset, c.bytes, int64_t{c.count}, int64_t{c.alias_of}})
      digest.add(x);
  for (const ScheduleItem& item : plan.items) {
    for (const int x : {item.segment, item.microbatch, item.left_microbatch}) digest.add(x);
    for (const int slot : item.slots) digest.add(slot);
  }
}

void add(const Plan& plan, std::vector<Calls>& groups) {
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (!gathers_beside_compute(task)) continue;
      Calls& calls = groups.at(static_cast<size_t>(task.rules->group(task.op.get()).id));
      for (const Operand* x : {&task.in[0], &task.out[0]}) {
        calls.uses[x->arena] = true;
        calls.digest.add(static_cast<int64_t>(x->arena));
        calls.digest.add(x->offset);
        if (x->arena == ArenaKind::kSlot) calls.digest.add(x->slot_class);
      }
      calls.digest.add(task.in[0].type.bytes());
    }
  }
  for (Calls& calls : groups)
    if (calls.uses[ArenaKind::kSlot]) add_slots(plan, calls.digest);
}

}  // namespace

std::vector<GatheredMemory> gathered_memory(std::span<const Plan* const> plans,
                                            const Memory& memory) {
  const std::vector<Transport>& transports = plans[0]->transports;
  if (transports.empty()) return {};
  std::vector<Calls> groups(transports.size());
  for (const Plan* plan : plans) add(*plan, groups);
  std::vector<GatheredMemory> found(transports.size());
  for (size_t id = 0; id < found.size(); ++id) {
    if (transports[id] == Transport::kKernels) continue;
    for (size_t a = 0; a < kNumArenas; ++a) {
      const auto arena = static_cast<ArenaKind>(a);
      if (!groups[id].uses[arena]) continue;
      const auto bytes = static_cast<size_t>(memory.bytes(arena));
      found[id].arenas.emplace_back(memory.base(arena), bytes);
      groups[id].digest.add(memory.bytes(arena));
    }
    found[id].layout = groups[id].digest.value();
  }
  return found;
}

}  // namespace tokamak

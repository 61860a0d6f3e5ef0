#include "tokamak/exec/memory.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"

namespace tokamak {
namespace {

// A device's libraries tune by measuring, which needs memory that the arenas will take.
void prepare_once(Backend& backend, const Plan& plan) {
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (!task.rules->is_communication) prepare(backend, task);
    }
  }
}

}  // namespace

Memory::Memory(Backend& backend, std::span<const Plan* const> plans) : backend_(&backend) {
  if (backend.streams() != nullptr) {
    for (const Plan* plan : plans) prepare_once(backend, *plan);
  }
  EnumArray<ArenaKind, int64_t, kNumArenas> needs{};
  int64_t all = 0;
  for (size_t a = 0; a < kNumArenas; ++a) {
    for (const Plan* plan : plans) needs[a] = std::max(needs[a], plan->arena_bytes[a]);
    if (backend.streams() == nullptr || a == static_cast<size_t>(ArenaKind::kHost)) all += needs[a];
  }
  if (all > 0) require_host_memory(all, 1, "not enough memory for the plan");
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (needs[a] == 0) continue;
    const bool is_host = a == static_cast<size_t>(ArenaKind::kHost);
    arenas_[a] = is_host ? backend.allocate_host(needs[a]) : backend.allocate(needs[a]);
  }
}

std::byte* Memory::base(ArenaKind arena) const {
  const auto& allocation = arenas_[arena];
  return allocation == nullptr ? nullptr : allocation->data();
}

int64_t Memory::bytes() const {
  int64_t total = 0;
  for (const auto& allocation : arenas_) total += allocation == nullptr ? 0 : allocation->bytes();
  return total - bytes(ArenaKind::kHost);
}

int64_t Memory::bytes(ArenaKind arena) const {
  const auto& allocation = arenas_[arena];
  return allocation == nullptr ? 0 : allocation->bytes();
}

void Memory::clear() const {
  for (const auto& allocation : arenas_) {
    if (allocation != nullptr) backend_->clear(allocation->data(), allocation->bytes());
  }
}

std::byte* StateAccess::data(StateId id, int64_t offset, size_t bytes) const {
  const int64_t size = (*states_)[id].type.bytes();
  TOK_CHECK((*layout_)[id] != StateLayout::kNowhere, "{} is absent on this rank",
            (*states_)[id].name);
  TOK_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes) <= size, "{}: {} bytes at {} of {}",
            (*states_)[id].name, bytes, offset, size);
  const auto arena = layout_->is_in_host(id) ? ArenaKind::kHost : ArenaKind::kState;
  std::byte* const at = memory_->base(arena) + (*layout_)[id] + offset;
  return copy_ == nullptr ? at : copy_ + (at - copied_from_);
}

void StateAccess::write_at(StateId id, int64_t offset, std::span<const std::byte> bytes) const {
  memory_->backend().upload(data(id, offset, bytes.size()), bytes.data(),
                            static_cast<int64_t>(bytes.size()));
}

void StateAccess::read_at(StateId id, int64_t offset, std::span<std::byte> bytes) const {
  memory_->backend().download(bytes.data(), data(id, offset, bytes.size()),
                              static_cast<int64_t>(bytes.size()));
}

void StateAccess::write_beside(StateId id, int64_t offset, std::span<const std::byte> bytes) const {
  memory_->backend().write_beside(data(id, offset, bytes.size()), bytes.data(),
                                  static_cast<int64_t>(bytes.size()));
}

void StateAccess::read_beside(StateId id, int64_t offset, std::span<std::byte> bytes) const {
  memory_->backend().read_beside(bytes.data(), data(id, offset, bytes.size()),
                                 static_cast<int64_t>(bytes.size()));
}

void StateAccess::clear_at(StateId id, int64_t offset, int64_t bytes) const {
  memory_->backend().clear(data(id, offset, static_cast<size_t>(bytes)), bytes);
}

bool StateAccess::draw_at(StateId id, int64_t offset, const RandomRange& range) const {
  const auto bytes = static_cast<size_t>(range.count * size_of(range.dtype));
  return memory_->backend().draw(data(id, offset, bytes), range);
}

void StateAccess::write(StateId id, std::span<const std::byte> bytes) const {
  TOK_CHECK(static_cast<int64_t>(bytes.size()) == (*states_)[id].type.bytes(), "{}",
            (*states_)[id].name);
  write_at(id, 0, bytes);
}

void StateAccess::read(StateId id, std::span<std::byte> bytes) const {
  TOK_CHECK(static_cast<int64_t>(bytes.size()) == (*states_)[id].type.bytes(), "{}",
            (*states_)[id].name);
  read_at(id, 0, bytes);
}

}  // namespace tokamak

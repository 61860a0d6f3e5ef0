// The bytes of a run: its arenas, and host access to named State in them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/exec/backend.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// The arenas of a run: exactly the bytes that its plans ask for. Plans of one run share them,
/// since they never run at the same time: the state arena is common, each other arena is as large
/// as the largest plan needs.
class Memory {
 public:
  Memory(Backend& backend, std::span<const Plan* const> plans);

  std::byte* base(ArenaKind arena) const;
  int64_t bytes() const;  ///< without arena kHost
  int64_t bytes(ArenaKind arena) const;

  /// Zeroes all arenas.
  void clear() const;

  Backend& backend() const { return *backend_; }

 private:
  Backend* backend_;
  EnumArray<ArenaKind, std::unique_ptr<Allocation>, kNumArenas> arenas_;
};

/// Host access to named State, by copies.
class StateAccess {
 public:
  StateAccess(const Memory& memory, const StateTable& states, const StateLayout& layout)
      : memory_(&memory), states_(&states), layout_(&layout) {}

  const StateTable& states() const { return *states_; }

  /// REQUIRES: `bytes` has the State's exact size.
  void write(StateId id, std::span<const std::byte> bytes) const;
  void read(StateId id, std::span<std::byte> bytes) const;

  /// The same for the bytes from `offset` on. REQUIRES: they lie inside the State.
  void write_at(StateId id, int64_t offset, std::span<const std::byte> bytes) const;
  void read_at(StateId id, int64_t offset, std::span<std::byte> bytes) const;

  /// They copy concurrently with all streams, on any threads at once (Backend::read_beside).
  void write_beside(StateId id, int64_t offset, std::span<const std::byte> bytes) const;
  void read_beside(StateId id, int64_t offset, std::span<std::byte> bytes) const;

  Backend& backend() const { return memory_->backend(); }

  bool is_in_host(StateId id) const { return layout_->is_in_host(id); }

  /// Returns access to State of the device as it was when the bytes from `of` on were copied to
  /// `copy`. REQUIRES: all State that it is asked for lay there.
  StateAccess in_copy(std::byte* copy, const std::byte* of) const {
    StateAccess there = *this;
    there.copy_ = copy;
    there.copied_from_ = of;
    return there;
  }

  void clear_at(StateId id, int64_t offset, int64_t bytes) const;

  /// Calls Backend::draw for the bytes from `offset` on.
  bool draw_at(StateId id, int64_t offset, const RandomRange& range) const;

  /// Returns the State's address in the device's memory.
  std::byte* address(StateId id) const { return data(id, 0, 0); }

  /// Returns the device's streams, or null.
  DeviceStreams* streams() const { return memory_->backend().streams(); }

  template <class T>
  void write(StateId id, std::span<const T> values) const {
    write(id, std::as_bytes(values));
  }

  template <class T>
  std::vector<T> read(StateId id) const {
    std::vector<T> values((*states_)[id].type.numel());
    read(id, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  std::byte* data(StateId id, int64_t offset, size_t bytes) const;

  const Memory* memory_;
  const StateTable* states_;
  const StateLayout* layout_;
  std::byte* copy_ = nullptr;  ///< of what lies from `copied_from_` on; null = there is none
  const std::byte* copied_from_ = nullptr;
};

}  // namespace tokamak

// Initial values of parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tokamak/core/random.h"
#include "tokamak/exec/executor.h"
#include "tokamak/parallel/tensor_piece.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// The elements of a new parameter, by their place in the whole tensor: a pure function of (seed,
/// name, element), the same on any mesh and any backend.
class InitialValues {
 public:
  InitialValues(std::string name, DType dtype, const Init& init, uint64_t seed);

  /// Fills `out` with the elements `first`, `first` + 1, ...
  void read(int64_t first, std::span<std::byte> out) const;

 private:
  template <class T>
  void fill(int64_t first, std::span<std::byte> out) const;

  std::string name_;
  DType dtype_;
  Init init_;
  uint64_t seed_;
  uint64_t stream_;
  TruncatedNormal normal_;
};

/// Writes the initial values of every parameter's pieces; moments begin at zero.
void initialize(const StateAccess& access, std::span<const TensorPiece> pieces, uint64_t seed);

/// Makes the run's compute copies from its master weights, if plans read copies. Call it after the
/// weights were drawn or loaded, before the first step.
void make_copies(const PlannedRun& run, const Memory& memory);

}  // namespace tokamak

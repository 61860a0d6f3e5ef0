// The table of every number of a machine: its key, unit, range and field. It drives the reader,
// --set, sweeps and printing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokamak/price/machine/machine.h"
#include "tokamak/price/machine/units.h"

namespace tokamak::price {

/// One number of one machine.
struct MachineKey {
  std::string name;
  Dimension dimension = Dimension::kNone;
  double min = 0.0;  ///< SI units
  double max = 0.0;
  bool is_whole = false;
  double (*get)(const Machine& machine, size_t at) = nullptr;
  void (*set)(Machine& machine, size_t at, double value) = nullptr;
  size_t at = 0;  ///< which level, tile or precision

  double value(const Machine& machine) const { return get(machine, at); }
};

/// Returns all keys; those of levels and tiles come after those of every machine.
std::vector<MachineKey> all_keys(const Machine& machine);

/// Throws Error in one line that begins with `who` and names the nearest key.
MachineKey find_key(const Machine& machine, std::string_view name, std::string_view who);

/// Adds the tile if `name` is the key of one that the machine does not have.
void add_tile(Machine& machine, std::string_view name);

/// Writes the number and its source; throws Error that begins with `who` if it is out of range.
void assign(Machine& machine, const MachineKey& key, double in_si, std::string_view source,
            std::string_view who);

/// Whether a level may have this name: no section of a machine file has it.
bool is_level_name(std::string_view name);

}  // namespace tokamak::price

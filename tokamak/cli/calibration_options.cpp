#include "tokamak/cli/calibration_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak::cli {

namespace {

// Calibration assumes that ranks fill nodes one after the other, as plans do.
void require_full_node(const price::Machine& machine, const LaunchEnvironment& launched) {
  if (machine.levels.empty() || launched.rank != 0) return;
  const int domain = machine.levels[0].num_devices;
  const int node = std::min(machine.storage.devices_per_node, launched.world_size);
  const int wanted = domain > 0 ? std::min(domain, node) : node;
  TOK_REQUIRE(launched.local_size >= wanted,
              "--machine {}: {} of {} ranks on host {}: wanted {}, as plans fill nodes",
              machine.name, launched.local_size, launched.world_size, launched.host, wanted);
}

}  // namespace

void CalibrationOptions::add_to(CLI::App& app) {
  app.add_option("--calibration", file,
                 "write a machine file of what was measured, for tokamak price --cluster");
  app.add_option("--machine", machine,
                 "the machine that the calibration refines: a name or a TOML file");
}

void CalibrationOptions::check(bool on_gpus, const LaunchEnvironment& launched) const {
  TOK_REQUIRE(machine.empty() || !file.empty(), "--machine {}: wanted --calibration FILE with it",
              machine);
  if (file.empty()) return;
  if (launched.rank == 0) check_can_write(file);
  if (!machine.empty()) {
    const price::Machine refined = price::load_machine(machine);
    price::require_devices(refined, launched.world_size, fmt::format("--machine {}", machine));
    require_full_node(refined, launched);
  }
  TOK_REQUIRE(!on_gpus || !machine.empty(),
              "--calibration of a GPU: wanted --machine NAME, the machine that it refines: h200, "
              "b200, ...");
}

}  // namespace tokamak::cli

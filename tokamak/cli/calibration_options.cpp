#include "tokamak/cli/calibration_options.h"

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/machine.h"

namespace tokamak::cli {

void CalibrationOptions::add_to(CLI::App& app) {
  app.add_option("--calibration", file,
                 "write a machine file of what was measured, for tokamak plan --cluster");
  app.add_option("--machine", machine, "that the calibration refines: a name or a TOML file");
}

void CalibrationOptions::check(bool on_gpus, int rank, int num_ranks) const {
  TOK_REQUIRE(machine.empty() || !file.empty(), "--machine {}: wanted --calibration FILE with it",
              machine);
  if (file.empty()) return;
  if (rank == 0) check_can_write(file);
  if (!machine.empty()) {
    price::require_devices(price::load_machine(machine), num_ranks,
                           fmt::format("--machine {}", machine));
  }
  TOK_REQUIRE(!on_gpus || !machine.empty(),
              "--calibration of a GPU: wanted --machine NAME, the machine that it refines: h200, "
              "b200, ...");
}

}  // namespace tokamak::cli

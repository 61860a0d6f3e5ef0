#include "tokamak/price/run/price_options.h"

#include "tokamak/run/mesh_options.h"
#include "tokamak/run/planned_ranks.h"

namespace tokamak {

price::PriceOptions price_options(const Config& config, const ModelSpec& model,
                                  const Degrees& degrees, const price::Machine& machine,
                                  price::Precision linear) {
  const std::string& choice = config.parallelism.copy_engine_all_gather;
  const bool is_one_host = degrees.world() <= machine.storage.devices_per_node;
  price::PriceOptions options{
      .linear = linear, .copy_engines = choice == "always" || (choice == "auto" && is_one_host)};
  // They attend to parts of different lengths.
  if (degrees.cp > 1) options.unlike.add(MeshAxis::kCp);
  if (uneven_tp_rank(model, mesh_of(degrees))) options.unlike.add(MeshAxis::kTp);
  return options;
}

}  // namespace tokamak

// The plans that a mesh would run, priced for a machine that need not be here.
#pragma once

#include <string>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/price/step/step_price.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/planned_ranks.h"

namespace tokamak {

struct PriceRequest {
  Config config;  ///< REQUIRES: validate() passed for the mesh
  Degrees degrees;
  price::Machine machine;
  price::Precision linear = price::Precision::kBf16;  ///< of products inside blocks
  bool all_ranks = false;    ///< else the first rank of each pipeline stage
  bool wants_spans = false;  ///< then every rank is planned by itself, for its labels
  Progress progress;
};

struct PricedRun {
  ModelSpec model;
  BatchSizes batch;
  PlannedRanks planned;  ///< those that are priced
  price::PriceOptions options;
  price::StepPrice step;
  std::vector<price::PricedSpan> spans;

  double tokens_per_step = 0.0;
  double memory_limit_bytes = 0.0;  ///< of one device, for a plan

  bool fits() const;
};

/// The run as it is planned for its price: in the compute dtype, since low_precision_flow() adds
/// the casts of 8-bit matmuls.
RunShape priced_shape(const Config& config, const ModelSpec& model, const MeshPlace& place);

/// Throws Error where a stage cannot be planned or the machine lacks a rate that the plan needs.
PricedRun price_run(const PriceRequest& request);

/// Bytes of a device that a plan may have.
double memory_limit(const price::Machine& machine);

/// What model.converters let products inside blocks compute in.
price::Precision linear_precision(const Config& config);

/// What products compute in where those inside blocks are in `linear` if the run has a low one.
price::Precision products_precision(const Config& config, price::Precision linear);

/// Makes model.converters say so; of fp4 they have no name.
void set_linear_precision(Config& config, price::Precision precision);

/// What would make a plan smaller, most telling first; one line.
std::string memory_advice(const PricedRun& run, const Config& config, const Degrees& degrees);

}  // namespace tokamak

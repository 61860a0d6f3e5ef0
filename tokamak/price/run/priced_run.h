// The plans that a mesh would run, priced for a machine that need not be here.
#pragma once

#include <optional>
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
  /// The precision of matmuls inside blocks; if it is absent, the configuration states it.
  std::optional<price::Precision> linear;
  bool all_ranks = false;    ///< else the first rank of each pipeline stage
  bool wants_spans = false;  ///< if so, plan every rank by itself, for its labels
  Progress progress;

  price::Precision precision() const;
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

/// Whether matmuls of `linear` are planned in low precision. Otherwise the plan is in the
/// compute dtype, and price_options() adds the casts of the machine's software.
bool plans_low(price::Precision linear, const price::Machine& machine);

/// Whether matmuls in any low precision are planned so.
bool plans_low(const price::Machine& machine);

/// Throws Error where the plan would have matmuls in a precision that this program has none of.
void require_planned(price::Precision linear, const price::Machine& machine);

/// Takes from a plan what a machine's software does not do: merged matmuls, compute copies that
/// updates write, cut sequences, covered collectives, gathers by copy engines, device graphs.
void apply_software(const price::Software& software, RunShape& shape);

/// Returns the run as it is planned for its price. The recipe of low precision, and which
/// matmuls it leaves out, are up to the configuration.
RunShape priced_shape(const Config& config, price::Precision linear, const price::Machine& machine,
                      const ModelSpec& model, const MeshPlace& place);

/// Returns the options with which such a plan is priced.
price::PriceOptions price_options(price::Precision linear, const price::Machine& machine);

/// Returns the target for which such plans are made.
Target priced_target(const Config& config, const price::Machine& machine);

/// Throws Error if a stage cannot be planned or the machine lacks a rate that the plan needs.
PricedRun price_run(const PriceRequest& request);

/// Returns the bytes of a device that a plan may take.
double memory_limit(const price::Machine& machine);

/// Returns the precision that model.converters choose for matmuls inside blocks.
price::Precision linear_precision(const Config& config);

/// Returns the precision of matmuls of blocks: fp32 if low precision is emulated in it or if the
/// run computes in it, else `linear`.
price::Precision matmul_precision(const Config& config, price::Precision linear);

/// Returns the key that leaves matmuls inside blocks out of low precision, if there are such, for
/// prices of plans in the compute dtype, which take all of them for low.
std::optional<Need> unpriced_filter(const Config& config);

/// Makes model.converters choose `precision`, or 8 bits where that is fp4, for which they have no
/// name.
void set_linear_precision(Config& config, price::Precision precision);

/// Returns in one line what would make a plan smaller, the most effective first.
std::string memory_advice(const PricedRun& run, const Config& config, const Degrees& degrees);

}  // namespace tokamak

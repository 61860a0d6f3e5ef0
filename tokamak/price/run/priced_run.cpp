#include "tokamak/price/run/priced_run.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/config/check.h"
#include "tokamak/config/converters.h"
#include "tokamak/parallel/low_precision.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/slowest_place.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

constexpr const char* kFloat8 = "quantize.linear.float8";
constexpr const char* kMx = "quantize.linear.mx";

}  // namespace

bool plans_low(price::Precision linear, const price::Machine& machine) {
  return price::is_low(linear) && plans_low(machine);
}

bool plans_low(const price::Machine& machine) {
  return machine.software.own_casts == 0;
}

void require_planned(price::Precision linear, const price::Machine& machine) {
  TOK_REQUIRE(
      linear != price::Precision::kFp4 || !plans_low(linear, machine),
      "precision fp4: this program has no matmuls in 4 bits; --cluster NAME+nemo prices one "
      "that has");
}

void apply_software(const price::Software& software, RunShape& shape) {
  DistributeOptions& d = shape.distribute;
  if (software.merges_matmuls == 0) d.merge_matmuls = false;
  if (software.keeps_copies == 0) d.keep_copies = false;
  if (software.whole_sequences == 1) d.sequence_parallel = false;
  if (software.device_graphs == 0) shape.device_graphs = DeviceGraphs::kNever;
  if (software.covers_collectives == 0) {
    d.covers_collectives = d.covers_forwards = d.covers_context = false;
    shape.copy_engines = CopyEngines::kNever;
  }
}

RunShape priced_shape(const Config& config, price::Precision linear, const price::Machine& machine,
                      const ModelSpec& model, const MeshPlace& place) {
  Config planned = config;
  planned.model.converters.clear();
  if (plans_low(linear, machine))
    planned.model.converters.emplace_back(has_mx(config) ? kMx : kFloat8);
  RunShape shape = shape_of(planned, model, place);
  apply_software(machine.software, shape);
  return shape;
}

price::PriceOptions price_options(price::Precision linear, const price::Machine& machine) {
  price::PriceOptions options{.splits_messages = machine.software.whole_sequences == 1};
  if (price::is_low(linear) && !plans_low(linear, machine)) options.linear = linear;
  return options;
}

price::Precision PriceRequest::precision() const {
  return linear.value_or(linear_precision(config));
}

bool PricedRun::fits() const {
  return static_cast<double>(planned.fullest().peak_bytes()) <= memory_limit_bytes;
}

Target priced_target(const Config& config, const price::Machine& machine) {
  return {.backend = "gpu",
          .arch = machine.device.arch,
          .devices_per_host = machine.storage.devices_per_node,
          .deterministic = config.debug.deterministic,
          .rates = price::planning_rates(machine)};
}

namespace {

// Throws Error if the machine does not multiply as the configuration says.
void require_blackwell(const PriceRequest& request, const Target& target) {
  const LowPrecision low = low_precision_of(request.config);
  if (!low.is_mx() || request.linear == price::Precision::kBf16) return;
  const std::string why = low.why_not(target);
  TOK_REQUIRE(why.empty(), "model.converters: {}", why);
}

}  // namespace

PricedRun price_run(const PriceRequest& request) {
  const Config& config = request.config;
  const Target target = priced_target(config, request.machine);
  require_planned(request.precision(), request.machine);
  require_blackwell(request, target);
  using Which = PlannedRanks::Which;
  const Which which = request.all_ranks     ? (request.wants_spans ? Which::kOwnAll : Which::kAll)
                      : request.wants_spans ? Which::kOwnStages
                                            : Which::kStages;
  const ModelSpec model = spec_of(config);
  const RunShape shape = priced_shape(config, request.precision(), request.machine, model,
                                      {.degrees = request.degrees});
  const int place = request.all_ranks ? 0 : slowest_place(shape.distribute, request.machine);
  PricedRun priced{.model = model,
                   .batch = batch_sizes(config, request.degrees),
                   .planned = PlannedRanks(model, shape, target, which, place, request.progress)};
  std::vector<price::PricedRank> ranks;
  for (const PlannedRanks::Rank& r : priced.planned.ranks())
    ranks.push_back({.plan = r.plan, .rank = r.rank, .groups = r.groups});
  priced.options = price_options(request.precision(), request.machine);
  priced.options.device_graphs = ranks[0].plan->device_graphs;
  const price::Machine machine = price::slowest_of(request.machine, request.degrees.world());
  priced.step = price::price_step(ranks, static_cast<int>(priced.batch.num_microbatches), machine,
                                  priced.options, request.wants_spans ? &priced.spans : nullptr,
                                  request.progress);
  priced.tokens_per_step =
      static_cast<double>(priced.batch.global) * static_cast<double>(config.training.seq_len);
  priced.memory_limit_bytes = memory_limit(request.machine);
  return priced;
}

double memory_limit(const price::Machine& machine) {
  return machine.device.memory.bytes - machine.device.memory.reserve_bytes;
}

price::Precision linear_precision(const Config& config) {
  return has_float8(config) || has_mx(config) ? price::Precision::kFp8 : price::Precision::kBf16;
}

price::Precision matmul_precision(const Config& config, price::Precision linear) {
  const auto& keys = config.quantize.linear;
  const bool emulates = has_mx(config) ? keys.mx.emulate : keys.float8.emulate;
  const bool is_fp32 = price::is_low(linear) ? emulates : compute_type(config) == DType::kF32;
  return is_fp32 ? price::Precision::kFp32 : linear;
}

std::optional<Need> unpriced_filter(const Config& config) {
  Strings left_alone = config.quantize.linear.float8.filter_fqns;
  std::erase(left_alone, "output");  // outside blocks
  if (left_alone.empty()) return std::nullopt;
  return Need{.key = fmt::format("{}.filter_fqns", kFloat8),
              .value = fmt::format("[\"{}\"]", fmt::join(left_alone, "\", \"")),
              .reason = "all products inside blocks are priced in fp8"};
}

void set_linear_precision(Config& config, price::Precision precision) {
  const bool is_low = price::is_low(precision);
  if (is_low == price::is_low(linear_precision(config))) return;
  config.model.converters.clear();
  if (is_low) config.model.converters.emplace_back(kFloat8);
}

std::string memory_advice(const PricedRun& run, const Config& config, const Degrees& degrees) {
  const bool has_pipeline = degrees.pp > 1;
  std::vector<std::string> advice;
  if (run.batch.microbatch > 1) {
    advice.push_back(fmt::format("a smaller {} ({})",
                                 has_pipeline ? "parallelism.pipeline_parallel_microbatch_size"
                                              : "training.local_batch_size",
                                 run.batch.microbatch));
  }
  const ActivationCheckpointConfig& ac = config.activation_checkpoint;
  const bool makes_all_again =
      ac.mode == "full" || (ac.mode == "selective" && ac.selective_ac_option == "op");
  if (degrees.tp > 1 && !ac.gather_again && !makes_all_again)
    advice.emplace_back("activation_checkpoint.gather_again = true (false)");
  if (ac.mode != "full")
    advice.push_back(fmt::format("activation_checkpoint.mode = \"full\" (\"{}\")", ac.mode));
  const bool may_share = degrees.pp == 1 && degrees.dp_shard * degrees.cp > 1;
  if (may_share &&
      keeps_full_gradients(config.parallelism.data_parallel_type, config.training.grad_store,
                           degrees, run.batch.num_microbatches))
    advice.push_back(
        fmt::format("training.grad_store = \"sharded\" (\"{}\")", config.training.grad_store));
  if (degrees.dp_replicate > 1)
    advice.push_back("more of the ranks in parallelism.data_parallel_shard_degree");
  if (config.parallelism.data_parallel_type != "fsdp" && degrees.dp_shard * degrees.cp > 1)
    advice.push_back(fmt::format("parallelism.data_parallel_type = \"fsdp\" (\"{}\")",
                                 config.parallelism.data_parallel_type));
  if (degrees.tp < 8 && degrees.dp() * degrees.cp > 1) {
    advice.push_back(fmt::format("a larger parallelism.tensor_parallel_degree ({})", degrees.tp));
  } else {
    advice.push_back(fmt::format("more --gpus ({})", degrees.world()));
  }
  return fmt::format("{}", fmt::join(advice, "; "));
}

}  // namespace tokamak

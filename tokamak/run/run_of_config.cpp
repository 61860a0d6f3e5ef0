#include "tokamak/run/run_of_config.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tokamak/config/describe.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/open_source.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/models/own_sizes.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

RecomputePolicy recompute_of(const ActivationCheckpointConfig& c) {
  using Mode = RecomputePolicy::Mode;
  if (c.mode == "full") return {.mode = Mode::kFull};
  if (c.mode == "memory_budget")
    return {.mode = Mode::kMemoryBudget, .memory_budget = c.memory_budget};
  if (c.mode != "selective") return {};
  if (c.selective_ac_option == "op") {
    // torchtitan keeps attention and every second matmul.
    return {.mode = Mode::kSelectiveOps,
            .saved_ops = {"attention"},
            .halved_ops = {"linear", "scaled_matmul"}};
  }
  return {.mode = Mode::kSelectiveLayers, .every_nth_block = std::stoi(c.selective_ac_option)};
}

DeviceGraphs device_graphs_of(const std::string& choice) {
  if (choice == "always") return DeviceGraphs::kAlways;
  return choice == "auto" ? DeviceGraphs::kAuto : DeviceGraphs::kNever;
}

CopyEngines copy_engines_of(const std::string& choice) {
  if (choice == "always") return CopyEngines::kAlways;
  return choice == "auto" ? CopyEngines::kAuto : CopyEngines::kNever;
}

}  // namespace

Capabilities capabilities(std::string why_no_cuda) {
  Capabilities can{.why_no_cuda = std::move(why_no_cuda)};
  for (const ExtraDataset* extra : extra_datasets()) can.datasets.emplace_back(extra->name);
  for (const std::string& name : model_names()) {
    Strings flavors = flavors_of(name);
    flavors.emplace_back("hf");
    can.models.emplace_back(name, flavors);
  }
  return can;
}

bool has_hf_config(const Config& config) {
  return config.model.flavor == "hf";
}

fs::path assets_folder(const Config& config) {
  const fs::path path = assets_path(config);
  return is_folder(path) ? path : path.parent_path();
}

fs::path model_folder(const Config& config) {
  const fs::path path = config.model.hf_assets_path;
  return path_exists(path / "config.json") ? path : assets_folder(config);
}

bool has_model(const Config& c) {
  return !has_hf_config(c) || path_exists(model_folder(c) / "config.json");
}

ModelSpec spec_of(const Config& c) {
  ModelSpec spec;
  if (has_hf_config(c)) {
    const fs::path file = model_folder(c) / "config.json";
    TOK_REQUIRE(path_exists(file),
                "model.hf_assets_path = {}: there is no config.json, which model.flavor = \"hf\" "
                "needs",
                c.model.hf_assets_path);
    spec = parse_hf_config(read_file(file, kSmallFileBytes), file.string());
  } else {
    spec = flavor_spec(c.model.name, c.model.flavor);
  }
  const ModelConfig& m = c.model;
  apply_sizes({.layers = m.layers,
               .dim = m.dim,
               .heads = m.heads,
               .kv_heads = m.kv_heads,
               .head_dim = m.head_dim,
               .mlp_dim = m.mlp_dim,
               .vocab_size = m.vocab,
               .window = m.window},
              spec);
  if (c.model.dropout) {
    spec.dropout.embedding = spec.dropout.attention = spec.dropout.residual = *c.model.dropout;
  }
  const int64_t positions = learned_positions(spec);
  const auto require_positions = [&](const char* section, int64_t seq_len) {
    TOK_REQUIRE(positions == 0 || seq_len <= positions,
                "{}.seq_len = {}: the model has {} learned positions", section, seq_len, positions);
  };
  require_positions("training", c.training.seq_len);
  if (c.validation.enable) require_positions("validation", c.validation.seq_len);
  // Servers cut texts at this length of the export. Dynamic RoPE scales from it on.
  if (positions == 0 && spec.rope.scaling.kind != RopeScaling::Kind::kDynamic)
    spec.max_seq_len = std::max(spec.max_seq_len, c.training.seq_len);
  return spec;
}

std::string recompute_text(const ActivationCheckpointConfig& c) {
  if (c.mode == "selective") return "selective " + c.selective_ac_option;
  if (c.mode == "memory_budget") return fmt::format("memory_budget {}", c.memory_budget);
  return c.mode;
}

DType compute_type(const Config& c) {
  const DType master = dtype_from_name(c.training.dtype, "training.dtype");
  return master == DType::kBF16
             ? master
             : dtype_from_name(c.training.mixed_precision_param, "training.mixed_precision_param");
}

RunShape shape_of(const Config& c, const ModelSpec& spec, const MeshPlace& place) {
  RunShape shape;
  const BatchSizes sizes = batch_sizes(c, place.degrees);
  DistributeOptions& d = shape.distribute;
  d = distribute_options(c, place.degrees, place.rank);
  d.num_microbatches = sizes.num_microbatches;
  if (place.degrees.pp > 1) {
    PipelinePlan pipeline =
        pipeline_plan(c, place.degrees, spec.num_layers, sizes.num_microbatches);
    d.stage_of_module = stage_of_module(pipeline.split);
    d.pipeline = std::move(pipeline.schedule);
  }
  TrainingGraphOptions& t = shape.training;
  t.batch = sizes.microbatch;
  t.seq_len = c.training.seq_len;
  t.master = dtype_from_name(c.training.dtype, "training.dtype");
  t.compute = compute_type(c);
  t.seed = static_cast<uint64_t>(seed_of(c));
  t.optimizer = {.decoupled_decay = c.optimizer.name == "AdamW",
                 .beta1 = c.optimizer.beta1,
                 .beta2 = c.optimizer.beta2,
                 .eps = c.optimizer.eps,
                 .weight_decay = c.optimizer.weight_decay,
                 .max_norm = c.training.max_norm,
                 .no_decay = c.optimizer.no_decay,
                 .limits_norm = c.training.on_spike == "skip" || c.training.on_spike == "replay"};
  if (c.optimizer.state_dtype)
    t.optimizer.state = dtype_from_name(*c.optimizer.state_dtype, "optimizer.state_dtype");
  shape.device_graphs = device_graphs_of(c.job.cuda_graphs);
  shape.distribute.low_precision = low_precision_of(c);
  shape.copy_engines = copy_engines_of(c.parallelism.copy_engine_all_gather);
  shape.offload.enable = c.training.enable_cpu_offload;
  if (c.training.offload_above_gib > 0.0)
    shape.offload.device_bytes = static_cast<int64_t>(c.training.offload_above_gib * kGiB);
  shape.recompute = recompute_of(c.activation_checkpoint);
  shape.recompute.emit_on_backward = c.activation_checkpoint.emit_on_backward;
  if (c.validation.enable) {
    shape.validation = t;
    shape.validation->batch = c.validation.local_batch_size;
    shape.validation->seq_len = c.validation.seq_len;
  }
  return shape;
}

}  // namespace tokamak

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/config/key_table.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {

namespace {

constexpr const char* kNotBuilt = "not built yet";
constexpr const char* kNoPython = "Python modules cannot be loaded here";

bool contains(const Strings& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

class Collector {
 public:
  explicit Collector(const Config& config) : config_(config) {}

  void add(std::string_view name, std::string reason) {
    const Key* key = find_key(name);
    TOK_CHECK(key != nullptr, "no key {}", name);
    found_.push_back({std::string(name), value_text(get_value(config_, *key)), std::move(reason)});
  }

  void unless(bool fine, std::string_view name, std::string reason) {
    if (!fine) add(name, std::move(reason));
  }

  std::vector<Need> take() {
    std::stable_sort(found_.begin(), found_.end(), [](const Need& a, const Need& b) {
      return find_key(a.key) < find_key(b.key);
    });
    return std::move(found_);
  }

 private:
  const Config& config_;
  std::vector<Need> found_;
};

void listed_values(const Config& config, Collector& out) {
  for (const Key& key : all_keys()) {
    if (is_foreign_value(config, key)) {
      const Strings names = allowed_list(key);
      std::string value = value_text(get_value(config, key));
      std::erase(value, '"');
      out.add(key.name, fmt::format("only {} {} built{}", fmt::join(names, ", "),
                                    names.size() == 1 ? "is" : "are", nearest_hint(value, names)));
    }
  }
}

void model(const Config& config, const Capabilities& can, Collector& out) {
  if (can.models.empty()) return;
  const auto family = std::find_if(can.models.begin(), can.models.end(),
                                   [&](const auto& row) { return row.first == config.model.name; });
  if (family == can.models.end()) {
    Strings names;
    for (const auto& row : can.models) names.push_back(row.first);
    return out.add("model.name", fmt::format("not one of ours: {}{}", fmt::join(names, ", "),
                                             nearest_hint(config.model.name, names)));
  }
  out.unless(
      contains(family->second, config.model.flavor), "model.flavor",
      fmt::format("not a flavor of {}: {}{}", config.model.name, fmt::join(family->second, ", "),
                  nearest_hint(config.model.flavor, family->second)));
}

void dataset(const std::string& section, const std::string& name, bool has_path,
             const Capabilities& can, Collector& out) {
  if (!contains(can.datasets, name)) {
    out.add(section + ".dataset",
            fmt::format("not one of ours: {}{}", fmt::join(can.datasets, ", "),
                        nearest_hint(name, can.datasets)));
  } else if (name != "shakespeare" && name != "synthetic" && !has_path) {
    out.add(section + ".dataset_path", fmt::format("dataset {} needs a file or folder", name));
  }
}

void parallelism(const Config& config, const Capabilities& can, Collector& out) {
  const ParallelismConfig& p = config.parallelism;
  const std::string reason = "more than one rank of this kind is not built yet";
  out.unless(can.data_parallel || p.data_parallel_replicate_degree == 1,
             "parallelism.data_parallel_replicate_degree", reason);
  out.unless(can.data_parallel || p.data_parallel_shard_degree <= 1,
             "parallelism.data_parallel_shard_degree", reason);
  out.unless(can.tensor_parallel || p.tensor_parallel_degree == 1,
             "parallelism.tensor_parallel_degree", reason);
  out.unless(can.context_parallel || p.context_parallel_degree == 1,
             "parallelism.context_parallel_degree", reason);
  out.unless(can.pipeline_parallel || p.pipeline_parallel_degree == 1,
             "parallelism.pipeline_parallel_degree", reason);
  out.unless(can.expert_parallel || p.expert_parallel_degree == 1,
             "parallelism.expert_parallel_degree", reason);
  out.unless(can.expert_parallel || p.expert_tensor_parallel_degree == 1,
             "parallelism.expert_tensor_parallel_degree", reason);
}

}  // namespace

bool has_float8(const Config& config) {
  return contains(config.model.converters, "float8") ||
         contains(config.model.converters, "quantize.linear.float8");
}

bool has_mx(const Config& config) {
  return contains(config.model.converters, "mx") ||
         contains(config.model.converters, "quantize.linear.mx");
}

namespace {

void quantization(const Config& config, const Capabilities& can, Collector& out) {
  for (const std::string& name : config.model.converters) {
    const bool is_grouped = name.starts_with("quantize.grouped_mm.");
    if (is_grouped && !can.grouped_mm)
      return out.add("model.converters", fmt::format("{}: no model here has experts", name));
    const bool is_built = name.ends_with("float8") ? can.float8 : name.ends_with("mx") && can.mx;
    if (!is_grouped && !is_built)
      return out.add("model.converters", fmt::format("{} is not built yet", name));
  }
}

void features(const Config& c, const Capabilities& can, Collector& out) {
  out.unless(c.job.custom_config_module.empty(), "job.custom_config_module", kNoPython);
  out.unless(c.experimental.custom_import.empty(), "experimental.custom_import", kNoPython);
  out.unless(c.experimental.custom_args_module.empty(), "experimental.custom_args_module",
             kNoPython);
  out.unless(can.why_no_cuda.empty() || c.job.device != "cuda", "job.device", can.why_no_cuda);
  out.unless(can.profiling || !c.profiling.enable_profiling, "profiling.enable_profiling",
             kNotBuilt);
  out.unless(can.memory_snapshot || !c.profiling.enable_memory_snapshot,
             "profiling.enable_memory_snapshot",
             "not built yet (--dry-run prints the memory plan)");
  out.unless(can.early_step_in_backward || !c.optimizer.early_step_in_backward,
             "optimizer.early_step_in_backward", kNotBuilt);
  out.unless(can.bf16_master_weights || c.training.dtype == "float32", "training.dtype",
             "master weights are float32 (mixed_precision_param sets the type of the computation)");
  out.unless(!c.checkpoint.initial_load_in_hf_quantized, "checkpoint.initial_load_in_hf_quantized",
             kNotBuilt);
  out.unless(c.comm.mode == "default", "comm.mode", "not built (tokamak plan needs no peers)");
  out.unless(!c.memory_estimation.enable, "memory_estimation.enable",
             "use train --dry-run, which prints the memory plan");
  out.unless(can.fault_tolerance || !c.fault_tolerance.enable, "fault_tolerance.enable", kNotBuilt);
  out.unless(c.parallelism.context_parallel_load_balancer != "ptrr",
             "parallelism.context_parallel_load_balancer",
             "for block masks, which are not built; headtail balances causal attention");
  const std::string csv = c.parallelism.pipeline_parallel_schedule_csv.value_or("");
  out.unless(can.pipeline_parallel || csv.empty(), "parallelism.pipeline_parallel_schedule_csv",
             kNotBuilt);
}

}  // namespace

std::vector<Need> needs(const Config& config, const Capabilities& capabilities) {
  Collector out(config);

  Config listed = config;
  if (capabilities.bf16_reduce && listed.training.mixed_precision_reduce == "bfloat16") {
    listed.training.mixed_precision_reduce = "float32";
  }
  listed_values(listed, out);
  model(config, capabilities, out);
  dataset("training", config.training.dataset, config.training.dataset_path.has_value(),
          capabilities, out);
  if (config.validation.enable) {
    dataset("validation", config.validation.dataset, config.validation.dataset_path.has_value(),
            capabilities, out);
  }
  parallelism(config, capabilities, out);
  quantization(config, capabilities, out);
  features(config, capabilities, out);
  return out.take();
}

}  // namespace tokamak

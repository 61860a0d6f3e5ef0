#include <cmath>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "tokamak/config/merge.h"

namespace tokamak {

namespace {

// One retired key, its value and where the result goes.
struct Job {
  const RetiredKey& key;
  const Entry& entry;
  Source source;
  Merge& merge;

  void set(const std::string& name, const SettingValue& value) const {
    merge.assign(name, value, entry, source);
  }

  void set(const SettingValue& value) const { set(std::string(key.successor), value); }

  void refuse(std::string_view wanted) const {
    merge.error(entry, source,
                fmt::format("wanted {}, got {}", wanted, value_description(entry.value)));
  }

  // Returns the value as T; where it has another type, records an error and returns null.
  template <class T>
  const T* get(std::string_view wanted) const {
    const T* value = std::get_if<T>(&entry.value);
    if (value == nullptr) refuse(wanted);
    return value;
  }
};

int64_t given_int(const Merge& merge, const std::string& key, int64_t fallback) {
  const SettingValue* value = merge.given(key);
  const int64_t* number = value == nullptr ? nullptr : std::get_if<int64_t>(value);
  return number == nullptr ? fallback : *number;
}

void interval_type(const Job& job) {
  const auto* text = std::get_if<std::string>(&job.entry.value);
  if (text == nullptr || *text != "steps") {
    job.refuse("\"steps\" (intervals in seconds are not supported; set checkpoint.interval)");
  }
}

void comm_timeout(const Job& job) {
  job.set("comm.init_timeout_seconds", job.entry.value);
  job.set("comm.train_timeout_seconds", job.entry.value);
}

void estimate_memory(const Job& job) {
  const auto* text = std::get_if<std::string>(&job.entry.value);
  job.set(text != nullptr ? SettingValue(!text->empty()) : job.entry.value);
}

void float8_linear(const Job& job) {
  const auto* text = std::get_if<std::string>(&job.entry.value);
  const bool* flag = std::get_if<bool>(&job.entry.value);
  if (flag == nullptr && (text == nullptr || (!text->empty() && *text != "dynamic"))) {
    return job.refuse("true, false, \"dynamic\" or \"\"");
  }
  if (flag != nullptr ? !*flag : text->empty()) return;
  std::vector<std::string> names;
  const SettingValue* given = job.merge.given("model.converters");
  if (given != nullptr) {
    const auto* list = std::get_if<std::vector<std::string>>(given);
    if (list == nullptr) return;  // Reported where the key itself is set.
    names = *list;
  }
  for (const std::string& name : names) {
    if (name == "float8" || name == "quantize.linear.float8") return;
  }
  names.push_back("quantize.linear.float8");
  // Adding to the list of another key is no conflict, so it counts as that key's own assignment.
  Entry entry = job.entry;
  if (given != nullptr) entry.name = "model.converters";
  job.merge.assign("model.converters", names, entry, job.source);
}

void scaling_type(const Job& job) {
  const auto* text = std::get_if<std::string>(&job.entry.value);
  if (text != nullptr && *text == "dynamic") return;
  if (text == nullptr || *text != "delayed")
    return job.refuse("\"dynamic\" or \"delayed\" (static scaling is not supported; see " +
                      std::string(job.key.successor) + ")");
  constexpr std::string_view kPrefix = "scaling_type_";
  const std::string& name = job.entry.name;
  const std::string prefix = name.substr(0, name.find(kPrefix) + kPrefix.size());
  for (const char* operand : {"input", "weight", "grad_output"}) {
    const SettingValue* value = job.merge.given_retired(prefix + operand);
    const auto* other = value == nullptr ? nullptr : std::get_if<std::string>(value);
    if (other == nullptr || *other != "delayed")
      return job.refuse(
          fmt::format("\"delayed\" for all of {0}input, {0}weight and "
                      "{0}grad_output, or for none",
                      prefix));
  }
  if (!name.ends_with("input")) return;
  constexpr int64_t kLength = 16;
  job.set("delayed");
  if (job.merge.given("quantize.linear.float8.amax_history_len") == nullptr)
    job.set("quantize.linear.float8.amax_history_len", kLength);
}

void checkpoint_folder(const Job& job) {
  const auto* text = job.get<std::string>("a string");
  if (text == nullptr || text->empty()) return;
  job.set(*text);
  if (job.merge.given("checkpoint.enable") == nullptr) job.set("checkpoint.enable", true);
}

void data_parallel_degree(const Job& job) {
  const int64_t* degree = job.get<int64_t>("an integer");
  if (degree == nullptr) return;
  const SettingValue* type = job.merge.given("parallelism.data_parallel_type");
  const auto* text = type == nullptr ? nullptr : std::get_if<std::string>(type);
  const bool is_ddp = text != nullptr && *text == "ddp";
  if (!is_ddp || *degree == -1) {
    job.set("parallelism.data_parallel_shard_degree", *degree);
  } else {
    job.set("parallelism.data_parallel_replicate_degree", *degree);
    job.set("parallelism.data_parallel_shard_degree", int64_t{1});
  }
}

void selective_ac(const Job& job) {
  if (const bool* flag = job.get<bool>("true or false")) job.set(*flag ? "selective" : "full");
}

void warmup_share(const Job& job) {
  const auto* share = std::get_if<double>(&job.entry.value);
  const auto* whole = std::get_if<int64_t>(&job.entry.value);
  const double value = share != nullptr   ? *share
                       : whole != nullptr ? static_cast<double>(*whole)
                                          : -1;
  if (!(value >= 0 && value <= 1)) return job.refuse("a number 0..1");
  const auto steps =
      static_cast<double>(given_int(job.merge, "training.steps", Config().training.steps));
  job.set(static_cast<int64_t>(std::nearbyint(value * steps)));
}

void microbatches(const Job& job) {
  const int64_t* count = job.get<int64_t>("an integer");
  if (count == nullptr) return;
  const int64_t batch =
      given_int(job.merge, "training.local_batch_size", Config().training.local_batch_size);
  if (*count < 1 || batch % *count != 0) {
    return job.refuse(fmt::format("a number that divides training.local_batch_size = {}", batch));
  }
  job.set(batch / *count);
}

void mask_type(const Job& job) {
  const auto* text = job.get<std::string>("\"causal\" or \"block_causal\"");
  if (text == nullptr || *text == "causal") return;
  job.merge.need({job.entry.name, value_text(job.entry.value),
                  "only causal attention is built (it became part of model.flavor)"});
}

void flex_attention(const Job& job) {
  const bool* flag = job.get<bool>("true or false");
  if (flag == nullptr || !*flag) return;
  job.merge.need(
      {job.entry.name, "true", "flex attention is not built (it became part of model.flavor)"});
}

using Translator = void (*)(const Job&);

const std::map<std::string_view, Translator>& translators() {
  static const std::map<std::string_view, Translator> kTranslators = {
      {"checkpoint.interval_type", interval_type},
      {"comm.timeout_seconds", comm_timeout},
      {"estimate.memory", estimate_memory},
      {"experimental.pipeline_parallel_microbatches", microbatches},
      {"float8.enable_float8_linear", float8_linear},
      {"float8.scaling_type_grad_output", scaling_type},
      {"float8.scaling_type_input", scaling_type},
      {"float8.scaling_type_weight", scaling_type},
      {"model.attn_mask_type", mask_type},
      {"model.use_flex_attn", flex_attention},
      {"parallelism.pipeline_parallel_microbatches", microbatches},
      {"training.checkpoint_folder", checkpoint_folder},
      {"training.checkpoint_interval_type", interval_type},
      {"training.data_parallel_degree", data_parallel_degree},
      {"training.enable_float8_linear", float8_linear},
      {"training.enable_fp8_linear", float8_linear},
      {"training.enable_selective_ac", selective_ac},
      {"training.float8_scaling_type_grad_output", scaling_type},
      {"training.float8_scaling_type_input", scaling_type},
      {"training.float8_scaling_type_weight", scaling_type},
      {"training.fp8_linear", float8_linear},
      {"training.warmup_pct", warmup_share},
  };
  return kTranslators;
}

}  // namespace

void translate(const RetiredKey& key, const Entry& entry, Source source, Merge& merge) {
  translators().at(key.name)({key, entry, source, merge});
}

}  // namespace tokamak

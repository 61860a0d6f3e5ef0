#include <algorithm>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/config/converters.h"
#include "tokamak/config/key_table.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {

namespace {

bool contains(const Strings& list, const std::string& item) {
  return std::ranges::find(list, item) != list.end();
}

class Collector {
 public:
  explicit Collector(const Config& config) : config_(config) {}

  void add(std::string_view name, std::string reason) {
    const Key* key = find_key(name);
    TOK_CHECK(key != nullptr, "no key {}", name);
    found_.push_back({std::string(name), value_text(get_value(config_, *key)), std::move(reason)});
  }

  std::vector<Need> take() {
    std::ranges::stable_sort(
        found_, [](const Need& a, const Need& b) { return find_key(a.key) < find_key(b.key); });
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
  const auto family = std::ranges::find_if(
      can.models, [&](const auto& row) { return row.first == config.model.name; });
  if (family == can.models.end()) {
    Strings names;
    for (const auto& row : can.models) names.push_back(row.first);
    return out.add("model.name", fmt::format("not one of ours: {}{}", fmt::join(names, ", "),
                                             nearest_hint(config.model.name, names)));
  }
  if (contains(family->second, config.model.flavor)) return;
  out.add("model.flavor", fmt::format("not a flavor of {}: {}{}", config.model.name,
                                      fmt::join(family->second, ", "),
                                      nearest_hint(config.model.flavor, family->second)));
}

void dataset(const std::string& section, const std::string& name, bool has_path,
             const Capabilities& can, Collector& out) {
  if (!contains(can.datasets, name)) {
    out.add(section + ".dataset",
            fmt::format("not one of ours: {}{}", fmt::join(can.datasets, ", "),
                        nearest_hint(name, can.datasets)));
  } else if ((name == "text" || name == "tokens") && !has_path) {
    out.add(section + ".dataset_path", fmt::format("dataset {} needs a file or folder", name));
  }
}

void features(const Config& c, const Capabilities& can, Collector& out) {
  for (const std::string& name : c.model.converters) {
    if (!is_converter(name)) return out.add("model.converters", name + " is not built");
  }
  if (!can.why_no_cuda.empty() && c.job.device == "cuda") out.add("job.device", can.why_no_cuda);
  if (c.parallelism.context_parallel_load_balancer == "ptrr")
    out.add("parallelism.context_parallel_load_balancer",
            "for block masks, which are not built; headtail balances causal attention");
}

}  // namespace

std::vector<Need> needs(const Config& config, const Capabilities& capabilities) {
  Collector out(config);

  listed_values(config, out);
  model(config, capabilities, out);
  dataset("training", config.training.dataset, config.training.dataset_path.has_value(),
          capabilities, out);
  if (config.validation.enable) {
    dataset("validation", config.validation.dataset, config.validation.dataset_path.has_value(),
            capabilities, out);
  }
  features(config, capabilities, out);
  return out.take();
}

}  // namespace tokamak

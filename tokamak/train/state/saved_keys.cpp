#include "tokamak/train/state/saved_keys.h"

#include <algorithm>
#include <array>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr std::array<std::string_view, 5> kSections{"model.", "optimizer.", "lr_scheduler.",
                                                    "training.", "quantize."};
// These keys of the sections above are left out: they name places, only bound time or memory, or
// guard.
constexpr std::array<std::string_view, 13> kOthers{"model.hf_assets_path",
                                                   "model.tokenizer_path",
                                                   "training.dataset_path",
                                                   "training.text_column",
                                                   "training.threads",
                                                   "training.grad_store",
                                                   "training.enable_cpu_offload",
                                                   "training.offload_above_gib",
                                                   "training.on_nonfinite",
                                                   "training.on_spike",
                                                   "training.spike_factor",
                                                   "training.check_replicas_every",
                                                   "training.on_divergent_replicas"};

bool decides(const std::string& key) {
  const auto is_in = [&](std::string_view section) { return key.starts_with(section); };
  return std::ranges::any_of(kSections, is_in) && std::ranges::find(kOthers, key) == kOthers.end();
}

}  // namespace

bool is_length(std::string_view key) {
  return key == "training.steps" || key == "training.tokens" || key == "training.epochs";
}

KeyValues learning_keys(const KeyValues& all) {
  KeyValues keys;
  std::copy_if(all.begin(), all.end(), std::back_inserter(keys),
               [](const auto& key) { return decides(key.first); });
  return keys;
}

std::string to_json(const KeyValues& keys) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, value] : keys) json[key] = value;
  return json.dump();
}

std::string changed_keys(std::string_view saved, const KeyValues& now, std::string_view what) {
  const Json json = parse_json(saved, what);
  TOK_REQUIRE(json.is_object(), "{}: wanted a JSON object", what);
  std::string text;
  for (const auto& [key, value] : now) {
    const auto then = json_member_or<std::string>(json, key, value, what);
    if (then != value)
      text +=
          fmt::format("{}{} {} (now {})", text.empty() ? "" : ", ", key, printable(then), value);
  }
  return text;
}

}  // namespace tokamak

#include "tokamak/pipeline/stage_split.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/value.h"
#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

constexpr const char* kPartsKey = "parallelism.module_fqns_per_model_part";
constexpr const char* kPointsKey = "parallelism.pipeline_parallel_split_points";
constexpr const char* kPerStageKey = "parallelism.pipeline_parallel_layers_per_stage";

using Parts = std::vector<std::vector<std::string>>;

// Modules in model order: embedding, layers, norm, head.
struct ModuleOrder {
  int num_layers = 0;

  int embedding() const { return 0; }

  int layer(int i) const { return 1 + i; }

  int norm() const { return num_layers + 1; }

  int head() const { return num_layers + 2; }

  int count() const { return num_layers + 3; }

  std::string name(int place) const {
    if (place == embedding()) return "tok_embeddings";
    if (place == norm()) return "norm";
    if (place == head()) return "output";
    return fmt::format("layers.{}", place - 1);
  }
};

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 5> kEmbeddings = {"tok_embeddings", "model.embed_tokens",
                                                         "embed_tokens", "transformer.wte", "wte"};
constexpr std::array<std::string_view, 2> kPositions = {"transformer.wpe", "wpe"};
constexpr std::array<std::string_view, 4> kNorms = {"norm", "model.norm", "transformer.ln_f",
                                                    "ln_f"};
constexpr std::array<std::string_view, 2> kHeads = {"output", "lm_head"};
constexpr std::array<std::string_view, 2> kTables = {"rotary_emb", "model.rotary_emb"};
constexpr std::array<std::string_view, 4> kLayers = {"layers.", "model.layers.", "transformer.h.",
                                                     "h."};

std::optional<int> layer_of(std::string_view name, int num_layers) {
  for (const std::string_view prefix : kLayers) {
    if (name.substr(0, prefix.size()) != prefix) continue;
    const auto layer = parse_number<int>(name.substr(prefix.size()));
    if (layer && *layer >= 0 && *layer < num_layers) return layer;
  }
  return std::nullopt;
}

int place_of(const std::string& name, const ModuleOrder& order, const char* key) {
  if (is_one_of(name, kEmbeddings) || is_one_of(name, kPositions)) return order.embedding();
  if (is_one_of(name, kNorms)) return order.norm();
  if (is_one_of(name, kHeads)) return order.head();
  const auto layer = layer_of(name, order.num_layers);
  TOK_REQUIRE(layer,
              "{}: wanted tok_embeddings, layers.0 to layers.{}, norm, output (or their Hugging "
              "Face names), got {}",
              key, order.num_layers - 1, name);
  return order.layer(*layer);
}

StageSplit split_of(const std::vector<int>& stage_of_place, const ModuleOrder& order,
                    int num_stages) {
  return {.num_stages = num_stages,
          .embedding_stage = stage_of_place[order.embedding()],
          .stage_of_layer = {stage_of_place.begin() + order.layer(0),
                             stage_of_place.begin() + order.norm()},
          .norm_stage = stage_of_place[order.norm()],
          .head_stage = stage_of_place[order.head()]};
}

StageSplit split_by_parts(const Parts& parts, const ModuleOrder& order) {
  std::vector<int> stage_of_place(order.count(), -1);
  int last = -1;
  for (size_t part = 0; part < parts.size(); ++part) {
    bool holds_any = false;
    for (const std::string& name : parts[part]) {
      if (is_one_of(name, kTables)) continue;
      holds_any = true;
      const int place = place_of(name, order, kPartsKey);
      const int stage = static_cast<int>(part);
      if (is_one_of(name, kPositions)) {
        TOK_REQUIRE(stage == 0, "{}: wanted {} in part 0 with the token embedding, got part {}",
                    kPartsKey, name, part);
        continue;
      }
      TOK_REQUIRE(stage_of_place[place] < 0, "{}: {} is in part {} and again in part {}", kPartsKey,
                  name, stage_of_place[place], part);
      stage_of_place[place] = stage;
    }
    TOK_REQUIRE(holds_any, "{}: part {} has no module; wanted at least one", kPartsKey, part);
  }
  for (int place = 0; place < order.count(); ++place) {
    TOK_REQUIRE(stage_of_place[place] >= 0, "{}: no part has {}", kPartsKey, order.name(place));
    TOK_REQUIRE(stage_of_place[place] >= last,
                "{}: wanted parts in model order, got {} in part {} and {} in part {}", kPartsKey,
                order.name(place - 1), last, order.name(place), stage_of_place[place]);
    last = stage_of_place[place];
  }
  return split_of(stage_of_place, order, static_cast<int>(parts.size()));
}

StageSplit split_by_points(const std::vector<std::string>& points, const ModuleOrder& order) {
  std::vector<int> stage_of_place(order.count(), 0);
  int last = order.embedding();
  for (const std::string& point : points) {
    const int place = place_of(point, order, kPointsKey);
    TOK_REQUIRE(place > last, "{}: wanted modules after {} in model order, got {}", kPointsKey,
                order.name(last), point);
    for (int p = place; p < order.count(); ++p) ++stage_of_place[p];
    last = place;
  }
  return split_of(stage_of_place, order, static_cast<int>(points.size()) + 1);
}

// Returns the number of layers of each stage. REQUIRES: num_layers >= num_stages - 2.
std::vector<int> deal_layers(const SplitRequest& r, int num_stages) {
  if (num_stages == 1) return {r.num_layers};
  // Where there are not enough layers for all, the end stages get none, whatever they weigh.
  const int least = r.num_layers < num_stages ? 1 : 0;
  const int first_weight = std::max(r.first_stage_less_layers, least);
  const int last_weight = std::max(r.last_stage_less_layers, least);
  std::vector<int> layers(num_stages, 0);
  int begin = 0;
  int end = num_stages;
  while (true) {
    const int before = begin == 0 ? first_weight : 0;
    const int after = end == num_stages ? last_weight : 0;
    const int total = r.num_layers + before + after;
    const int count = end - begin;
    for (int i = 0; i < count; ++i) layers[begin + i] = total / count + (i < total % count ? 1 : 0);
    // An end that weighs more than a fair share holds nothing else; the others share the rest.
    if (begin == 0 && before > layers[0] && count > 1) {
      layers[begin++] = 0;
    } else if (end == num_stages && after > layers[end - 1] && count > 1) {
      layers[--end] = 0;
    } else {
      if (begin == 0) layers[0] -= before;
      if (end == num_stages) layers[num_stages - 1] -= after;
      return layers;
    }
  }
}

int stages_by_layers(const SplitRequest& r, const ScheduleKind& kind) {
  const int total = r.num_layers + r.first_stage_less_layers + r.last_stage_less_layers;
  const int per_stage = *r.layers_per_stage;
  const int stages = (total + per_stage - 1) / per_stage;
  const int rounds = (stages + r.num_ranks - 1) / r.num_ranks;
  if (!kind.fixed_stages_per_rank) return rounds * r.num_ranks;
  const int wanted = kind.default_stages_per_rank * r.num_ranks;
  TOK_REQUIRE(stages == wanted,
              "{} = {}: {} layers + {} + {} for embedding and head make {} stages; {} on {} ranks "
              "wants {}: {} a stage would do",
              kPerStageKey, per_stage, r.num_layers, r.first_stage_less_layers,
              r.last_stage_less_layers, stages, kind.name, r.num_ranks, wanted,
              (total + wanted - 1) / wanted);
  return stages;
}

int stages_by_schedule(const SplitRequest& r, const ScheduleKind& kind) {
  const int stages = kind.default_stages_per_rank * r.num_ranks;
  if (!kind.fixed_stages_per_rank && stages - 2 > r.num_layers) return r.num_ranks;
  return stages;
}

StageSplit split_evenly(const SplitRequest& r) {
  int stages = 0;
  if (r.num_stages) {
    stages = *r.num_stages;
  } else {
    const ScheduleKind kind = schedule_kind(r.schedule);
    stages = r.layers_per_stage ? stages_by_layers(r, kind) : stages_by_schedule(r, kind);
  }
  TOK_REQUIRE(!r.num_stages || stages - 2 <= r.num_layers,
              "parallelism.pipeline_parallel_schedule_csv: {} stages want at least {} layers (one "
              "for each but the first and the last), got {}",
              stages, stages - 2, r.num_layers);
  TOK_REQUIRE(stages - 2 <= r.num_layers,
              "parallelism.pipeline_parallel_degree = {} with {} stages a rank makes {} stages: "
              "wanted at least {} layers (one for each stage but the first and the last), got {}, "
              "which is enough for {} stages",
              r.num_ranks, stages / r.num_ranks, stages, stages - 2, r.num_layers,
              r.num_layers + 2);
  const std::vector<int> layers = deal_layers(r, stages);
  StageSplit split{.num_stages = stages, .norm_stage = stages - 1, .head_stage = stages - 1};
  for (int stage = 0; stage < stages; ++stage)
    split.stage_of_layer.insert(split.stage_of_layer.end(), layers[stage], stage);
  return split;
}

}  // namespace

StageSplit split_stages(const SplitRequest& r) {
  TOK_CHECK(r.num_layers >= 1 && r.num_ranks >= 1, "{} layers, {} ranks", r.num_layers,
            r.num_ranks);
  if (r.num_ranks == 1) return {.stage_of_layer = std::vector<int>(r.num_layers, 0)};
  const ModuleOrder order{.num_layers = r.num_layers};
  const bool by_parts = r.module_fqns_per_model_part.has_value();
  if (!by_parts && r.split_points.empty()) return split_evenly(r);
  StageSplit split = by_parts ? split_by_parts(*r.module_fqns_per_model_part, order)
                              : split_by_points(r.split_points, order);
  // A file may deal stages to ranks as it likes.
  TOK_REQUIRE(r.num_stages || split.num_stages % r.num_ranks == 0,
              "{}: wanted a multiple of parallelism.pipeline_parallel_degree = {} stages, got {}",
              by_parts ? kPartsKey : kPointsKey, r.num_ranks, split.num_stages);
  TOK_REQUIRE(!r.num_stages || split.num_stages == *r.num_stages,
              "{}: wanted the {} stages of the schedule's file, got {}",
              by_parts ? kPartsKey : kPointsKey, *r.num_stages, split.num_stages);
  return split;
}

std::string split_text(const StageSplit& split, const std::vector<int>& rank_of_stage) {
  std::string text;
  for (int stage = 0; stage < split.num_stages; ++stage) {
    std::vector<std::string> modules;
    if (stage == split.embedding_stage) modules.emplace_back("tok_embeddings");
    const auto [begin, end] =
        std::equal_range(split.stage_of_layer.begin(), split.stage_of_layer.end(), stage);
    const auto first = begin - split.stage_of_layer.begin();
    const auto last = end - split.stage_of_layer.begin() - 1;
    if (first == last) modules.push_back(fmt::format("layer {}", first));
    if (first < last) modules.push_back(fmt::format("layers {} to {}", first, last));
    if (stage == split.norm_stage) modules.emplace_back("norm");
    if (stage == split.head_stage) modules.emplace_back("output");
    text += fmt::format("stage {} on rank {}: {}\n", stage, rank_of_stage[stage],
                        fmt::join(modules, ", "));
  }
  return text;
}

std::vector<int> stage_of_module(const StageSplit& split) {
  std::vector<int> stages{split.embedding_stage};
  stages.insert(stages.end(), split.stage_of_layer.begin(), split.stage_of_layer.end());
  stages.push_back(split.norm_stage);
  stages.push_back(split.head_stage);
  return stages;
}

}  // namespace tokamak

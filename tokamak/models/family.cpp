#include "tokamak/models/family.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr std::array kFamilies{&kLlama, &kMistral, &kQwen2,  &kQwen3,
                               &kGpt2,  &kGemma,   &kGemma2, &kGemma3};

struct Found {
  const Family* family = nullptr;
  const NamedModel* model = nullptr;
};

Found find_model(std::string_view name) {
  for (const Family* family : families()) {
    for (const NamedModel& model : family->models) {
      if (model.name == name) return {family, &model};
    }
  }
  return {};
}

}  // namespace

std::span<const Family* const> families() {
  static const std::vector<const Family*> all = [] {
    std::vector<const Family*> both(kFamilies.begin(), kFamilies.end());
    both.insert(both.end(), extra_families().begin(), extra_families().end());
    return both;
  }();
  return all;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Family* family : families()) {
    for (const NamedModel& model : family->models) names.emplace_back(model.name);
  }
  return names;
}

std::vector<std::string> flavors_of(std::string_view model_name) {
  std::vector<std::string> names;
  const NamedModel* model = find_model(model_name).model;
  if (model == nullptr) return names;
  for (const ModelSizes& row : model->flavors) names.emplace_back(row.flavor);
  return names;
}

const Family& family_of(std::string_view model_name) {
  const Family* family = find_model(model_name).family;
  const std::vector<std::string> names = model_names();
  TOK_REQUIRE(family != nullptr, "model.name = \"{}\": no such model; there are {}{}", model_name,
              fmt::join(names, ", "), nearest_hint(model_name, names));
  return *family;
}

void require_name(const ModelSpec& spec, std::string_view model_name) {
  TOK_REQUIRE(&family_of(model_name) == spec.family,
              "model.name = \"{}\": with model.flavor = \"hf\" the model is that of config.json, a "
              "{}: leave model.name out or set it to {}",
              model_name, spec.family->architecture, spec.family->models.front().name);
}

ModelSpec flavor_spec(std::string_view model_name, std::string_view flavor) {
  ModelSpec c{.family = &family_of(model_name),
              .name = std::string(model_name),
              .flavor = std::string(flavor)};
  const NamedModel& model = *find_model(model_name).model;
  const auto row =
      std::ranges::find_if(model.flavors, [&](const ModelSizes& r) { return r.flavor == flavor; });
  const std::vector<std::string> flavors = flavors_of(model_name);
  TOK_REQUIRE(row != model.flavors.end(), "model.flavor = \"{}\": {} has {}{}", flavor, model_name,
              fmt::join(flavors, ", "), nearest_hint(flavor, flavors));
  c.vocab_size = row->vocab;
  c.dim = row->dim;
  c.num_layers = row->layers;
  c.num_heads = row->heads;
  c.num_kv_heads = row->kv_heads;
  c.head_dim = row->dim / row->heads;
  c.mlp_dim = row->mlp;
  c.tied = row->tied;
  model.complete(c);
  return c;
}

void set_windows(ModelSpec& spec, int64_t window) {
  spec.attention.windows.assign(window > 0 ? static_cast<size_t>(spec.num_layers) : 0, window);
  if (spec.attention.full_every == 0) return;
  const auto every = static_cast<size_t>(spec.attention.full_every);
  for (size_t layer = every - 1; layer < spec.attention.windows.size(); layer += every)
    spec.attention.windows[layer] = 0;
}

int64_t learned_positions(const ModelSpec& spec) {
  return spec.family->learns_positions ? spec.max_seq_len : 0;
}

const WeightLayout& weight_layout(const ModelSpec& spec) {
  return spec.family->weights;
}

ModelOutputs build_model(Graph& graph, Parameters& parameters, const ModelSpec& config,
                         const ModelInputs& inputs, uint64_t seed) {
  return config.family->build(graph, parameters, config, inputs, seed);
}

namespace {

// A forward graph that nobody runs, for what it declares.
struct Declared {
  explicit Declared(const ModelSpec& config) {
    const ModelInputs inputs{.tokens = input("tokens"), .positions = input("positions")};
    head = build_model(graph, parameters, config, inputs, 0).head;
  }

  Value input(const char* name) {
    return graph.read(states.declare(
        {.name = name, .type = {.dtype = DType::kI32, .dims = {1, 1}}, .kind = StateKind::kInput}));
  }

  StateTable states;
  Graph graph{states};
  Parameters parameters{graph, DType::kF32, DType::kF32};
  Value head;
};

}  // namespace

ParameterCount count_parameters(const ModelSpec& config) {
  // All blocks are alike, so only one is built.
  ModelSpec one = config;
  one.num_layers = 1;
  const Declared declared(one);
  ParameterCount count;
  for (const Parameter& parameter : declared.parameters.all()) {
    const StateDecl& decl = declared.states[parameter.state];
    const bool is_of_block = decl.block >= 0;
    const int64_t numel = decl.type.numel() * (is_of_block ? config.num_layers : 1);
    count.total += numel;
    if (is_of_block && decl.type.dims.size() == 2) count.block_matrices += numel;
    // A tied table is multiplied by in the head, so it stays in the count of work.
    if (decl.module == 0 && parameter.compute != declared.head) count.embedding += numel;
  }
  return count;
}

ModelParameters model_parameters(const ModelSpec& config) {
  const Declared declared(config);
  ModelParameters model;
  for (const Parameter& parameter : declared.parameters.all()) {
    const StateDecl& decl = declared.states[parameter.state];
    model.dims.emplace(decl.name, decl.type.dims);
    if (parameter.compute == declared.head) model.head = decl.name;
  }
  return model;
}

}  // namespace tokamak

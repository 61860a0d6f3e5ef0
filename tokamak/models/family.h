// A family of models describes itself: all that the program asks of a family is a field here. Only
// the sources of models/ use it; others call model_spec.h, model.h and hf_config.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "tokamak/core/json.h"
#include "tokamak/models/model.h"

namespace tokamak {

class HfFields;

/// One flavor.
struct ModelSizes {
  std::string_view flavor;
  int64_t dim, layers, heads, kv_heads, mlp, vocab;
  bool tied;
};

/// A value of `model.name`, with its flavors, smallest first, and what they have in common.
struct NamedModel {
  std::string_view name;
  std::span<const ModelSizes> flavors;
  void (*complete)(ModelSpec&);
};

struct Family {
  std::string_view architecture;  ///< first of "architectures" in config.json
  std::string_view model_type;    ///< in a config.json that names no architecture
  std::span<const NamedModel> models;
  ModelOutputs (*build)(Graph&, Parameters&, const ModelSpec&, const ModelInputs&, uint64_t seed);
  /// Fills in what config.json says; throws Error on maths that the builder does not support.
  void (*read_config)(const HfFields&, ModelSpec&);
  /// The members of config.json that only this family has.
  OrderedJson (*config_json)(const ModelSpec&);
  /// The sizes that transformers assumes if a text_config leaves them out. A family whose dim is 0
  /// here is never the text model of another.
  ModelSizes text_defaults{};
  bool learns_positions = false;  ///< max_seq_len of them
  bool has_windows = false;       ///< its config.json can say AttentionSpec::windows
  WeightLayout weights;
};

// Each is defined in the file of its name; those of Qwen share one, and those of Gemma.
extern const Family kLlama;
extern const Family kMistral;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kGpt2;
extern const Family kGemma;
extern const Family kGemma2;
extern const Family kGemma3;

/// The families of the folder TOK_EXTRA (cmake/extra.cmake writes the function).
std::span<const Family* const> extra_families();

/// Returns all families: the program's, then those of TOK_EXTRA.
std::span<const Family* const> families();

}  // namespace tokamak

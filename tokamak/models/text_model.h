// Models for images and text that hold one of our models: only this text model is used.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/json.h"

namespace tokamak {

/// Returns the config.json that transformers would write for the text model inside, or nothing if
/// `json`, which is parsed from `text`, describes no such model. Throws Error "WHAT: ..." if the
/// text model is none of ours.
std::optional<std::string> text_model_config(const Json& json, std::string_view text,
                                             std::string_view what);

/// Returns the architectures of such models.
std::vector<std::string_view> models_with_text();

}  // namespace tokamak

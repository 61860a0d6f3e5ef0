// Models for images and text that hold one of our models: only this text model is used.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

class HfFields;

/// Returns the config.json that transformers would write for the text model inside, or nothing if
/// `f`, which is parsed from `text`, describes no such model. Throws Error "WHAT: ..." if the text
/// model is unknown.
std::optional<std::string> text_model_config(const HfFields& f, std::string_view text);

/// Returns the architectures of such models.
std::vector<std::string_view> models_with_text();

}  // namespace tokamak

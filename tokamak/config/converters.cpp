#include "tokamak/config/converters.h"

#include <algorithm>
#include <array>

namespace tokamak {
namespace {

constexpr std::string_view kSection = "quantize.linear.";
constexpr std::array<std::string_view, 2> kConverters{"float8", "mx"};

std::string key_section(std::string_view name) {
  return std::string(kSection) + std::string(name);
}

bool has_converter(const Config& config, std::string_view name) {
  const Strings& words = config.model.converters;
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word == name || word == key_section(name);
  });
}

}  // namespace

bool has_float8(const Config& config) {
  return has_converter(config, "float8");
}

bool has_mx(const Config& config) {
  return has_converter(config, "mx");
}

bool is_converter(std::string_view name) {
  return std::any_of(kConverters.begin(), kConverters.end(),
                     [&](std::string_view known) { return name == key_section(known); });
}

std::string full_converter_name(const std::string& name) {
  const bool is_short =
      std::find(kConverters.begin(), kConverters.end(), name) != kConverters.end();
  return is_short ? key_section(name) : name;
}

bool lacks_converter(std::string_view key, const Config& config) {
  return std::any_of(kConverters.begin(), kConverters.end(), [&](std::string_view name) {
    return key.starts_with(key_section(name) + ".") && !has_converter(config, name);
  });
}

}  // namespace tokamak

// A file of the source tree that the program carries (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace tokamak {

struct EmbeddedFile {
  std::string_view name;  ///< without its folder
  std::string_view text;
};

}  // namespace tokamak

// Refuses URLs where a path is wanted.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// Returns "wanted a local path, got s3://..." with the remedy if a word of `path` has a scheme,
/// else "".
std::string why_not_local(std::string_view path);

}  // namespace tokamak

#include "tokamak/core/local_path.h"

#include <fmt/format.h>

#include "tokamak/core/names.h"

namespace tokamak {

std::string why_not_local(std::string_view path) {
  for (size_t at = path.find("://"); at != std::string_view::npos; at = path.find("://", at + 1)) {
    const size_t blank = path.find_last_of(" \t", at);
    const size_t begin = blank == std::string_view::npos ? 0 : blank + 1;
    const std::string scheme = lower_case(path.substr(begin, at - begin));
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789+.-";
    if (scheme.empty() || scheme.find_first_not_of(kLetters) != std::string::npos) continue;
    const std::string remedy = scheme == "file" ? "leave out file://"
                               : scheme == "hf"
                                   ? "tokamak download fetches a repository of the Hugging Face hub"
                                   : "copy the files to this machine, or mount them";
    return fmt::format("wanted a local path, got {}: {}:// is not built; {}",
                       printable(path.substr(begin)), scheme, remedy);
  }
  return "";
}

}  // namespace tokamak

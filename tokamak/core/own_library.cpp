#include "tokamak/core/own_library.h"

#include "tokamak/core/file.h"

namespace tokamak {

std::filesystem::path find_own_library(std::string_view file) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* way : {".", "../lib/tokamak", "../../lib/tokamak"}) {
    if (path_exists(folder / way / file)) return folder / way / file;
  }
  return {};
}

}  // namespace tokamak

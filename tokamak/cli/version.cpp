#include "tokamak/cli/version.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak_commit.h"  // the build writes it

namespace tokamak::cli {

std::string version_line() {
  const std::string commit = TOK_COMMIT;
  return fmt::format("tokamak {}{}", TOK_VERSION, commit.empty() ? "" : " (" + commit + ")");
}

std::string version_text() {
  std::vector<std::string> parts;
  for (const char* part : {TOK_PARTS}) parts.emplace_back(part);
  return fmt::format("{}\nbuilt with {}\n", version_line(), fmt::join(parts, ", "));
}

}  // namespace tokamak::cli

#include "tokamak/cli/waiting.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include <unistd.h>

namespace tokamak::cli {

void bound_waiting(std::string_view verb, char** argv) {
  constexpr std::string_view kComputing[] = {"train", "launch-rank", "generate",
                                             "eval",  "bench",       "doctor"};
  // About as long as a futex takes to wake a thread.
  constexpr const char* kSpins = "300";
  if (std::find(std::begin(kComputing), std::end(kComputing), verb) == std::end(kComputing)) return;
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  ::setenv("GOMP_SPINCOUNT", kSpins, 0);
  ::execv(program.c_str(), argv);  // where it fails, threads spin as they did
}

}  // namespace tokamak::cli

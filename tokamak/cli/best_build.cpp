#include "tokamak/cli/best_build.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <unistd.h>

namespace tokamak::cli {
namespace {

struct Level {
  const char* name;
  bool runs_here;
};

// Makes `path` of FOLDER and a way from there to a file that can be run.
bool find_program(char (&path)[PATH_MAX], const char* folder, const char* name) {
  for (const char* way : {"", "../libexec/tokamak/", "../../bin/"}) {
    const int size = std::snprintf(path, sizeof path, "%s/%s%s", folder, way, name);
    if (size > 0 && size < PATH_MAX && access(path, X_OK) == 0) return true;
  }
  return false;
}

}  // namespace

void run_best_build(char** argv) {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi2");
  const Level levels[] = {
      {"x86-64-v4-bf16", bf16}, {"x86-64-v4", v4}, {"x86-64-v3", v3}, {"x86-64-v2", true}};
  char self[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
  if (size <= 0) return;
  self[size] = '\0';
  char* slash = std::strrchr(self, '/');
  *slash = '\0';
  const char* wanted = std::getenv("TOKAMAK_CPU");
  bool is_known = false;
  for (const Level& level : levels) {
    if (wanted != nullptr && *wanted != '\0' && std::strcmp(wanted, level.name) != 0) continue;
    is_known = true;
    if (!level.runs_here) continue;
    char name[64] = "tokamak";
    if (std::strcmp(level.name, "x86-64-v2") != 0)
      std::snprintf(name, sizeof name, "tokamak-%s", level.name);
    if (std::strcmp(slash + 1, name) == 0) return;
    char path[PATH_MAX];
    if (!find_program(path, self, name)) continue;
    execv(path, argv);
  }
  if (is_known) return;
  std::fprintf(
      stderr, "tokamak: TOKAMAK_CPU=%s: wanted x86-64-v4-bf16, x86-64-v4, x86-64-v3 or x86-64-v2\n",
      wanted);
  std::exit(2);
}

}  // namespace tokamak::cli

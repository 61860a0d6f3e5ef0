#include "tokamak/core/host.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

namespace tokamak {

std::vector<std::string> process_stat(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(") ");
  if (end == std::string::npos) return {};
  std::istringstream words(text.substr(end + 2));
  return {std::istream_iterator<std::string>(words), {}};
}

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace tokamak

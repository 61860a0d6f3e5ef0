#include "tokamak/core/process_stat.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

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

}  // namespace tokamak

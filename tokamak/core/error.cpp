#include "tokamak/core/error.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <unistd.h>

#include "tokamak/core/machine_fault.h"

namespace tokamak {

void throw_errno(const std::string& what) {
  const int code = errno;
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const auto text =
      fmt::format("{}: {} (errno {}, host {})", what, std::strerror(code), code, host);
  if (code == ENOSPC || code == EDQUOT) throw DiskFull(text);
  throw SystemError(text);
}

namespace detail {

void throw_bug(const char* file, int line, const char* condition, const std::string& text) {
  const std::string_view path = file;
  const auto root = path.rfind("tokamak/");
  const auto shown = root == std::string_view::npos ? path : path.substr(root);
  throw Bug(
      fmt::format("{}:{}: bug: {}{}{}", shown, line, condition, text.empty() ? "" : ": ", text));
}

}  // namespace detail
}  // namespace tokamak

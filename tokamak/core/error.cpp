#include "tokamak/core/error.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include "tokamak/core/host.h"

namespace tokamak {

void throw_errno(const std::string& what) {
  const int code = errno;
  const auto text =
      fmt::format("{}: {} (errno {}, host {})", what, std::strerror(code), code, host_name());
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

bool is_machine_fault(int code) {
  switch (code) {
    case EACCES:
    case EEXIST:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENODEV:
    case ENOENT:
    case ENOTDIR:
    case ENOTEMPTY:
    case ENXIO:
    case EPERM:
    case ETXTBSY:
      return false;
    default:
      return true;
  }
}

void throw_path_errno(const std::string& what) {
  if (is_machine_fault(errno)) throw_errno(what);
  fail("{}: {}", what, std::strerror(errno));
}

}  // namespace tokamak

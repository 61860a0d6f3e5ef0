#include "tokamak/core/machine_fault.h"

#include <cerrno>
#include <cstring>

namespace tokamak {

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

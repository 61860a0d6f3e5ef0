// The name of this host.
#pragma once

#include <string>

#include <unistd.h>

namespace tokamak {

/// Returns "" where the system gives none.
inline std::string host_name() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace tokamak

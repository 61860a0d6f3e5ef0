// Faults of the machine by their errno: which of them a user can mend, and which a full disk is.
#pragma once

#include <string>

#include "tokamak/core/error.h"

namespace tokamak {

/// The disk or the quota is full, so that removing something may help. throw_errno() throws it.
class DiskFull : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Whether a call on a path failed, with this errno, through the machine (EIO, ENOSPC, EROFS,
/// ESTALE, EMFILE, ENOMEM ...) and not because the user named a path that cannot be used.
bool is_machine_fault(int code);

/// Throws what errno says of a call on a path that the user named: SystemError as throw_errno()
/// does, or Error with "what: strerror(errno)".
[[noreturn]] void throw_path_errno(const std::string& what);

}  // namespace tokamak

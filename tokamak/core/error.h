// Errors by whose fault they are: the user's, ours, or the machine's (docs/design.md, "Errors").
#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace tokamak {

/// Process exit codes that scripts may rely on.
enum class ExitCode : int { kDone = 0, kUserError = 2, kDiverged = 3, kBug = 70, kTryAgain = 75 };

/// A user's mistake: one line that says what was wanted, what was got and the name the user wrote.
/// Exit 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Training diverged (NaN or Inf loss or gradient norm); this is found before the update. Exit 3.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken invariant of this program, with file, line and condition. Exit 70.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The machine failed (disk full, unreadable device); names the call, its code, the host. Exit 75.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted text.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws SystemError: "what: strerror(errno) (host)".
[[noreturn]] void throw_errno(const std::string& what);

namespace detail {
[[noreturn]] void throw_bug(const char* file, int line, const char* condition,
                            const std::string& text);
}  // namespace detail

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

/// Throws Error, for a user's mistake, unless `condition` holds.
#define TOK_REQUIRE(condition, ...)                                       \
  do {                                                                    \
    if (!(condition)) throw ::tokamak::Error(::fmt::format(__VA_ARGS__)); \
  } while (false)

/// Throws Bug unless `condition` holds; release builds check it too.
#define TOK_CHECK(condition, ...)                                                                  \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::tokamak::detail::throw_bug(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                              \
  } while (false)

#ifdef NDEBUG
#define TOK_DCHECK(condition, ...) static_cast<void>(0)
#else
#define TOK_DCHECK(condition, ...) TOK_CHECK(condition, __VA_ARGS__)
#endif

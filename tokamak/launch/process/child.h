// Starts other programs as processes that die with this one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace tokamak::launch {

/// Starts `words`, found on PATH, as the leader of a new process group that gets SIGKILL when we
/// end. No signal is blocked or ignored in it; `prepare` runs there before the program begins, and
/// may call only what is safe after fork(). Exit code 127: the program cannot be started. Throws
/// SystemError if no process can be created.
pid_t start_child(const std::vector<std::string>& words, const std::function<void()>& prepare);

}  // namespace tokamak::launch

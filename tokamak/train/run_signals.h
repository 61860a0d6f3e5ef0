// What signals ask of a run: to stop, or to save a checkpoint and go on.
#pragma once

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

namespace tokamak {

/// The exit code of a run that a signal ended before its last step; started again, it resumes.
inline constexpr int kExitStopped = 85;

/// Returns "Ctrl-C" for SIGINT, else the signal's name, as "SIGTERM".
std::string name_of_signal(int signal);

/// Returns the signal that a sender means: the value that it sent along by sigqueue(), if that asks
/// to stop, else the signal itself. A launcher passes on all requests to stop by one signal.
int signal_meant(const siginfo_t& info);

/// Receives SIGTERM, SIGINT and SIGHUP (stop) and SIGUSR1 (save and go on) on its own thread while
/// it lives; the thread that makes it and all threads started from that block them. A handler would
/// run on the stack of whichever thread it interrupts, and oneDNN's matmul kernels point the stack
/// pointer into their operands, so that the frame of a handler would overwrite memory.
///
/// Until `stop` is called for the first time there is nothing to save: a signal to stop then ends
/// the process with kExitStopped. From then on the first one only sets the flag, and a second
/// one of the same kind from the same side ends the process at once. The sides are the parent
/// process and all others: a service manager that signals every process of a job reaches a rank
/// once itself and once through the launcher, and that is one request. So are Ctrl-C's SIGINT and
/// the launcher's SIGTERM. REQUIRES: only one exists at a time, made before the process has other
/// threads.
class RunSignals {
 public:
  RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;
  /// Leaves the signals blocked if one has asked to stop: the process is at its end.
  ~RunSignals();

  /// Returns the first signal that asked to stop, as it was meant, or 0. Any thread may call it.
  int stop() const;

  /// From now on a second SIGTERM or SIGHUP changes nothing: the last checkpoint of the run is
  /// being written. Any thread may call it.
  void hold() const { is_held_ = true; }

  /// Whether SIGUSR1 has come since the last call. Any thread may call it.
  bool takes_save() const { return save_.exchange(false); }

 private:
  void receive();
  /// Waits a moment for the steps to begin, or for the process to end by itself.
  bool has_begun_soon() const;

  sigset_t mask_before_{};
  mutable std::atomic<bool> is_asked_{false};
  mutable std::atomic<bool> is_held_{false};
  mutable std::atomic<bool> save_{false};
  std::atomic<bool> is_ending_{false};
  std::atomic<int> stop_{0};
  std::thread receiver_;
};

}  // namespace tokamak

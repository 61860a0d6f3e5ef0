// SIGTERM and SIGINT as a flag: the loop finishes its step, saves and exits.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace tokamak {

/// Receives SIGTERM and SIGINT on its own thread while it lives; the thread that makes it and all
/// threads started from that block them. A handler would run on the stack of whichever thread it
/// interrupts, and oneDNN's matmul kernels point the stack pointer into their operands, so that the
/// frame of a handler would overwrite memory.
///
/// Until `received` is called for the first time a signal has its default action, which ends the
/// process. From then on the first signal of a kind only sets the flag, and a second one of the
/// same kind ends the process at once (Ctrl-C under a launcher arrives as one SIGINT and one
/// SIGTERM: that is still one wish).
/// REQUIRES: only one exists at a time, made before the process has other threads.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// Returns the first signal received, or 0. Any thread may call it.
  int received() const;

 private:
  void receive();

  sigset_t mask_before_{};
  mutable std::atomic<bool> is_asked_{false};
  std::atomic<bool> is_ending_{false};
  std::atomic<int> received_{0};
  std::thread receiver_;
};

}  // namespace tokamak

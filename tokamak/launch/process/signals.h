// Signals to the launcher.
#pragma once

#include <csignal>

namespace tokamak::launch {

/// Counts SIGTERM, SIGINT and SIGHUP (stop) and SIGUSR1 (save) while it lives; they arrive only
/// inside ppoll with mask(). One that comes before waits. Only one exists at a time.
class LaunchSignals {
 public:
  LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;
  ~LaunchSignals();

  /// The mask from before, for ppoll.
  const sigset_t& mask() const { return mask_; }

  int num_stops() const;
  int num_saves() const;

  /// Whether a signal to stop has come, be it not counted yet.
  bool must_stop() const;

  /// The last signal that asked to stop, or SIGTERM.
  int last_stop() const;

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};
  sigset_t mask_{};
  struct sigaction before_[5] = {};
};

}  // namespace tokamak::launch

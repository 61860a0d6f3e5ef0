// SIGTERM and SIGINT as a flag: the loop finishes its step, saves and exits.
#pragma once

namespace tokamak {

/// Handles SIGTERM and SIGINT while it lives, then gives them back their default action. The first
/// signal of a kind only sets the flag; a second one of the same kind ends the process at once
/// (Ctrl-C under a launcher arrives as one SIGINT and one SIGTERM: that is still one wish).
/// REQUIRES: one at a time.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// The first signal received, or 0. Any thread may ask.
  int received() const;
};

}  // namespace tokamak

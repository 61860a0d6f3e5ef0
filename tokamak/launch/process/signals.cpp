#include "tokamak/launch/process/signals.h"

#include <iterator>

namespace tokamak::launch {
namespace {

volatile std::sig_atomic_t stops = 0;
volatile std::sig_atomic_t saves = 0;
volatile std::sig_atomic_t last = SIGTERM;

void count(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGUSR1) {
    saves = saves + 1;
  } else {
    stops = stops + 1;
    last = signal;
  }
}

}  // namespace

LaunchSignals::LaunchSignals() {
  stops = 0;
  saves = 0;
  sigset_t signals;
  sigemptyset(&signals);
  struct sigaction action = {};
  action.sa_handler = &count;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    // nohup has SIGHUP ignored, and so it stays.
    if (before_[i].sa_handler == SIG_IGN && kSignals[i] == SIGHUP) continue;
    sigaddset(&signals, kSignals[i]);
    sigaction(kSignals[i], &action, nullptr);
  }
  sigprocmask(SIG_BLOCK, &signals, &mask_);
  // Whoever started us may have blocked them.
  for (const int signal : kSignals) sigdelset(&mask_, signal);
}

LaunchSignals::~LaunchSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  sigprocmask(SIG_SETMASK, &mask_, nullptr);
}

int LaunchSignals::num_stops() const {
  return stops;
}

int LaunchSignals::num_saves() const {
  return saves;
}

bool LaunchSignals::must_stop() const {
  sigset_t waiting;
  sigpending(&waiting);
  return stops > 0 || sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1 ||
         sigismember(&waiting, SIGHUP) == 1;
}

int LaunchSignals::last_stop() const {
  return last;
}

}  // namespace tokamak::launch

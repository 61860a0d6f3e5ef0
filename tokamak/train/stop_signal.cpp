#include "tokamak/train/stop_signal.h"

#include <ctime>

#include <pthread.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

sigset_t signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t set = signals();
  const int code = pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  TOK_CHECK(code == 0, "pthread_sigmask: {}", code);
  receiver_ = std::thread([this] { receive(); });
}

StopSignal::~StopSignal() {
  is_ending_ = true;
  pthread_kill(receiver_.native_handle(), SIGINT);
  receiver_.join();
  // Signals that have arrived by now ask for what is happening already: the end of the run.
  const sigset_t set = signals();
  const timespec none{};
  while (sigtimedwait(&set, nullptr, &none) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int StopSignal::received() const {
  is_asked_ = true;
  return received_;
}

void StopSignal::receive() {
  const sigset_t set = signals();
  sigset_t seen;
  sigemptyset(&seen);
  for (int signal = 0; sigwait(&set, &signal) == 0 && !is_ending_;) {
    if (!is_asked_ || sigismember(&seen, signal) == 1) end_by(signal);
    sigaddset(&seen, signal);
    int none = 0;
    received_.compare_exchange_strong(none, signal);
  }
}

}  // namespace tokamak

#include "tokamak/train/run_signals.h"

#include <chrono>
#include <cstring>
#include <ctime>

#include <pthread.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

/// srun signals the other tasks of a job when one has failed; those that are about to fail alike
/// must end with their own code.
constexpr std::chrono::milliseconds kLastWords{500};

sigset_t signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
  _exit(128 + signal);
}

[[noreturn]] void end_before_the_first_step(int signal) {
  fmt::print(stderr, "tokamak: stopped by {} before the first step\n", name_of_signal(signal));
  _exit(kExitStopped);
}

}  // namespace

std::string name_of_signal(int signal) {
  const char* const name = sigabbrev_np(signal);
  if (signal == SIGINT || name == nullptr) return signal == SIGINT ? "Ctrl-C" : "a signal";
  return fmt::format("SIG{}", name);
}

int signal_meant(const siginfo_t& info) {
  const int value = info.si_code == SI_QUEUE ? info.si_value.sival_int : 0;
  return value == SIGINT || value == SIGHUP || value == SIGTERM ? value : info.si_signo;
}

RunSignals::RunSignals() {
  const sigset_t set = signals();
  const int code = pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  TOK_CHECK(code == 0, "pthread_sigmask: {}", code);
  receiver_ = std::thread([this] { receive(); });
}

RunSignals::~RunSignals() {
  is_ending_ = true;
  pthread_kill(receiver_.native_handle(), SIGUSR1);
  receiver_.join();
  if (stop_ != 0) return;
  // Signals that have arrived by now ask for what is happening already: the end of the run.
  const sigset_t set = signals();
  const timespec none{};
  while (sigtimedwait(&set, nullptr, &none) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int RunSignals::stop() const {
  is_asked_ = true;
  return stop_;
}

bool RunSignals::has_begun_soon() const {
  const auto end = std::chrono::steady_clock::now() + kLastWords;
  while (!is_asked_ && !is_ending_ && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return is_asked_;
}

void RunSignals::receive() {
  const sigset_t set = signals();
  sigset_t seen[2];
  for (sigset_t& side : seen) sigemptyset(&side);
  while (true) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&set, &info);
    if (is_ending_) return;
    if (signal == SIGUSR1) save_ = true;
    if (signal <= 0 || signal == SIGUSR1) continue;
    const int asked = signal_meant(info);
    if (!is_asked_ && !has_begun_soon()) {
      if (is_ending_) return;
      end_before_the_first_step(asked);
    }
    sigset_t& side = seen[info.si_pid == getppid() ? 1 : 0];
    if (sigismember(&side, signal) == 1) {
      if (is_held_ && signal != SIGINT) continue;
      end_by(signal);
    }
    sigaddset(&side, signal);
    int none = 0;
    stop_.compare_exchange_strong(none, asked);
  }
}

}  // namespace tokamak

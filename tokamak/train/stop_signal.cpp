#include "tokamak/train/stop_signal.h"

#include <atomic>
#include <csignal>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// A signal handler has no other way to speak to the program.
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  g_received.compare_exchange_strong(none, signal);
}

void install(int signal) {
  struct sigaction action {};

  action.sa_handler = on_signal;
  // SA_RESETHAND gives the second signal its default action: the end.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) throw_errno("sigaction");
}

}  // namespace

StopSignal::StopSignal() {
  g_received = 0;
  install(SIGTERM);
  install(SIGINT);
}

StopSignal::~StopSignal() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

int StopSignal::received() const {
  return g_received;
}

}  // namespace tokamak

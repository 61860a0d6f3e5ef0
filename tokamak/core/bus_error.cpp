#include "tokamak/core/bus_error.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>

#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

struct Mapping {
  std::atomic<bool> is_taken{false};
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<const std::byte*> end{nullptr};
  std::array<char, 256> name{};
};

// A signal handler finds nothing but globals.
std::array<Mapping, 1024> mappings;

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0)
    ::_exit(static_cast<int>(ExitCode::kBug));
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    if (mapping.begin == nullptr || at < mapping.begin || at >= mapping.end) continue;
    write_text("tokamak: machine: ");
    write_text(mapping.name.data());
    write_text(": the file was cut, or its disk failed, while it was read\n");
    ::_exit(static_cast<int>(ExitCode::kTryAgain));
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void remember_mapping(std::span<const std::byte> bytes, const char* name) {
  for (Mapping& mapping : mappings) {
    if (mapping.is_taken.exchange(true)) continue;
    std::strncpy(mapping.name.data(), name, mapping.name.size() - 1);
    mapping.end = bytes.data() + bytes.size();
    mapping.begin = bytes.data();
    return;
  }
}

void forget_mapping(std::span<const std::byte> bytes) {
  for (Mapping& mapping : mappings) {
    if (mapping.begin != bytes.data()) continue;
    mapping.begin = nullptr;
    mapping.is_taken = false;
    return;
  }
}

void report_bus_errors() {
  struct sigaction action {};

  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tokamak

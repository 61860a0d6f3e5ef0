#include "tokamak/cli/console.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tokamak/core/host.h"

namespace tokamak::cli {
namespace {

bool is_dumb() {
  const std::string terminal = environment_variable("TERM");
  return terminal.empty() || terminal == "dumb";
}

// Returns the columns of the terminal that standard output is, or 80.
int terminal_columns() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

// A process in the background would write over what the shell shows.
bool is_in_foreground(int stream) {
  const pid_t group = tcgetpgrp(stream);
  return group < 0 || group == getpgrp();
}

}  // namespace

bool is_on_terminal(int stream) {
  return isatty(stream) != 0 && !is_dumb();
}

Waiting::Waiting(std::string what) : what_(std::move(what)) {
  if (is_on_terminal(STDERR_FILENO))
    thread_ = std::jthread([this](const std::stop_token& token) { run(token); });
}

void Waiting::set(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Waiting::run(const std::stop_token& token) {
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex_);
  int seconds = 0;
  while (!token.stop_requested()) {
    if (seconds > 0 && is_in_foreground(STDERR_FILENO))
      fmt::print(stderr, "{}{}: {} s", kEraseLine, what_, seconds);
    stopped.wait_for(lock, token, std::chrono::seconds(1), [] { return false; });
    ++seconds;
  }
  if (seconds > 1) fmt::print(stderr, "{}", kEraseLine);
}

void tell_terminal() {
  if (is_on_terminal(STDOUT_FILENO)) {
    setenv(kTerminalVariable, std::to_string(terminal_columns()).c_str(), 1);
  } else {
    unsetenv(kTerminalVariable);
  }
}

Console::Console(const LogStyle& style, bool is_rank_of_several) : format_(style.format) {
  const std::string told = environment_variable(kTerminalVariable);
  std::from_chars(told.data(), told.data() + told.size(), told_columns_);
  is_live_ = told_columns_ > 0 || (!is_rank_of_several && is_on_terminal(STDOUT_FILENO));
  const bool is_colored =
      style.color == ColorWhen::kAlways ||
      (style.color == ColorWhen::kAuto && is_live_ && environment_variable("NO_COLOR").empty());
  if (is_colored) color_ = LogColor::kAnsi;
}

Console::~Console() {
  clear();
}

int Console::columns() const {
  return told_columns_ > 0 ? told_columns_ : terminal_columns();
}

int Console::room() const {
  constexpr int kLeast = 40;
  if (!is_live_ || format_ == LogFormat::kTorchtitan) return 0;
  const auto prefix = log_prefix(std::chrono::system_clock::now(), "INFO", format_).size();
  return std::max(kLeast, columns() - static_cast<int>(prefix));
}

void Console::clear() {
  if (live_.empty()) return;
  live_.clear();
  fmt::print("{}", kEraseLine);
  std::fflush(stdout);
}

void Console::print(const std::string& level, const std::string& text) {
  const auto now = std::chrono::system_clock::now();
  fmt::print("{}{}{}\n{}", live_.empty() ? "" : kEraseLine, log_prefix(now, level, format_, color_),
             text, live_);
  std::fflush(stdout);
}

void Console::show(const StepProgress& progress) {
  if (!is_live_) return;
  if (told_columns_ == 0 && !is_in_foreground(STDOUT_FILENO)) return;
  live_ = progress_line(progress, color_, columns() - 1);
  fmt::print("{}{}", kEraseLine, live_);
  std::fflush(stdout);
}

}  // namespace tokamak::cli

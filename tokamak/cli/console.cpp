#include "tokamak/cli/console.h"

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tokamak::cli {
namespace {

constexpr std::string_view kEraseLine = "\r\033[2K";

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0;
}

// Returns the columns of the terminal that standard output is, or 80.
int terminal_columns() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

// A process in the background would write over what the shell shows.
bool is_in_foreground() {
  const pid_t group = tcgetpgrp(STDOUT_FILENO);
  return group < 0 || group == getpgrp();
}

}  // namespace

bool is_on_terminal() {
  return isatty(STDOUT_FILENO) != 0 && !is_dumb();
}

void tell_terminal() {
  if (is_on_terminal()) {
    setenv(kTerminalVariable, std::to_string(terminal_columns()).c_str(), 1);
  } else {
    unsetenv(kTerminalVariable);
  }
}

Console::Console(const LogStyle& style, bool is_rank_of_several) : format_(style.format) {
  const std::string_view told = is_set(kTerminalVariable) ? std::getenv(kTerminalVariable) : "";
  std::from_chars(told.data(), told.data() + told.size(), told_columns_);
  is_live_ = told_columns_ > 0 || (!is_rank_of_several && is_on_terminal());
  const bool is_colored = style.color == ColorWhen::kAlways ||
                          (style.color == ColorWhen::kAuto && is_live_ && !is_set("NO_COLOR"));
  if (is_colored) color_ = LogColor::kAnsi;
}

Console::~Console() {
  clear();
}

int Console::columns() const {
  return told_columns_ > 0 ? told_columns_ : terminal_columns();
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
  if (told_columns_ == 0 && !is_in_foreground()) return;
  live_ = progress_line(progress, color_, columns() - 1);
  fmt::print("{}{}", kEraseLine, live_);
  std::fflush(stdout);
}

}  // namespace tokamak::cli

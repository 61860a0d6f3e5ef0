// Standard output of a run: log lines and, on a terminal, one line below them that is rewritten in
// place.
#pragma once

#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "tokamak/train/report/log_line.h"

namespace tokamak::cli {

/// `--color`; kAuto: on a terminal that is not dumb, unless NO_COLOR is set.
enum class ColorWhen : uint8_t { kAuto, kAlways, kNever };

struct LogStyle {
  ColorWhen color = ColorWhen::kAuto;
  LogFormat format = LogFormat::kPlain;
};

/// How `tokamak launch` tells the ranks, whose output it passes on, that it goes to a terminal: the
/// columns of that terminal. mpirun gives ranks terminals of its own, so they cannot ask.
inline constexpr const char* kTerminalVariable = "TOKAMAK_TERMINAL_COLUMNS";

class Console {
 public:
  /// Decides by standard output and the environment. A rank of several asks kTerminalVariable
  /// alone.
  Console(const LogStyle& style, bool is_rank_of_several);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Takes the live line away.
  ~Console();

  LogColor color() const { return color_; }

  bool is_live() const { return is_live_; }

  /// Prints a log line above the live line.
  void print(const std::string& level, const std::string& text);

  /// Rewrites the live line. Does nothing where is_live() is false, or in the background.
  void show(const StepProgress& progress);

  /// Returns the columns that a terminal has after the prefix of a log line; 0 without a terminal,
  /// and in torchtitan's format, whose lines are read by programs.
  int room() const;

  /// Clears the live line before something else is printed.
  void clear();

 private:
  int columns() const;

  LogFormat format_;
  LogColor color_ = LogColor::kPlain;
  bool is_live_ = false;
  int told_columns_ = 0;  // by kTerminalVariable
  std::string live_;      // as it stands on the terminal
};

/// Says on standard error, where that is a terminal, that something is still going on: while it
/// lives, "WHAT: 12 s" is rewritten in place each second. Nothing else may print meanwhile.
class Waiting {
 public:
  explicit Waiting(std::string what);
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void set(std::string what);

 private:
  void run(const std::stop_token& token);

  std::mutex mutex_;
  std::string what_;
  std::jthread thread_;
};

/// Takes a line away that is rewritten in place.
inline constexpr std::string_view kEraseLine = "\r\033[2K";

/// Returns whether standard output or standard error is a terminal that can rewrite lines.
bool is_on_terminal(int stream);

/// Sets kTerminalVariable for the ranks that this process starts.
void tell_terminal();

}  // namespace tokamak::cli

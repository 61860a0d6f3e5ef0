// metrics.command: a program that gets a run's lines on its standard input while the run continues.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace tokamak {

/// Follows files of lines and sends each whole line to a program. A thread reads and sends, so a
/// program that is slow, stuck or dead never delays the run. A program that ends is started again,
/// and every program that starts gets all lines from the first on: it may skip what it has, and
/// none is ever missing. What the program prints goes to LOG.
class MetricsCommand {
 public:
  struct Options {
    std::string command;  ///< for sh -c
    std::vector<std::filesystem::path> files;
    std::vector<std::string> environment;  ///< NAME=VALUE, besides that of the run
    std::filesystem::path log;
    /// Called from the thread where the program ends or cannot be started.
    std::function<void(const std::string& text)> warn;
    std::chrono::milliseconds poll{500};
    std::chrono::milliseconds first_pause{1000};  ///< before a second start; it doubles up to 64x
    std::chrono::milliseconds last_wait{10'000};  ///< for the last lines, when the run ends
  };

  /// Starts the program once the thread runs.
  explicit MetricsCommand(Options options);
  MetricsCommand(const MetricsCommand&) = delete;
  MetricsCommand& operator=(const MetricsCommand&) = delete;

  /// Sends the last lines, closes the program's input and waits for its end, for `last_wait` in
  /// all. A program that takes longer keeps running.
  ~MetricsCommand();

 private:
  struct Followed {
    std::filesystem::path path;
    std::streamoff sent = 0;  ///< bytes that this program got
  };

  void run();

  bool is_over() const { return std::chrono::steady_clock::now() > deadline_.load(); }

  void start();
  bool has_ended();
  void send_new_lines();
  bool send(const std::string& lines);
  void close_input();
  void pause(std::chrono::milliseconds time) const;

  Options o_;
  std::vector<Followed> files_;
  pid_t program_ = -1;
  int input_ = -1;
  int starts_ = 0;
  bool ended_well_ = false;
  std::atomic<bool> ends_ = false;
  std::atomic<std::chrono::steady_clock::time_point> deadline_{
      std::chrono::steady_clock::time_point::max()};
  std::thread thread_;
};

}  // namespace tokamak

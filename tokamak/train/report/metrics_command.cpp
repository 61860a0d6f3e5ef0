#include "tokamak/train/report/metrics_command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tokamak {
namespace {

using std::chrono::milliseconds;

constexpr int kMostWarnings = 5;
constexpr int kMostLastStarts = 3;  // once the run ends
constexpr std::streamoff kMostAtOnce = 1 << 20;

// Starts `sh -c command` in a session of its own, so that signals to the run do not reach it, with
// `input` as its standard input. Returns 0, or the reason why there is no process.
int spawn(const MetricsCommand::Options& o, int input, pid_t& program) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, o.log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::array<const char*, 4> words{"sh", "-c", o.command.c_str(), nullptr};
  std::vector<const char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  for (const std::string& entry : o.environment) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  const int code =
      posix_spawn(&program, "/bin/sh", &files, &attributes, const_cast<char* const*>(words.data()),
                  const_cast<char* const*>(environment.data()));
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return code;
}

std::string describe_end(int status) {
  return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

// Returns the whole lines of a file from byte `from` on, at most kMostAtOnce bytes of them unless
// one line has more.
std::string whole_lines(const std::filesystem::path& path, std::streamoff from) {
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(from)) return {};
  std::string lines;
  for (std::string line; static_cast<std::streamoff>(lines.size()) < kMostAtOnce &&
                         std::getline(file, line) && !file.eof();)
    lines.append(line).push_back('\n');
  return lines;
}

}  // namespace

MetricsCommand::MetricsCommand(Options options) : o_(std::move(options)) {
  for (const std::filesystem::path& path : o_.files) files_.push_back({.path = path});
  // The thread takes no signal of the run. A closed pipe is an error to it, not a signal.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsCommand::~MetricsCommand() {
  deadline_ = std::chrono::steady_clock::now() + o_.last_wait;
  ends_ = true;
  thread_.join();
}

void MetricsCommand::run() {
  int last_starts = 0;
  while (!is_over() && last_starts < kMostLastStarts) {
    const bool was_last = ends_;
    if (program_ < 0) start();
    if (was_last) ++last_starts;
    if (program_ >= 0) send_new_lines();
    if (program_ < 0) continue;
    if (!was_last) {
      pause(o_.poll);
      continue;
    }
    close_input();
    while (!is_over() && !has_ended()) std::this_thread::sleep_for(milliseconds(20));
    if (program_ >= 0 || ended_well_) break;
  }
  close_input();
}

// Returns early where the run ends.
void MetricsCommand::pause(milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!ends_ && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::min(time, milliseconds(50)));
}

void MetricsCommand::start() {
  if (starts_ > 0) pause(o_.first_pause * (1 << std::min(starts_ - 1, 6)));
  starts_ += 1;
  std::array<int, 2> ends{};
  int code = pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno;
  if (code == 0) {
    code = spawn(o_, ends[0], program_);
    close(ends[0]);
    if (code != 0) {
      program_ = -1;
      close(ends[1]);
    }
  }
  if (code != 0) {
    if (starts_ <= kMostWarnings)
      o_.warn(fmt::format("metrics.command cannot be started: {}", std::strerror(code)));
    return;
  }
  input_ = ends[1];
  fcntl(input_, F_SETFL, O_NONBLOCK);
  for (Followed& file : files_) file.sent = 0;
}

bool MetricsCommand::has_ended() {
  int status = 0;
  if (waitpid(program_, &status, WNOHANG) != program_) return false;
  program_ = -1;
  close_input();
  ended_well_ = ends_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!ended_well_ && starts_ <= kMostWarnings) {
    o_.warn(fmt::format("metrics.command {}; see {}", describe_end(status), o_.log.string()));
  }
  return true;
}

void MetricsCommand::close_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void MetricsCommand::send_new_lines() {
  for (Followed& file : files_) {
    while (!has_ended() && input_ >= 0) {
      const std::string lines = whole_lines(file.path, file.sent);
      if (lines.empty()) break;
      if (!send(lines)) return;
      file.sent += static_cast<std::streamoff>(lines.size());
    }
    if (input_ < 0) return;
  }
}

// Waits for the program to read, for as long as it takes; returns whether it got all.
bool MetricsCommand::send(const std::string& lines) {
  for (size_t sent = 0; sent < lines.size();) {
    const ssize_t n = write(input_, lines.data() + sent, lines.size() - sent);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    if (errno == EPIPE) {  // it closed its input, so it is asked to end and waited for
      kill(-program_, SIGTERM);
      close_input();
      return false;
    }
    if (is_over() || has_ended()) return false;
    pollfd writable{.fd = input_, .events = POLLOUT, .revents = 0};
    poll(&writable, 1, 50);
  }
  return true;
}

}  // namespace tokamak

#include "tokamak/cli/launch/launch_job.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/cli/launch/launch_filter.h"
#include "tokamak/cli/launch/launch_rank.h"
#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak::cli {
namespace {

volatile std::sig_atomic_t num_stops = 0;

/// Counts SIGTERM and SIGINT while it lives; they arrive only inside ppoll.
class StopSignals {
 public:
  StopSignals() {
    num_stops = 0;
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &mask_);
    struct sigaction count = {};
    count.sa_handler = [](int signal) { num_stops = num_stops + (signal != SIGCHLD ? 1 : 0); };
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &count, &before_[i]);
  }

  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  ~StopSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

  const sigset_t& mask() const { return mask_; }

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGCHLD};
  sigset_t mask_{};
  struct sigaction before_[3] = {};
};

/// A folder for the records of one attempt, which is removed with this object.
class JobFolder {
 public:
  JobFolder() {
    std::string name = std::filesystem::temp_directory_path() / "tokamak-launch-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw_errno("mkdtemp " + name);
    path_ = name;
  }

  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  ~JobFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::optional<std::string> find_on_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  for (size_t first = 0; first <= folders.size();) {
    const size_t end = std::min(folders.find(':', first), folders.size());
    const std::string file = folders.substr(first, end - first) + "/" + program;
    if (access(file.c_str(), X_OK) == 0) return file;
    first = end + 1;
  }
  return std::nullopt;
}

std::string output_of(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw_errno(command);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  pclose(pipe);
  return text;
}

std::string find_mpirun() {
  const auto mpirun = find_on_path("mpirun");
  TOK_REQUIRE(mpirun, "tokamak launch: no mpirun on PATH; install Open MPI (Debian: openmpi-bin)");
  TOK_REQUIRE(
      output_of("'" + *mpirun + "' --version 2>&1").find("Open MPI") != std::string::npos,
      "tokamak launch: {} is not Open MPI's; start `tokamak train` by your MPI's own mpiexec",
      *mpirun);
  return *mpirun;
}

std::vector<std::string> argv_of(const LaunchJob& job, const std::filesystem::path& folder) {
  std::vector<std::string> argv;
  if (job.num_ranks > 1 || !job.hostfile.empty()) {
    argv = {find_mpirun(),
            "-n",
            std::to_string(job.num_ranks),
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none"};
    if (!job.hostfile.empty()) {
      argv.insert(argv.end(), {"--hostfile", job.hostfile});
      if (std::getenv("OMP_NUM_THREADS") != nullptr) {
        argv.insert(argv.end(), {"-x", "OMP_NUM_THREADS"});
      }
    }
  }
  const auto watcher = watcher_words(folder, read_launch_environment().host, job.print_environment);
  argv.insert(argv.end(), watcher.begin(), watcher.end());
  argv.insert(argv.end(), job.words.begin(), job.words.end());
  return argv;
}

/// Inside a Slurm allocation mpirun would start ranks on the allocation's hosts; without a hostfile
/// they must start on this one.
void forget_slurm() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string entry = *variable;
    if (entry.rfind("SLURM_", 0) == 0) names.push_back(entry.substr(0, entry.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

struct Started {
  pid_t process = 0;
  int output = -1;  ///< read end of the stream that we filter
};

/// We read `stream` of the new process, which gets no terminal because it may not read from one.
Started start(const std::vector<std::string>& words, int stream, bool is_local,
              const sigset_t& mask) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw_errno("pipe");
  const pid_t launcher = getpid();
  const pid_t child = fork();
  if (child < 0) throw_errno("fork");
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher) _exit(1);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    dup2(pipe_ends[1], stream);
    if (isatty(STDIN_FILENO) != 0) dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (is_local) forget_slurm();
    execv(argv[0], argv.data());
    _exit(1);
  }
  close(pipe_ends[1]);
  return {.process = child, .output = pipe_ends[0]};
}

/// Reads the stream to its end and passes stop signals on.
template <class Take>
void attend(const Started& job, const StopSignals& signals, const Take& take) {
  int num_passed_on = 0;
  std::string buffer(1 << 16, '\0');
  while (true) {
    pollfd event{.fd = job.output, .events = POLLIN, .revents = 0};
    const int num_ready = ppoll(&event, 1, nullptr, &signals.mask());
    if (num_passed_on < num_stops) {
      ++num_passed_on;
      kill(job.process, num_passed_on == 1 ? SIGUSR1 : SIGTERM);
    }
    if (num_ready <= 0) continue;
    const ssize_t count = read(job.output, buffer.data(), buffer.size());
    if (count <= 0) return;
    take(std::string_view(buffer).substr(0, static_cast<size_t>(count)));
  }
}

int reap(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) throw_errno("waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_machine_fault(int exit_code) {
  return exit_code > 128 || exit_code == static_cast<int>(ExitCode::kTryAgain);
}

std::string describe_end(int64_t rank, const RankEnd& end) {
  if (end.exit_code > 128) {
    return fmt::format("rank {} on {} died of signal {} ({})", rank, end.host, end.exit_code - 128,
                       strsignal(end.exit_code - 128));
  }
  return fmt::format("rank {} on {} ended {}with exit code {}", rank, end.host,
                     end.exit_code == 0 ? "early " : "", end.exit_code);
}

struct WorstRank {
  int64_t rank = 0;
  RankEnd end;
};

/// Returns the worst among the ranks of this host that ended by themselves.
std::optional<WorstRank> find_worst(const std::filesystem::path& folder, int64_t num_ranks) {
  std::optional<WorstRank> worst;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const auto end = read_rank_end(folder, rank);
    if (!end || end->was_told || (worst && end->exit_code <= worst->end.exit_code)) continue;
    worst = WorstRank{.rank = rank, .end = *end};
  }
  return worst;
}

/// mpirun's own code is that of the first rank to fail, also on another host; codes that Tokamak
/// does not use mean that mpirun had trouble with the machine.
int exit_code_of(const std::optional<WorstRank>& worst, int mpirun_code) {
  if (mpirun_code == 0) return worst ? worst->end.exit_code : 0;
  if (worst && worst->end.exit_code != 0) return worst->end.exit_code;
  const bool is_of_rank = mpirun_code == static_cast<int>(ExitCode::kUserError) ||
                          mpirun_code == static_cast<int>(ExitCode::kDiverged) ||
                          mpirun_code == static_cast<int>(ExitCode::kBug) || mpirun_code > 128;
  return is_of_rank ? mpirun_code : static_cast<int>(ExitCode::kTryAgain);
}

/// Returns the job's exit code, after a line about the rank at fault if that rank may not have
/// reported it.
int judge(const LaunchJob& job, const std::filesystem::path& folder, int mpirun_code) {
  const auto worst = find_worst(folder, job.num_ranks);
  const int code = exit_code_of(worst, mpirun_code);
  if (!is_machine_fault(code) && code != static_cast<int>(ExitCode::kBug)) return code;
  std::string text = worst ? describe_end(worst->rank, worst->end)
                           : fmt::format("mpirun ended with exit code {}", mpirun_code);
  const auto flights = describe_flights(folder, static_cast<int>(job.num_ranks));
  if (!flights.empty()) text += "; the last collectives:";
  for (const std::string& line : flights) text += "\n  " + line;
  fmt::print(stderr, "tokamak launch: {}\n", text);
  return code;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
}

/// Returns lines of ranks in rank order.
std::string sort_by_rank(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t first = 0; first < text.size();) {
    const size_t end = std::min(text.find('\n', first), text.size() - 1) + 1;
    lines.push_back(text.substr(first, end - first));
    first = end;
  }
  const auto rank_of = [](const std::string& line) { return std::atoi(line.c_str() + 5); };
  std::stable_sort(lines.begin(), lines.end(), [&](const std::string& a, const std::string& b) {
    return rank_of(a) < rank_of(b);
  });
  std::string sorted;
  for (const std::string& line : lines) sorted += line;
  return sorted;
}

}  // namespace

LaunchResult run_job(const LaunchJob& job) {
  const JobFolder folder;
  const auto argv = argv_of(job, folder.path());
  const StopSignals signals;
  const int stream = job.print_environment ? STDOUT_FILENO : STDERR_FILENO;
  const Started started = start(argv, stream, job.hostfile.empty(), signals.mask());
  if (job.print_environment) {
    std::string text;
    attend(started, signals, [&](std::string_view part) { text += part; });
    write_all(STDOUT_FILENO, sort_by_rank(text));
  } else {
    LaunchFilter filter;
    attend(started, signals,
           [&](std::string_view part) { write_all(STDERR_FILENO, filter.pass(part)); });
    write_all(STDERR_FILENO, filter.finish());
  }
  close(started.output);
  const int own_code = reap(started.process);
  const bool was_stopped = num_stops > 0;
  return {.exit_code = job.print_environment ? own_code : judge(job, folder.path(), own_code),
          .was_stopped = was_stopped};
}

}  // namespace tokamak::cli

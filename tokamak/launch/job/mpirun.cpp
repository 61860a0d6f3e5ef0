#include "tokamak/launch/job/mpirun.h"

#include <algorithm>
#include <cstdlib>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/launch/job/launch_job.h"
#include "tokamak/launch/job/launch_rank.h"
#include "tokamak/launch/process/child.h"
#include "tokamak/launch/process/command.h"

namespace tokamak::launch {
namespace {

/// Returns the version of Open MPI's mpirun, 4 or 5.
int version_of_mpirun() {
  const CommandResult path = run_command({"sh", "-c", "command -v mpirun"});
  TOK_REQUIRE(path.exit_code == 0,
              "tokamak launch: no mpirun on PATH; install Open MPI (Debian: openmpi-bin)");
  constexpr std::string_view kName = "(Open MPI) ";
  const std::string text = run_command({"mpirun", "--version"}).out;
  const size_t at = text.find(kName);
  TOK_REQUIRE(
      at != std::string::npos,
      "tokamak launch: {} is not Open MPI's; start `tokamak train` by your MPI's own mpiexec",
      path.out);
  return std::atoi(text.c_str() + at + kName.size());
}

/// Sets one of Open MPI's parameters unless the user has.
void add_setting(std::vector<std::string>& argv, const std::string& name,
                 const std::string& value) {
  if (std::getenv(("OMPI_MCA_" + name).c_str()) != nullptr) return;
  argv.insert(argv.end(), {"--mca", name, value});
}

std::vector<std::string> mpirun_words(const LaunchJob& job, const std::filesystem::path& folder) {
  const bool is_new = version_of_mpirun() >= 5;
  const std::string shared_memory = is_new ? "sm" : "vader";
  std::vector<std::string> argv{
      "mpirun",    "-n",  std::to_string(job.num_ranks), "--allow-run-as-root", "--oversubscribe",
      "--bind-to", "none"};
  // Open MPI keeps its files in the job's folder, so that they go with it after a kill.
  add_setting(argv, "btl_" + shared_memory + "_backing_directory", folder);
  if (job.hosts.empty()) {
    add_setting(argv, is_new ? "prte_tmpdir_base" : "orte_tmpdir_base", folder);
    // Ranks of one machine need no port that others could connect to. Open MPI 5 takes no loopback
    // for its own.
    add_setting(argv, "btl", "self," + shared_memory);
    if (!is_new) add_setting(argv, "oob_tcp_if_include", "lo");
    return argv;
  }
  add_setting(argv, "plm_rsh_args", "-o ConnectTimeout=10");
  const auto hostfile = folder / "hosts";
  std::string lines;
  for (const std::string& host : job.hosts) lines += host + "\n";
  FileWriter(hostfile).write(lines);
  argv.insert(argv.end(), {"--hostfile", hostfile});
  for (const char* const variable :
       {"OMP_NUM_THREADS", "TOKAMAK_JOB", "TOKAMAK_RESTART", "NCCL_SOCKET_IFNAME"}) {
    if (std::getenv(variable) != nullptr) argv.insert(argv.end(), {"-x", variable});
  }
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

/// mpirun ends all ranks at once when it gets SIGTERM or SIGHUP, but a service manager sends these
/// to every process of a job: the launcher alone decides what they mean.
void set_job_mask() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGHUP);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace

std::vector<std::string> job_words(const LaunchJob& job, const std::filesystem::path& folder) {
  std::vector<std::string> argv;
  if (job.num_ranks > 1 || !job.hosts.empty()) argv = mpirun_words(job, folder);
  const auto watcher = watcher_words(folder, read_launch_environment().host, job.print_environment);
  argv.insert(argv.end(), watcher.begin(), watcher.end());
  argv.insert(argv.end(), job.words.begin(), job.words.end());
  return argv;
}

JobProcess::JobProcess(const std::vector<std::string>& words, int stream, bool is_local) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw_errno("pipe");
  id_ = start_child(words, [&] {
    set_job_mask();
    dup2(pipe_ends[1], stream);
    if (isatty(STDIN_FILENO) != 0) dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (is_local) forget_slurm();
  });
  close(pipe_ends[1]);
  output_ = pipe_ends[0];
}

JobProcess::~JobProcess() {
  if (!ended()) kill_group();
  close(output_);
}

void JobProcess::send(int signal) const {
  if (!code_) kill(id_, signal);
}

void JobProcess::kill_group() const {
  kill(-id_, SIGKILL);
}

std::optional<int> JobProcess::ended() {
  int status = 0;
  if (code_ || waitpid(id_, &status, WNOHANG) != id_) return code_;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

}  // namespace tokamak::launch

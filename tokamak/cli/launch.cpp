#include <algorithm>
#include <csignal>
#include <cstdlib>

#include <sys/resource.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/words.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/launch/job/supervisor.h"

namespace tokamak::cli {
namespace {

struct LaunchOptions {
  std::string hostfile;
  int64_t max_restarts = 0;
};

void check(const launch::LaunchJob& job, const LaunchOptions& options) {
  TOK_REQUIRE(job.num_ranks >= 1, "tokamak launch: -n {}: wanted one rank or more", job.num_ranks);
  TOK_REQUIRE(options.max_restarts >= 0, "tokamak launch: --max-restarts {}: wanted 0 or more",
              options.max_restarts);
  TOK_REQUIRE(!job.keeps_last_step || options.max_restarts > 0,
              "tokamak launch: --keep-last-step: wanted --max-restarts of 1 or more, got 0");
  TOK_REQUIRE(!job.keeps_last_step || options.hostfile.empty(),
              "tokamak launch: --keep-last-step keeps steps in the memory of one host; leave out "
              "--hostfile, or --keep-last-step");
  TOK_REQUIRE(job.start_seconds >= 1, "tokamak launch: --start-seconds {}: wanted 1 or more",
              job.start_seconds);
  TOK_REQUIRE(options.hostfile.empty() || path_exists(options.hostfile),
              "tokamak launch: --hostfile {}: no such file", options.hostfile);
  TOK_REQUIRE(job.num_ranks == 1 || has_mpi(),
              "tokamak launch: -n {}: this program was built without MPI (cmake -DTOK_MPI=ON) and "
              "runs one rank",
              job.num_ranks);
  const LaunchEnvironment environment = read_launch_environment();
  TOK_REQUIRE(
      environment.world_size == 1,
      "tokamak launch: {} has started {} processes already; start `tokamak train` by it, or "
      "`tokamak launch` alone",
      environment.source, environment.world_size);
  // One process may start the ranks on the hosts of the others.
  TOK_REQUIRE(environment.why_unconnected.empty() || !options.hostfile.empty(),
              "tokamak launch: {}, or name all hosts by --hostfile", environment.why_unconnected);
  if (job.print_environment) return;
  TOK_REQUIRE(
      !job.words.empty(),
      "tokamak launch: wanted a command after --, as: tokamak launch -n {} -- train my.toml",
      job.num_ranks);
  const std::string& command = job.words[0];
  TOK_REQUIRE(command.find('/') != std::string::npos || (is_verb(command) && command != "launch"),
              "tokamak launch: no verb \"{}\" to launch; `tokamak --help` lists them", command);
  TOK_REQUIRE(job.num_ranks == 1 || !is_verb_alone(command),
              "tokamak launch -n {}: {} runs in one process: start it without launch",
              job.num_ranks, command);
}

/// mpirun needs some pipes for each rank of this machine, and waits for ever where it gets none.
void require_open_files(const launch::LaunchJob& job, const LaunchOptions& options) {
  constexpr int64_t kFilesOfMpirun = 32;
  constexpr int64_t kFilesOfRank = 5;
  if (!options.hostfile.empty() || job.num_ranks == 1) return;
  const int64_t wanted = kFilesOfMpirun + kFilesOfRank * job.num_ranks;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(wanted))
    return;
  TOK_REQUIRE(limit.rlim_max >= static_cast<rlim_t>(wanted),
              "tokamak launch: {} ranks want {} open files, {} are allowed; raise ulimit -n",
              job.num_ranks, wanted, limit.rlim_max);
  limit.rlim_cur = static_cast<rlim_t>(wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Without a hostfile all ranks start here, which is a surprise in an allocation of several nodes.
void say_where(const launch::LaunchJob& job, const LaunchOptions& options) {
  const std::string nodes = environment_variable("SLURM_JOB_NUM_NODES");
  if (std::atoi(nodes.c_str()) <= 1 || !options.hostfile.empty()) return;
  fmt::print(
      stderr,
      "tokamak launch: this node takes all {} ranks, though the Slurm job has {} nodes; srun "
      "or --hostfile spreads them\n",
      job.num_ranks, nodes);
}

// Whether the launcher's own words, those before --, ask for Slurm.
bool wants_slurm(Args args) {
  const auto dashes = std::ranges::find(args, "--");
  return std::find(args.begin(), dashes, "--slurm") != dashes;
}

}  // namespace

int run_launch(Args args) {
  if (wants_slurm(args)) return run_launch_slurm(args);
  const auto dashes = std::ranges::find(args, "--");
  CLI::App app(
      "Starts ranks of a command: tokamak launch -n N -- train ...\n--slurm submits them as a "
      "Slurm "
      "job: tokamak launch --slurm --help",
      "tokamak launch");
  launch::LaunchJob job;
  LaunchOptions options;
  app.add_option("-n", job.num_ranks, "ranks")->capture_default_str();
  app.add_option("--hostfile", options.hostfile,
                 "hostfile of mpirun, one line `NAME slots=N` per host");
  app.add_option("--max-restarts", options.max_restarts,
                 "how often to start again after a fault of the machine; train resumes")
      ->capture_default_str();
  app.add_flag(
      "--keep-last-step", job.keeps_last_step,
      "with --max-restarts: keep the State of the last step in this host's memory, so that "
      "a restart loses one step at most");
  app.add_option("--start-seconds", job.start_seconds,
                 "how long hosts may take to start their ranks")
      ->capture_default_str();
  app.add_flag("--print-env", job.print_environment, "print what each rank sees and run nothing");
  require_dashes(Args(args.begin(), dashes));
  if (!parse(app, Args(args.begin(), dashes))) return 0;
  if (dashes != args.end()) job.words.assign(dashes + 1, args.end());
  const launch::LaunchSignals signals;  // a signal waits from here on
  std::signal(SIGPIPE, SIG_IGN);        // a reader of the log that goes ends no job
  check(job, options);
  const launch::Hosts hosts = options.hostfile.empty()
                                  ? launch::Hosts()
                                  : launch::Hosts(read_file(options.hostfile), options.hostfile);
  require_open_files(job, options);
  say_where(job, options);
  tell_terminal();
  return launch::supervise(job, hosts, options.max_restarts, signals);
}

}  // namespace tokamak::cli

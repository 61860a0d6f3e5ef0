#include <algorithm>
#include <filesystem>

#include "tokamak/cli/launch/launch_job.h"
#include "tokamak/cli/words.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"

namespace tokamak::cli {
namespace {

/// Whether another try may succeed, because the machine failed or a rank died.
bool may_restart(const LaunchResult& result) {
  return !result.was_stopped &&
         (result.exit_code == static_cast<int>(ExitCode::kTryAgain) || result.exit_code > 128);
}

void check(const LaunchJob& job, int64_t max_restarts) {
  TOK_REQUIRE(job.num_ranks >= 1, "tokamak launch: -n {}: wanted one rank or more", job.num_ranks);
  TOK_REQUIRE(max_restarts >= 0, "tokamak launch: --max-restarts {}: wanted 0 or more",
              max_restarts);
  TOK_REQUIRE(job.hostfile.empty() || std::filesystem::exists(job.hostfile),
              "tokamak launch: --hostfile {}: no such file", job.hostfile);
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
  if (job.print_environment) return;
  TOK_REQUIRE(
      !job.words.empty(),
      "tokamak launch: wanted a command after --, as: tokamak launch -n {} -- train my.toml",
      job.num_ranks);
  const std::string& command = job.words[0];
  TOK_REQUIRE(command.find('/') != std::string::npos || (is_verb(command) && command != "launch"),
              "tokamak launch: no verb \"{}\" to launch; `tokamak --help` lists them", command);
}

}  // namespace

int run_launch(Args args) {
  const auto dashes = std::find(args.begin(), args.end(), "--");
  CLI::App app("Starts ranks of a command: tokamak launch -n N -- train ...", "tokamak launch");
  LaunchJob job;
  int64_t max_restarts = 0;
  app.add_option("-n", job.num_ranks, "ranks")->capture_default_str();
  app.add_option("--hostfile", job.hostfile, "hosts as mpirun reads them: NAME slots=N a line");
  app.add_option("--max-restarts", max_restarts,
                 "how often to start again after a fault of the machine; train resumes")
      ->capture_default_str();
  app.add_flag("--print-env", job.print_environment, "print what each rank sees and run nothing");
  if (!parse(app, Args(args.begin(), dashes))) return 0;
  if (dashes != args.end()) job.words.assign(dashes + 1, args.end());
  check(job, max_restarts);

  const bool is_plain = job.num_ranks == 1 && job.hostfile.empty() && max_restarts == 0 &&
                        !job.print_environment && is_verb(job.words[0]);
  if (is_plain) return run_verb(job.words);
  LaunchResult result = run_job(job);
  for (int64_t restart = 1; restart <= max_restarts && may_restart(result); ++restart) {
    fmt::print(stderr, "tokamak launch: restart {} of {}\n", restart, max_restarts);
    result = run_job(job);
  }
  return result.exit_code;
}

}  // namespace tokamak::cli

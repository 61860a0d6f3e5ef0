// `tokamak launch` with real ranks: exit codes, signals, restarts, and no process left behind.
#include <csignal>
#include <map>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/price/machine/machine.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

Words launch_words(const Words& options, const Words& command) {
  Words words{TOK_PROGRAM, "launch"};
  words = words + options;
  if (command.empty()) return words;
  return words + Words{"--"} + command;
}

ProgramResult launch(const Words& options, const Words& command) {
  return run_program(launch_words(options, command));
}

ProgramResult launch_worker(int num_ranks, const Words& words) {
  return launch({"-n", std::to_string(num_ranks)}, Words{TOK_WORKER} + words);
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

enum class Part { kRank, kWatcher, kMpirun, kLauncher };

Part part_of(const Process& process) {
  if (process.words.rfind(TOK_WORKER, 0) == 0) return Part::kRank;
  if (process.words.find("--oversubscribe") != std::string::npos) return Part::kMpirun;
  return process.words.find("launch-rank") != std::string::npos ? Part::kWatcher : Part::kLauncher;
}

/// Ranks that run until SIGTERM. Each rank, its watcher, mpirun and the launcher have the folder
/// among their words.
struct Steps {
  ScratchFolder folder;
  std::string started = folder.path() / "started";
  RunningProgram program{launch_words({"-n", "3"}, {TOK_WORKER, "steps", started})};

  void await_start() {
    await([&] { return path_exists(started); }, "the ranks to start");
  }

  void expect_all_gone() {
    await([&] { return processes_with(started).empty(); }, "all processes to end");
  }

  void kill_one(Part part) {
    for (const Process& process : processes_with(started)) {
      if (part_of(process) != part) continue;
      ASSERT_EQ(kill(process.id, SIGKILL), 0);
      return;
    }
    FAIL() << "no such part";
  }
};

struct Fault {
  Words words;
  int exit_code;
  Words says;  ///< texts on stderr
};

class LaunchFault : public testing::TestWithParam<Fault> {};

TEST_P(LaunchFault, EndsWithTheRanksOwnCode) {
  const auto run = launch_worker(4, GetParam().words);
  EXPECT_EQ(run.exit_code, GetParam().exit_code) << run.err;
  for (const std::string& text : GetParam().says) expect_says(run.err, text);
  EXPECT_EQ(run.err.find("-----"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("MPI_ABORT"), std::string::npos) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, LaunchFault,
    testing::Values(
        Fault{{"miss", "throw"}, 2, {"tokamak: rank 1 does not like its folder\n"}},
        Fault{{"miss", "diverge"}, 3, {"tokamak: loss is NaN\n"}},
        Fault{{"miss", "kill"},
              137,
              {"tokamak launch: rank 1 on ", " died of signal 9 (Killed); the last collectives:\n",
               "\n  rank 0 (", "): in all_reduce 2 of \"tp\" (1 float32)\n", "\n  rank 1 (",
               "): left all_reduce 1 of \"tp\" (1 float32)\n", "\n  rank 2 (", "\n  rank 3 ("}},
        Fault{
            {"miss", "quit"}, 75, {"tokamak launch: rank 1 on ", " ended early with exit code 0"}},
        Fault{{"differ"}, 75, {"ranks differ in group \"tp\": rank "}}),
    [](const auto& fault) {
      const auto& words = fault.param.words;
      return words.size() > 1 ? words[1] : words[0];
    });

TEST(Launch, SaysOnceWhatAllRanksSay) {
  const auto run = launch({"-n", "3"}, {"train", "--training.no_such_key=1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  expect_says(run.err, "training.no_such_key");
}

TEST(Launch, SharesThreadsAndTellsTheEnvironment) {
  const auto run = launch({"-n", "3", "--print-env"}, {});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count_lines(run.out), 3) << run.out;
  EXPECT_EQ(run.out.rfind("rank 0 of 3, local rank 0 of 3 on ", 0), 0U) << run.out;
  expect_says(run.out, "\nrank 2 of 3, local rank 2 of 3 on ");
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 3);
  expect_says(run.out, fmt::format(" (Open MPI), OMP_NUM_THREADS={}\n", threads));
}

TEST(Launch, ReadsHostfiles) {
  const ScratchFolder folder;
  const auto hosts = folder.path() / "hosts";
  FileWriter(hosts).write(std::string_view("localhost slots=2\n"));
  const auto run = launch({"-n", "2", "--hostfile", hosts}, {TOK_WORKER, "environment"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_says(run.out, "rank 1 of 2");
}

TEST(Launch, StopSignalReachesAllRanks) {
  Steps steps;
  steps.await_start();
  steps.program.send(SIGTERM);
  const auto run = steps.program.wait();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* rank : {"0", "1", "2"}) {
    expect_says(run.out, std::string("rank ") + rank + " saved\n");
  }
  EXPECT_EQ(run.err, "");
  steps.expect_all_gone();
}

TEST(Launch, DeathOfAnyPartLeavesNoProcess) {
  for (const Part part : {Part::kRank, Part::kWatcher, Part::kMpirun, Part::kLauncher}) {
    Steps steps;
    steps.await_start();
    steps.kill_one(part);
    EXPECT_EQ(steps.program.wait().exit_code, 137) << static_cast<int>(part);
    steps.expect_all_gone();
  }
}

TEST(Launch, RestartsAfterAMachinesFault) {
  const ScratchFolder folder;
  const std::string died = folder.path() / "died";
  // Rank 1 kills itself in the first run only.
  const auto run = launch({"-n", "2", "--max-restarts", "2"}, {TOK_WORKER, "once", died});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_says(run.err, "tokamak launch: restart 1 of 2\n");
  EXPECT_EQ(run.err.find("restart 2"), std::string::npos) << run.err;
}

TEST(Launch, AJobMayRunForLongerThanItsStart) {
  for (const char* const ranks : {"1", "2"}) {
    const auto run = launch({"-n", ranks, "--start-seconds", "1"}, {"/bin/sleep", "2"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
  }
}

TEST(Launch, RestartsOneRankAndGivesUp) {
  const auto run = launch({"-n", "1", "--max-restarts", "1"}, {TOK_WORKER, "die"});
  EXPECT_EQ(run.exit_code, 137) << run.err;
  expect_says(run.err, "tokamak launch: restart 1 of 1\n");
}

// Killed after its first checkpoint, a run is resumed and ends as one that nobody touched.
TEST(Launch, RestartedTrainingResumes) {
  const Words more{"--training.steps=150", "--checkpoint.enable", "--checkpoint.interval=20",
                   "--checkpoint.last_save_model_only=false"};
  const ScratchFolder whole;
  const auto untouched = run_program(train_words("llama_tiny", whole.path(), more));
  ASSERT_EQ(untouched.exit_code, 0) << untouched.err;

  const ScratchFolder parts;
  const Words train = train_words("llama_tiny", parts.path(), more);
  RunningProgram program(
      launch_words({"-n", "1", "--max-restarts", "1"}, {train.begin() + 1, train.end()}));
  await([&] { return path_exists(parts.path() / "checkpoint/step-20"); }, "a checkpoint");
  for (const Process& process : training_processes(parts.path())) kill(process.id, SIGKILL);
  const auto run = program.wait();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_says(run.err, "rank 0 on ");
  expect_says(run.err, " died of signal 9 (Killed)\ntokamak launch: restart 1 of 1\n");
  EXPECT_EQ(timeless_metrics(parts.path()), timeless_metrics(whole.path()));
  EXPECT_EQ(read_tensors(parts.path() / "checkpoint/step-150"),
            read_tensors(whole.path() / "checkpoint/step-150"));
}

TEST(Launch, DoesNotRestartAfterAUsersMistake) {
  const auto run = launch({"-n", "2", "--max-restarts", "3"}, {TOK_WORKER, "early"});
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_EQ(run.err, "tokamak: the config is wrong\n");
}

TEST(Launch, RefusesWhatCannotStart) {
  const std::vector<std::pair<ProgramResult, std::string>> cases{
      {launch({"-n", "0"}, {"train"}), "-n 0: wanted one rank or more"},
      {launch({"-n", "2"}, {}), "wanted a command after --"},
      {launch({"-n", "2"}, {"trian"}), "no verb \"trian\" to launch"},
      {launch({"-n", "2"}, {"convert", "a", "b"}), "-n 2: convert runs in one process"},
      {launch({"-n", "2", "--hostfile", "/nowhere"}, {"train"}), "--hostfile /nowhere: no such"},
      {launch({"-n", "2", "--keep-last-step"}, {"train"}), "wanted --max-restarts of 1 or more"},
      {launch({"--max-restarts", "1", "--keep-last-step", "--hostfile", "/etc/hosts"}, {"train"}),
       "the memory of one host"},
      {launch({"-n", "2"}, {"/no/such/program"}), "cannot start /no/such/program"},
      {run_program({"sh", "-c", "ulimit -n 24; exec \"$0\" launch -n 4 -- train", TOK_PROGRAM}),
       "4 ranks want 52 open files, 24 are allowed"},
      {run_program({"env", "PATH=/nowhere", TOK_PROGRAM, "launch", "-n", "2", "--", "train"}),
       "no mpirun on PATH"},
      {run_program({"env", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0", TOK_PROGRAM,
                    "launch", "-n", "2", "--", "train"}),
       "Open MPI has started 2 processes already"}};
  for (const auto& [run, text] : cases) {
    EXPECT_EQ(run.exit_code, 2) << text;
    expect_says(run.err, text);
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
  }
}

// Open MPI 5 has other names for some settings and ends where its daemon is to take the loopback.
TEST(Launch, TellsEachOpenMpiWhatItTakes) {
  const ScratchFolder scratch;
  const auto mpirun = scratch.path() / "mpirun";
  const auto words_of = [&](const std::string& version) {
    const std::string script = fmt::format(
        "#!/bin/sh\n[ $1 != --version ] || exec echo 'mpirun (Open MPI) {}'\necho \"$@\" >&2\n",
        version);
    FileWriter(mpirun).write(script);
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    return run_program({"env", "PATH=" + scratch.path().string() + ":/usr/bin:/bin", TOK_PROGRAM,
                        "launch", "-n", "2", "--", "train"})
        .err;
  };
  const std::string old_words = words_of("4.1.4");
  for (const char* part : {"orte_tmpdir_base", "btl self,vader", "oob_tcp_if_include lo"})
    expect_says(old_words, part);
  const std::string new_words = words_of("5.0.7");
  for (const char* part : {"prte_tmpdir_base", "btl self,sm", "btl_sm_backing_directory"})
    expect_says(new_words, part);
  EXPECT_EQ(new_words.find("oob_tcp"), std::string::npos) << new_words;
}

TEST(Launch, BenchCommMeasuresEveryCollective) {
  const auto run = launch(
      {"-n", "2"}, {"bench", "comm", "--max-bytes", "2000", "--factor", "2", "--seconds", "0.001"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const ScratchFolder folder;
  FileWriter(folder.path() / "json").write(run.out.substr(run.out.find('{')));
  std::map<std::string, int> lines;
  for (const Json& line : read_json_lines(folder.path() / "json")) {
    EXPECT_GT(line.at("bytes_per_s").get<double>(), 0.0);
    EXPECT_EQ(line.at("ranks").get<int>(), 2);
    ++lines[line.at("collective").get<std::string>()];
  }
  const std::map<std::string, int> want{{"all_gather", 1}, {"all_reduce", 1},     {"all_to_all", 1},
                                        {"broadcast", 1},  {"reduce_scatter", 1}, {"send_recv", 1}};
  EXPECT_EQ(lines, want);
  const std::string fabric = (folder.path() / "fabric.toml").string();
  const auto fitted = launch({"-n", "2"}, {"bench", "comm", "--max-bytes", "20000", "--factor", "4",
                                           "--seconds", "0.001", "--calibration", fabric});
  EXPECT_EQ(fitted.exit_code, 0) << fitted.err;
  const price::Machine m = price::load_machine("a100-80-sxm+" + fabric);
  ASSERT_EQ(m.levels.size(), 1U);
  EXPECT_EQ(m.levels[0].num_devices, 2);
  EXPECT_GT(m.levels[0].bytes_per_s, 1e5);
  for (const Words& words : {Words{"--calibration", "no/x", "--machine", "h200"},
                             Words{"--calibration", fabric, "--machine", "a100-80-sxm"}}) {
    const auto refused = launch({"-n", "2"}, Words{"bench", "comm"} + words);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(refused.out, "") << "nothing is timed";
  }
  const Words one_a_host{"/usr/bin/env", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                         "OMPI_COMM_WORLD_LOCAL_RANK=0", TOK_PROGRAM};
  const auto apart = launch({"-n", "2"}, one_a_host + Words{"bench", "comm", "--calibration",
                                                            fabric, "--machine", "h200"});
  EXPECT_EQ(apart.exit_code, 2);
  expect_says(apart.err, "1 of 2 ranks on host");
  const auto alone = run_program({TOK_PROGRAM, "bench", "comm"});
  EXPECT_EQ(alone.exit_code, 2);
  expect_says(alone.err, "tokamak launch -n 4 -- bench comm");
}

}  // namespace
}  // namespace tokamak

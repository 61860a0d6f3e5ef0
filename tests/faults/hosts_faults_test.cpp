// Jobs over several hosts that fail, vanish or fall silent. A host is a name of its own (a UTS
// namespace) on this machine, entered by a stand-in for ssh; without the right to make one the
// tests are skipped.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/faults/fault_run.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemoteShell = R"(#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift $(( $([ "$1" = -o ] && echo 2 || echo 1) )); done
host=$1; shift
if [ -e "$(dirname "$0")/$host-is-down" ]; then exit 255; fi
exec unshare --uts sh -c "hostname $host; exec /bin/sh -c \"\$0\"" "$*"
)";

bool can_make_hosts() {
  return run_program({"unshare", "--uts", "hostname", "n1"}).exit_code == 0;
}

/// As above, but the host has no network in common with this one.
constexpr const char* kCutShell = R"(#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift $(( $([ "$1" = -o ] && echo 2 || echo 1) )); done
host=$1; shift
exec unshare --uts --net sh -c "hostname $host; exec /bin/sh -c \"\$0\"" "$*"
)";

/// Like kRemoteShell, except that n2 runs another program: the file beside the shell.
constexpr const char* kOtherProgramShell = R"(#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift $(( $([ "$1" = -o ] && echo 2 || echo 1) )); done
host=$1; shift
[ "$host" != n2 ] || change="mount --bind $(dirname "$0")/program $TOK_TEST_PROGRAM;"
exec unshare --uts --mount sh -c "$change hostname $host; exec /bin/sh -c \"\$0\"" "$*"
)";

/// Three hosts with a slot each, and a job of two ranks.
class HostFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_make_hosts()) GTEST_SKIP() << "no right to make UTS namespaces";
    const fs::path shell = scratch_.path() / "shell";
    FileWriter(shell).write(std::string_view(kRemoteShell));
    fs::permissions(shell, fs::perms::owner_all);
    FileWriter(scratch_.path() / "hosts")
        .write(std::string_view("n1 slots=1\nn2 slots=1\nn3 slots=1\n"));
    setenv("OMPI_MCA_plm_rsh_agent", shell.c_str(), 1);
    setenv("OMPI_MCA_oob_tcp_if_include", "lo", 1);
    setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
  }

  FaultyJob job() const {
    return {.launch = {"--hostfile", (scratch_.path() / "hosts").string(), "--max-restarts", "3"},
            .train = {"--training.steps=400", "--checkpoint.interval=10"}};
  }

  ScratchFolder scratch_;
};

std::string environment_of(pid_t process) {
  return process_text(fmt::format("/proc/{}/environ", process));
}

fs::path host_of(pid_t process) {
  std::error_code code;
  return fs::read_symlink(fmt::format("/proc/{}/ns/uts", process), code);
}

/// The process of rank 1, or of its successor if it is not `old`; 0 where there is none.
pid_t second_rank(const FaultRun& run, pid_t old = 0) {
  for (const Process& process : training_processes(run.dump())) {
    const bool is_second =
        environment_of(process.id).find("OMPI_COMM_WORLD_RANK=1") != std::string::npos;
    if (is_second && process.id != old) return process.id;
  }
  return 0;
}

void await_restart(const FaultRun& run, pid_t old) {
  await([&] { return second_rank(run, old) != 0; }, "a restart", 30);
}

/// Sends `signal` to every process of the host where rank 1 runs, its daemon first.
std::vector<pid_t> send_to_host(const FaultRun& run, int signal) {
  const fs::path host = host_of(second_rank(run));
  std::vector<pid_t> sent;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0 || host_of(process) != host) continue;
    kill(process, signal);
    sent.push_back(process);
  }
  return sent;
}

void await_steps(const FaultRun& run, int64_t more) {
  const int64_t steps = steps_logged(run.dump());
  await([&] { return steps_logged(run.dump()) >= steps + more; }, "steps");
}

TEST_F(HostFaults, AHostThatFailsTwiceIsLeftOut) {
  if (!is_drawn("fails_twice", 3)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run(job());
  for (int i = 0; i < 2; ++i) {
    await_steps(run, 12);
    const pid_t rank = second_rank(run);
    ASSERT_GT(rank, 0);
    kill(rank, SIGKILL);
    await_restart(run, rank);
  }
  const auto result = run.expect_end(0, 120);
  EXPECT_NE(result.err.find("n2 is left out from here on: it has failed twice"), std::string::npos)
      << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

TEST_F(HostFaults, AHostThatLosesPowerIsReplaced) {
  if (!is_drawn("loses_power", 3)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run(job());
  await_steps(run, 12);
  FileWriter(scratch_.path() / "n2-is-down").write(std::string_view("yes"));
  const pid_t old = second_rank(run);
  send_to_host(run, SIGKILL);
  const double start = run.seconds();
  await_restart(run, old);
  EXPECT_LT(run.seconds() - start, 15);
  const auto result = run.expect_end(0, 120);
  EXPECT_NE(result.err.find("n2 is left out from here on"), std::string::npos) << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

// As behind a dead switch: nothing of the host answers, and nothing ends.
TEST_F(HostFaults, AHostThatFallsSilentIsReplaced) {
  if (!is_drawn("falls_silent", 3)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run(job());
  await_steps(run, 12);
  const pid_t old = second_rank(run);
  const auto stopped = send_to_host(run, SIGSTOP);
  const double start = run.seconds();
  await_restart(run, old);
  EXPECT_LT(run.seconds() - start, 20);
  const auto result = run.expect_end(0, 120);
  EXPECT_NE(result.err.find("n2 has not been heard of for"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("n2 is left out from here on: it does not answer"), std::string::npos)
      << result.err;
  for (const pid_t process : stopped) kill(process, SIGCONT);
  run.expect_no_orphan();
  run.expect_same_losses();
}

/// A variable of the environment while it lives.
struct Setting {
  Setting(const char* variable, const std::string& value) : name(variable) {
    setenv(variable, value.c_str(), 1);
  }

  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

  ~Setting() { unsetenv(name); }

  const char* name;
};

TEST_F(HostFaults, AnInterfaceThatIsNotThereEndsTheJobAtOnceByName) {
  if (!is_drawn("wrong_interface", 3)) GTEST_SKIP() << "not drawn at this commit";
  const FaultyJob once{.launch = {"--hostfile", (scratch_.path() / "hosts").string()}};
  const Setting transport("OMPI_MCA_btl", "self,tcp");
  for (const char* const whose : {"OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include"}) {
    const Setting interface(whose, "dead0");
    FaultRun run(once);
    const auto result = run.expect_end(75, 20);
    EXPECT_NE(result.err.find("dead0"), std::string::npos) << result.err;
    run.expect_no_orphan();
    setenv("OMPI_MCA_oob_tcp_if_include", "lo", 1);
  }
}

TEST_F(HostFaults, AHostWithoutANetworkInCommonEndsTheJobAtOnceByName) {
  if (!is_drawn("no_network", 3)) GTEST_SKIP() << "not drawn at this commit";
  if (run_program({"unshare", "--net", "true"}).exit_code != 0)
    GTEST_SKIP() << "no right to make network namespaces";
  FileWriter(scratch_.path() / "shell").write(std::string_view(kCutShell));
  FaultRun run({.launch = {"--hostfile", (scratch_.path() / "hosts").string()}});
  const auto result = run.expect_end(75, 80);
  EXPECT_NE(result.err.find("n1"), std::string::npos) << result.err;
  run.expect_no_orphan();
}

TEST_F(HostFaults, AHostThatTheCheckNamesIsReplacedBeforeStepZero) {
  if (!is_drawn("check_names", 3)) GTEST_SKIP() << "not drawn at this commit";
  const Setting program("TOK_TEST_PROGRAM", TOK_PROGRAM);
  const fs::path other = scratch_.path() / "program";
  FileWriter(other).write(read_file(TOK_PROGRAM) + "one byte more");
  fs::permissions(other, fs::perms::owner_all);
  FileWriter(scratch_.path() / "shell").write(std::string_view(kOtherProgramShell));
  FaultyJob named = job();
  named.train = {"--training.steps=12"};
  FaultRun run(named);
  const auto result = run.expect_end(0, 120);
  const std::string said = result.out + result.err;
  for (const char* text : {"fault: n2: program is ", "cluster: leave out n2 (comm.check_cluster)",
                           "n2 is left out from here on: the check of the hosts names it",
                           "restart 1 of 3", "cluster: 2 hosts checked in "}) {
    EXPECT_NE(said.find(text), std::string::npos) << text << "\n" << said;
  }
  EXPECT_EQ(said.find("restart 2 of 3"), std::string::npos) << said;
  run.expect_no_orphan();
  run.expect_same_losses();
}

TEST_F(HostFaults, ASpareHostThatIsDeadIsPassedOver) {
  if (!is_drawn("dead_spare", 3)) GTEST_SKIP() << "not drawn at this commit";
  FileWriter(scratch_.path() / "hosts")
      .write(std::string_view("n1 slots=1\nn2 slots=1\nn3 slots=1\nn4 slots=1\n"));
  FileWriter(scratch_.path() / "n3-is-down").write(std::string_view("yes"));
  FaultRun run(job());
  await_steps(run, 12);
  FileWriter(scratch_.path() / "n2-is-down").write(std::string_view("yes"));
  const pid_t old = second_rank(run);
  send_to_host(run, SIGKILL);
  await_restart(run, old);
  const auto result = run.expect_end(0, 120);
  EXPECT_NE(result.err.find("n3 is left out from here on: it does not answer"), std::string::npos)
      << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

}  // namespace
}  // namespace tokamak

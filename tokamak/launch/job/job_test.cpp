// The parts of `tokamak launch` that start nothing: blame, hosts, crash loops, news of watchers.
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/launch/job/launch_filter.h"
#include "tokamak/launch/job/liveness.h"
#include "tokamak/launch/job/rank_end.h"
#include "tokamak/launch/job/supervisor.h"
#include "tokamak/launch/job/verdict.h"
#include "tokamak/launch/process/hosts.h"
#include "tokamak/train/run_signals.h"

#include "tests/fixtures/program.h"

namespace tokamak::launch {
namespace {

using Lines = std::vector<std::string>;

RankEnd ended(int exit_code, int64_t at_ns = 0) {
  return {.exit_code = exit_code, .at_ns = at_ns, .step = 7, .host = "n1"};
}

TEST(Verdict, BlamesTheDeadRankAndNotItsSurvivors) {
  const Verdict verdict =
      judge({.ranks = {{0, ended(75, 10)}, {1, ended(128 + SIGPIPE, 5)}, {2, ended(137, 20)}},
             .code = 137});
  EXPECT_EQ(verdict.exit_code, 137);
  EXPECT_EQ(verdict.text, "rank 2 on n1 died of signal 9 (Killed)");
  EXPECT_EQ(verdict.host, "n1");
  EXPECT_EQ(verdict.step, 7);
  EXPECT_EQ(judge({.ranks = {{0, ended(75)}}, .code = 75}).host, "") << "it lost a peer";
}

TEST(Verdict, ARankThatReportsItsErrorComesBeforeThoseThatLostIt) {
  EXPECT_EQ(judge({.ranks = {{0, ended(75, 1)}, {1, ended(3, 2)}}, .code = 75}).exit_code, 3);
  EXPECT_EQ(judge({.ranks = {{0, ended(75, 1)}, {1, ended(2, 2)}}, .code = 75}).exit_code, 2);
}

TEST(Verdict, TellsStoppedFromFinishedAndFromFailed) {
  EXPECT_EQ(judge({.ranks = {{0, ended(0)}, {1, ended(0)}}}).exit_code, 0);
  EXPECT_EQ(judge({.ranks = {{0, ended(85)}, {1, ended(85)}}}).exit_code, kExitStopped);
  EXPECT_EQ(judge({.ranks = {{0, ended(85)}, {1, ended(139)}}, .code = 139}).exit_code, 139);
  EXPECT_EQ(judge({.code = 140, .was_stopped = true}).exit_code, kExitStopped)
      << "mpirun itself was ended before it had started a rank";
  RankEnd told = ended(137);
  told.was_told = true;
  EXPECT_EQ(judge({.ranks = {{0, ended(85)}, {1, told}}, .code = 1}).exit_code, kExitStopped);
}

TEST(Verdict, SaysWhyTheLauncherOrAWatcherEndedTheJob) {
  RankEnd stopped = ended(75);
  stopped.reason = "was stopped (SIGSTOP) for 5 s";
  const Verdict watcher = judge({.ranks = {{0, ended(75)}, {1, stopped}}, .code = 75});
  EXPECT_EQ(watcher.text, "rank 1 on n1 was stopped (SIGSTOP) for 5 s");
  const Verdict host =
      judge({.ranks = {{0, ended(75)}}, .code = 137, .reason = "n2 is silent", .host = "n2"});
  EXPECT_EQ(host.exit_code, 75);
  EXPECT_EQ(host.text, "n2 is silent");
  EXPECT_EQ(host.host, "n2");
  EXPECT_TRUE(host.host_is_lost);
}

TEST(Verdict, TakesTheHostsThatARankLeavesOut) {
  RankEnd first = ended(75);
  first.leave_out = "n2,n3";
  const Verdict verdict = judge({.ranks = {{0, first}, {1, ended(75)}}, .code = 75});
  EXPECT_EQ(verdict.exit_code, 75);
  EXPECT_EQ(verdict.leave_out, "n2,n3");
  EXPECT_EQ(verdict.text, "") << "the rank has said it";
  EXPECT_EQ(verdict.host, "");
}

TEST(Hosts, TakesTheFirstWithEnoughSlotsAndKeepsSpares) {
  Hosts hosts("n1 slots=2 max_slots=2\n# spare:\nn2 slots=2\n\nn3 slots=2\n", "hosts");
  EXPECT_EQ(hosts.choose(4), (Lines{"n1 slots=2 max_slots=2", "n2 slots=2"}));
  EXPECT_FALSE(hosts.add_failure("n1.cluster"));
  EXPECT_EQ(hosts.choose(4)->front(), "n1 slots=2 max_slots=2");
  EXPECT_TRUE(hosts.add_failure("n1"));
  EXPECT_FALSE(hosts.add_failure("n1")) << "already left out";
  EXPECT_EQ(hosts.choose(4), (Lines{"n2 slots=2", "n3 slots=2"}));
  EXPECT_TRUE(hosts.add_failure("n3", 2));
  EXPECT_EQ(hosts.choose(4), std::nullopt);
  EXPECT_EQ(hosts.choose(2), (Lines{"n2 slots=2"}));
  EXPECT_EQ(hosts.excluded(), (Lines{"n1", "n3"}));
  EXPECT_FALSE(hosts.add_failure("elsewhere", 5));
}

TEST(Hosts, WithoutNumbersOfSlotsAllAreTaken) {
  const Hosts hosts("n1\nn2 slots=4\n", "hosts");
  EXPECT_EQ(hosts.choose(1), (Lines{"n1", "n2 slots=4"}));
  EXPECT_EQ(Hosts("n1 slots=1", "hosts").choose(4), (Lines{"n1 slots=1"})) << "oversubscribed";
  EXPECT_EQ(Hosts().choose(4), Lines());
}

TEST(Hosts, RefusesWhatIsNoHostfile) {
  for (const char* text : {"", "# nothing\n", "n1 slots=x\n", "n1 slots=0\n"}) {
    EXPECT_THROW(Hosts(text, "hosts"), Error) << text;
  }
}

TEST(CrashLoop, CountsEndsAlikeInARow) {
  CrashLoop loop;
  EXPECT_EQ(loop.add({.exit_code = 139, .step = 7}), 1);
  EXPECT_EQ(loop.num_without_progress(), 1);
  EXPECT_EQ(loop.add({.exit_code = 139, .step = 7}), 2);
  EXPECT_EQ(loop.num_without_progress(), 2);
  EXPECT_EQ(loop.add({.exit_code = 137, .step = 9}), 1);
  EXPECT_EQ(loop.num_without_progress(), 1);
  EXPECT_EQ(loop.add({.exit_code = 137, .step = 8}), 1);
  EXPECT_EQ(loop.add({.exit_code = 137, .step = 8}), 2);
  EXPECT_EQ(loop.add({.exit_code = 137, .step = 8}), 3);
}

TEST(CrashLoop, GoesOnWhereEachEndNamesAnotherHost) {
  CrashLoop loop;
  for (const char* host : {"n2", "n3", "n4", "n5"})
    EXPECT_EQ(loop.add({.exit_code = 75, .leave_out = host}), 1) << host;
  EXPECT_EQ(loop.add({.exit_code = 75, .leave_out = "n5"}), 2);
}

// Runs `work` in a process of its own, which holds memory that takes a while to free.
template <class F>
pid_t start_process(F&& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  constexpr size_t kBytes = size_t{256} << 20;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) _exit(1);
  work();
  _exit(3);
}

TEST(Death, BySignalIsKnownBeforeTheProcessIsGone) {
  const pid_t child = start_process([] { pause(); });
  EXPECT_EQ(death_by_signal(child), std::nullopt);
  kill(child, SIGKILL);
  std::optional<int> death;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!death && std::chrono::steady_clock::now() < end) death = death_by_signal(child);
  EXPECT_EQ(death, 128 + SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(death_by_signal(child), std::nullopt) << "it is gone";
}

TEST(Death, OfAProcessThatEndsByItselfIsNone) {
  const pid_t child = start_process([] {});
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(death_by_signal(child), std::nullopt);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(RankNews, SurvivesItsLine) {
  RankNews news{.kind = RankNews::Kind::kEnded, .rank = 12, .end = ended(137, 99)};
  news.end.was_told = true;
  news.end.reason = "did not run for 8 s";
  news.end.process = 4711;
  const auto read = news_in(to_line(news));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_line(*read), to_line(news));
  EXPECT_EQ(read->rank, 12);
  EXPECT_EQ(read->end.reason, news.end.reason);
  EXPECT_EQ(read->end.process, 4711);
  EXPECT_EQ(read->end.leave_out, "");
  news.end.leave_out = "n2,n3";
  EXPECT_EQ(news_in(to_line(news))->end.leave_out, "n2,n3");
  const ScratchFolder folder;
  write_rank_end(folder.path(), 12, news.end);
  EXPECT_EQ(read_rank_end(folder.path(), 12)->exit_code, 137);
  EXPECT_FALSE(read_rank_end(folder.path(), 13));
  write_rank_end(folder.path() / "gone", 1, news.end);
  for (const char* line : {"", "tokamak: x\n", "\x1etokamak-rank \n", "\x1etokamak-rank ended 1\n",
                           "\x1etokamak-rank born 1 2 3 4 5 n1\n"}) {
    EXPECT_FALSE(news_in(line)) << line;
  }
}

TEST(LaunchFilter, KeepsWhatIsNotKnown) {
  const std::string rule(74, '-');
  LaunchFilter filter;
  EXPECT_EQ(filter.pass("one\ntw"), "one\n");
  EXPECT_EQ(filter.pass("o\n"), "two\n");
  const std::string slots = rule + "\nThere are not enough slots\n" + rule + "\n";
  EXPECT_EQ(filter.pass(slots), slots);
  EXPECT_EQ(filter.pass(rule + "\nMPI_ABORT was invoked on rank 1 in\n\nx\n" + rule + "\n"), "");
  EXPECT_EQ(filter.pass("[vm:1] 1 more process has sent help message help-mpi-api.txt\n"), "");
  EXPECT_EQ(filter.pass(rule + "\nunfinished"), "");
  EXPECT_EQ(filter.finish(), rule + "\nunfinished");
}

TEST(LaunchFilter, DropsWhatAnotherRankHasSaid) {
  LaunchFilter filter;
  EXPECT_EQ(filter.pass("tokamak: rank 0 on a: bad\n  more\n"),
            "tokamak: rank 0 on a: bad\n  more\n");
  EXPECT_EQ(filter.pass("tokamak: rank 1 on b: bad\n  more\nother\n  kept\n"), "other\n  kept\n");
  EXPECT_EQ(filter.pass("tokamak: worse\n"), "tokamak: worse\n");
  EXPECT_EQ(filter.pass("other\n"), "other\n");
}

}  // namespace
}  // namespace tokamak::launch

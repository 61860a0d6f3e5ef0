// The check of the hosts before step 0, on ranks that are threads and call their hosts what they
// like.
#include "tokamak/launch/cluster/preflight.h"

#include <chrono>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/launch/cluster/rates.h"

#include "tests/fixtures/program.h"

namespace tokamak::launch {
namespace {

namespace fs = std::filesystem;

/// One rank for each host, and where each sees the dump folder.
class PreflightTest : public testing::Test {
 protected:
  /// Returns what rank 0 has printed, with the level before each text.
  std::string check(const std::string& when, const std::vector<std::string>& hosts) {
    std::string said;
    run_ranks(static_cast<int>(hosts.size()), [&](World& world) {
      const int rank = world.rank();
      const bool has_more_threads = rank == rank_with_more_threads;
      const auto backend = cpu::make_backend({.threads = has_more_threads ? 2 : 1});
      check_before_training(
          world, world, *backend, {.rank = rank, .world_size = world.size(), .host = hosts[rank]},
          {.when = when,
           .folder = rank == rank_apart || all_apart ? apart_.path() / std::to_string(rank)
                                                     : shared_.path(),
           .print = [&](const char* level, const std::string& text) {
             said += std::string(level) + " " + text + "\n";
           }});
    });
    return said;
  }

  /// Does the same for good hosts, of which one may seem slow while others use the cores.
  std::string check_in_peace(const std::vector<std::string>& hosts) {
    std::string said;
    for (int attempt = 0; attempt < 5; ++attempt) {
      said = check("auto", hosts);
      if (said.find("slow: ") == std::string::npos) break;
    }
    return said;
  }

  /// Returns the text of the error of kind E, on which all ranks agree.
  template <class E>
  std::string error(const std::string& when, const std::vector<std::string>& hosts) {
    try {
      check(when, hosts);
    } catch (const E& error) {
      return error.what();
    }
    return "no error";
  }

  bool has_files() const { return !fs::is_empty(shared_.path()); }

  int rank_with_more_threads = -1;
  int rank_apart = -1;
  bool all_apart = false;

 private:
  ScratchFolder shared_;
  ScratchFolder apart_;
};

void expect_one_line(const std::string& said, const std::string& front) {
  EXPECT_EQ(said.rfind("INFO " + front, 0), 0U) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
}

TEST_F(PreflightTest, GoodHostsAreOneLineInLessThanTenSeconds) {
  expect_one_line(check_in_peace({"n1", "n2", "n3"}), "cluster: 3 hosts checked in ");
  const auto start = std::chrono::steady_clock::now();
  check("auto", {"n1", "n2", "n3"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_FALSE(has_files()) << "the check leaves nothing behind";
}

TEST_F(PreflightTest, OneHostIsCheckedByStrictAlone) {
  EXPECT_EQ(check("auto", {"n1", "n1"}), "");
  EXPECT_EQ(check("never", {"n1", "n2"}), "");
  expect_one_line(check("strict", {"n1", "n1"}), "cluster: 1 host checked in ");
}

TEST_F(PreflightTest, WhatIsCheckedAlreadyIsNotCheckedAgain) {
  ::setenv(kCheckedVariable, "1", 1);
  EXPECT_EQ(check("strict", {"n1", "n2"}), "");
  ::setenv(kCheckedVariable, "", 1);
  EXPECT_NE(check("auto", {"n1", "n2"}), "");
  ::unsetenv(kCheckedVariable);
}

TEST_F(PreflightTest, AFaultEndsTheRunAndNamesTheHost) {
  const ScratchFolder folder;
  const fs::path settings = folder.path() / "settings";
  ::setenv(kLeaveOutVariable, settings.c_str(), 1);
  rank_apart = 1;
  EXPECT_EQ(error<SystemError>("auto", {"n1", "n2"}), "cluster: leave out n2 (comm.check_cluster)");
  EXPECT_EQ(read_file(settings), "leave_out=n2\n");
  rank_apart = -1;
  fs::remove(settings);
  check("auto", {"n1", "n2"});
  EXPECT_FALSE(fs::exists(settings));
  ::unsetenv(kLeaveOutVariable);
}

TEST_F(PreflightTest, ASlowHostEndsAStrictRunOnly) {
  rank_with_more_threads = 2;
  const std::string said = check("auto", {"n1", "n2", "n3"});
  for (const char* text :
       {"WARNING cluster: 3 hosts checked in ",
        "slow: n3: device is 2 threads, most ranks have 1 threads",
        "WARNING cluster: going on with n3, which comm.check_cluster = \"strict\" leaves out"}) {
    EXPECT_NE(said.find(text), std::string::npos) << text << "\n" << said;
  }
  // On busy cores others may be slow as well.
  const std::string text = error<SystemError>("strict", {"n1", "n2", "n3"});
  EXPECT_TRUE(text.ends_with("n3 (comm.check_cluster)")) << text;
}

TEST_F(PreflightTest, AFolderThatNobodySharesIsTheUsersMistake) {
  all_apart = true;
  const std::string text = error<Error>("auto", {"n1", "n2", "n3"});
  EXPECT_NE(text.find("wanted a folder that all 3 hosts share"), std::string::npos) << text;
}

TEST(MeasureNetwork, TriesNoFurtherPartnerOnceTimeIsUp) {
  run_ranks(4, [&](World& world) {
    const auto backend = cpu::make_backend({.threads = 1});
    RankReport report;
    measure_network(world, world, *backend, 0.0, report);
    EXPECT_GT(report.ring_bytes_per_s, 0.0);
    EXPECT_EQ(report.pair_rank, -1);
    measure_network(world, world, *backend, 60.0, report);
    EXPECT_GE(report.pair_rank, 0);
  });
}

}  // namespace
}  // namespace tokamak::launch

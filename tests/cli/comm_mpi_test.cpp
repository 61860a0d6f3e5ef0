#include <mutex>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"

#include "tests/fixtures/comm_battery.h"
#include "tests/fixtures/program.h"

namespace tokamak {
namespace {

ProgramResult run_worker(int num_ranks, const std::vector<std::string>& words) {
  std::vector<std::string> argv{"mpirun",
                                "-n",
                                std::to_string(num_ranks),
                                "--allow-run-as-root",
                                "--oversubscribe",
                                "--bind-to",
                                "none",
                                TOK_WORKER};
  argv.insert(argv.end(), words.begin(), words.end());
  return run_program(argv);
}

std::string threads_battery(int num_ranks) {
  std::string all;
  run_ranks(num_ranks, [&](World& world) {
    const auto texts = world.all_gather_text(run_battery(world));
    if (world.rank() != 0) return;
    for (const std::string& text : texts) all += text;
  });
  return all;
}

TEST(MpiWorld, AgreesWithThreadsBitForBit) {
  for (const int num_ranks : {2, 5}) {
    const auto run = run_worker(num_ranks, {"battery"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, threads_battery(num_ranks));
    EXPECT_GT(run.out.size(), 1000U);
  }
}

struct Fault {
  std::vector<std::string> words;
  int exit_code;
  std::vector<std::string> says;  ///< texts on stderr
};

class MpiFault : public testing::TestWithParam<Fault> {};

TEST_P(MpiFault, EndsTheJob) {
  const auto run = run_worker(3, GetParam().words);
  EXPECT_EQ(run.exit_code, GetParam().exit_code) << run.err;
  for (const std::string& text : GetParam().says) {
    EXPECT_NE(run.err.find(text), std::string::npos) << text << " in\n" << run.err;
  }
}

// Codes as mpirun gives them.
INSTANTIATE_TEST_SUITE_P(
    Ranks, MpiFault,
    testing::Values(Fault{{"miss", "throw"}, 2, {"tokamak: rank 1 does not like its folder"}},
                    Fault{{"miss", "diverge"}, 3, {"tokamak: loss is NaN"}},
                    Fault{{"miss", "abort"}, 3, {"tokamak: rank 1 on ", ": stopped"}},
                    Fault{{"miss", "kill"}, 137, {"rank 1"}},
                    Fault{{"miss", "return"},
                          75,
                          {"rank 1 has come to its end", "in all_reduce 2 of \"tp\" (1 float32)"}},
                    Fault{{"miss", "hang"},
                          75,
                          {"waits for rank 1 in group \"tp\" for 1 s",
                           "left all_reduce 1 of \"tp\" (1 float32)"}},
                    Fault{{"differ"}, 75, {"ranks differ in group \"tp\": rank "}}),
    [](const auto& fault) {
      const auto& words = fault.param.words;
      return words.size() > 1 ? words[1] : words[0];
    });

}  // namespace
}  // namespace tokamak

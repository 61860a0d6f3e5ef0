#include "tokamak/comm/launch_environment.h"

#include <map>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect(const LaunchEnvironment& got, int rank, int world_size, int local_rank, int local_size,
            const std::string& source) {
  EXPECT_EQ(got.rank, rank);
  EXPECT_EQ(got.world_size, world_size);
  EXPECT_EQ(got.local_rank, local_rank);
  EXPECT_EQ(got.local_size, local_size);
  EXPECT_EQ(got.source, source);
  EXPECT_FALSE(got.host.empty());
}

TEST(LaunchEnvironment, KnowsEachLauncher) {
  expect(read({}), 0, 1, 0, 1, "none");
  expect(read({{"OMPI_COMM_WORLD_RANK", "5"},
               {"OMPI_COMM_WORLD_SIZE", "8"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
         5, 8, 1, 4, "Open MPI");
  const Variables slurm{{"SLURM_PROCID", "9"},          {"SLURM_NTASKS", "11"},
                        {"SLURM_STEP_NUM_TASKS", "11"}, {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "2"},          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};
  expect(read(slurm), 9, 11, 1, 3, "Slurm");
  expect(read({{"PMI_RANK", "1"},
               {"PMI_SIZE", "2"},
               {"MPI_LOCALRANKID", "1"},
               {"MPI_LOCALNRANKS", "2"}}),
         1, 2, 1, 2, "PMI");
}

TEST(LaunchEnvironment, MpirunInsideSlurmIsOpenMpi) {
  expect(read({{"SLURM_PROCID", "0"},
               {"SLURM_STEP_NUM_TASKS", "1"},
               {"OMPI_COMM_WORLD_RANK", "3"},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
         3, 4, 3, 4, "Open MPI");
}

TEST(LaunchEnvironment, BatchScriptIsNoRank) {
  expect(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}}), 0, 1, 0, 1,
         "none");
}

TEST(LaunchEnvironment, NamesWhatIsWrong) {
  EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_SIZE", "4"}}),
            "environment: OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not");
  EXPECT_EQ(error_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "x"}}),
            "environment variable PMI_RANK=\"x\": wanted a number");
  EXPECT_EQ(error_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "4"}}),
            "environment: PMI_RANK is 4 where PMI_SIZE is 4");
  EXPECT_NE(error_of({{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}})
                .find("torchrun started 2 processes"),
            std::string::npos);
  expect(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), 0, 1, 0, 1, "none");
}

}  // namespace
}  // namespace tokamak

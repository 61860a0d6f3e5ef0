#include "tokamak/comm/launch_environment.h"

#include <map>

#include <gtest/gtest.h>

#include "tokamak/comm/world.h"
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
}

TEST(LaunchEnvironment, SeesRanksThatDoNotMeet) {
  struct Case {
    Variables variables;
    std::string said;
  };

  const std::string two = " started 2 processes that MPI cannot connect";
  const Case cases[] = {
      {{{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}}, "torchrun" + two},
      {{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "a"}}, "Kubeflow or DeepSpeed)" + two},
      {{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"PET_NNODES", "2"}}, "Kubeflow" + two},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}}, "Kubeflow" + two},
      {{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"CROSS_SIZE", "1"}}, "DeepSpeed" + two},
      {{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"ACCELERATE_MIXED_PRECISION", "no"}},
       "accelerate" + two},
      {{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"RAY_JOB_ID", "01000000"}}, "Ray" + two},
      {{{"HOROVOD_SIZE", "2"}, {"HOROVOD_RANK", "0"}}, "Horovod" + two},
      {{{"SKYPILOT_NUM_NODES", "2"}, {"SKYPILOT_NODE_RANK", "0"}}, "SkyPilot" + two},
      {{{"DSTACK_NODES_NUM", "2"}, {"DSTACK_NODE_RANK", "1"}}, "dstack" + two},
      {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "0"}}, "Flux" + two},
      {{{"PALS_LOCAL_SIZE", "2"}, {"PALS_RANKID", "0"}}, "PALS" + two},
      {{{"PALS_LOCAL_SIZE", "1"}, {"PALS_RANKID", "1"}}, "PALS started process 1 of several"},
      {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "n"}}, "PMIx started process 1 of several"},
      {{{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}}, "Slurm started process 1 of several"},
  };
  for (const Case& c : cases) {
    const LaunchEnvironment got = read(c.variables);
    EXPECT_NE(got.why_unconnected.find(c.said), std::string::npos)
        << c.said << ": " << got.why_unconnected;
    EXPECT_EQ(got.world_size, 1) << c.said;
    EXPECT_THROW(make_world(got), Error) << c.said;
  }
}

TEST(LaunchEnvironment, OtherLaunchersOfMpi) {
  expect(read({{"MV2_COMM_WORLD_RANK", "3"},
               {"MV2_COMM_WORLD_SIZE", "4"},
               {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
               {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}}),
         3, 4, 1, 2, "MVAPICH");
  expect(read({{"JSM_NAMESPACE_RANK", "3"},
               {"JSM_NAMESPACE_SIZE", "4"},
               {"JSM_NAMESPACE_LOCAL_RANK", "1"},
               {"JSM_NAMESPACE_LOCAL_SIZE", "2"}}),
         3, 4, 1, 2, "jsrun");
}

TEST(LaunchEnvironment, OneProcessStaysOne) {
  const Variables alone[] = {
      {},
      {{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "localhost"}},
      {{"WORLD_SIZE", "2"}},
      {{"RANK", "1"}},
      {{"RANK", "high"}, {"WORLD_SIZE", "large"}},
      {{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "1"}, {"RANK", "0"}},
      {{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "0"}},
      // A shell in an allocation, and a batch script.
      {{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "2"}},
      {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}},
      {{"LSB_DJOB_NUMPROC", "8"}, {"LSB_MCPU_HOSTS", "a 4 b 4"}},
      {{"FLUX_URI", "local:///run/flux"}, {"FLUX_JOB_SIZE", "8"}},
      {{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "8"}},
      {{"JOB_COMPLETION_INDEX", "3"}},
      // mpi4py in a process by itself sets these for its children.
      {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "n"}},
  };
  for (const Variables& variables : alone) {
    const LaunchEnvironment got = read(variables);
    expect(got, 0, 1, 0, 1, "none");
    EXPECT_EQ(got.why_unconnected, "");
  }
  // mpirun has said that this is a rank by itself, as one of many trials.
  expect(
      read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_PROCID", "3"}}),
      0, 1, 0, 1, "Open MPI");
}

}  // namespace
}  // namespace tokamak

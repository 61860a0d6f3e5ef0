#include "tokamak/train/bench/machine_file.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

namespace tokamak {
namespace {

TEST(MachineFile, IsOfOneCpuAndOneNumberOfThreads) {
  setenv("TOKAMAK_CACHE", (testing::TempDir() + "/machine_file").c_str(), 1);
  MachineFile machine{.cpu = cpu_name(), .threads = 2, .gemm_flops_f32 = 1e11};
  save_machine_file(machine);
  const auto loaded = load_machine_file(2);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->gemm_flops(DType::kF32), 1e11);
  EXPECT_FALSE(load_machine_file(4));
  machine.cpu += " of another kind";
  const auto path = save_machine_file(machine);
  EXPECT_FALSE(load_machine_file(2));
  write_file_atomic(path, "{");
  EXPECT_FALSE(load_machine_file(2));
  std::filesystem::remove(path);
  unsetenv("TOKAMAK_CACHE");
}

TEST(MachineFile, HostsThatShareAHomeHaveOneEach) {
  setenv("TOKAMAK_CACHE", (testing::TempDir() + "/machine_files").c_str(), 1);
  MachineFile machine{.cpu = cpu_name(), .threads = 2, .gemm_flops_f32 = 1e11};
  const auto all = save_machine_file(machine);
  for (const char* const host : {"n1", "n2.cluster"}) {
    machine.gemm_flops_f32 += 1e11;
    const auto path = save_machine_file(machine, host);
    EXPECT_EQ(path.filename(), std::string("machine.") + host + ".json");
  }
  EXPECT_EQ(load_machine_file(2, "n1")->gemm_flops_f32, 2e11);
  EXPECT_EQ(load_machine_file(2, "n2.cluster")->gemm_flops_f32, 3e11);
  EXPECT_EQ(load_machine_file(2, "n3")->gemm_flops_f32, 1e11) << "no file of its own";
  EXPECT_FALSE(load_machine_file(4, "n1"));
  std::filesystem::remove_all(all.parent_path());
  unsetenv("TOKAMAK_CACHE");
}

}  // namespace
}  // namespace tokamak

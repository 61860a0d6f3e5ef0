#include "tokamak/price/task/calibrate.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak::price {
namespace {

constexpr size_t kFp32 = static_cast<size_t>(Precision::kFp32);

std::string written(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + "tokamak_" + name;
  std::ofstream(path) << text;
  return path;
}

const std::vector<TimedOp> kOps = {
    {.op = "matmul", .kind = Cost::Kind::kGemm, .flops = 6e12, .seconds = 0.01},
    {.op = "matmul", .kind = Cost::Kind::kGemm, .flops = 7e12, .seconds = 0.01},
    {.op = "attention", .kind = Cost::Kind::kAttention, .flops = 5e12, .seconds = 0.01},
    {.op = "attention_grad", .kind = Cost::Kind::kAttention, .flops = 4e12, .seconds = 0.01},
    {.op = "add", .kind = Cost::Kind::kMemory, .flops = 1e9, .bytes = 4e10, .seconds = 0.01}};

TEST(Calibrate, RefinesADeviceByItsOps) {
  const std::string path = written(
      "op.toml", device_toml("h100-published", "NVIDIA \"H100\"", 0.0, Precision::kBf16, kOps));
  const Machine m = load_machine("h100-published+" + path);
  const double derate = m.software.power_derate;
  EXPECT_NEAR(derate * m.device.gemm.efficiency[Precision::kBf16], 700.0 / 989.0, 1e-9);
  EXPECT_NEAR(m.device.gemm.sustained_efficiency, 650.0 / 989.0, 1e-9);
  EXPECT_NEAR(derate * m.device.attention_forward.efficiency, 500.0 / 989.0, 1e-9);
  EXPECT_NEAR(derate * m.device.attention_backward.efficiency, 400.0 / 989.0, 1e-9);
  EXPECT_EQ(m.device.memory.efficiency, 1.0) << "4 of 3.35 TB/s";
  EXPECT_DOUBLE_EQ(m.device.peak_flops[Precision::kBf16], 989e12);
  EXPECT_EQ(m.source_of("device.memory_efficiency"),
            "measured by tokamak bench op on NVIDIA  H100 ");
  EXPECT_THROW(device_toml("a100-80", "x", 0.0, Precision::kFp8, kOps), Error);
  EXPECT_THROW(device_toml("h200", "x", 0.0, Precision::kBf16, {}), Error);
}

TEST(Calibrate, PricesAProductAsItWasTimed) {
  const Machine base = load_machine("b200");
  ASSERT_LT(base.software.power_derate, 0.9);
  const auto seconds = [](const Machine& m) {
    return gemm_seconds(16384, 14336, 16384, 0.0, Precision::kBf16, m);
  };
  const TimedOp timed{.op = "linear",
                      .kind = Cost::Kind::kGemm,
                      .flops = 2.0 * 16384 * 14336 * 16384,
                      .seconds = 1.1 * seconds(base)};
  const std::string path =
      written("derated.toml", device_toml("b200", "a B200", 0.0, Precision::kBf16, {&timed, 1}));
  EXPECT_NEAR(seconds(load_machine("b200+" + path)) / timed.seconds, 1.0, 0.05)
      << "but for the ends of its tiles";
}

// Ops that last have warmed the device: they do not tell what its file says of cold clocks.
TEST(Calibrate, KeepsColdRates) {
  const std::string path =
      written("warm.toml", device_toml("h200", "NVIDIA H200", 0.0, Precision::kBf16, kOps));
  const Machine base = load_machine("h200");
  const Machine m = load_machine("h200+" + path);
  EXPECT_EQ(m.device.gemm.efficiency, base.device.gemm.efficiency);
  EXPECT_EQ(m.device.attention_forward.efficiency, base.device.attention_forward.efficiency);
  EXPECT_EQ(m.device.attention_backward.efficiency, base.device.attention_backward.efficiency);
  EXPECT_NEAR(m.device.gemm.sustained_efficiency, 650.0 / 989.0, 1e-9);
  EXPECT_NEAR(m.device.memory.efficiency, 4.0 / 4.8, 1e-9);
}

TEST(Calibrate, MakesAMachineOfItsOwn) {
  const std::string op =
      written("cpu.toml", device_toml("", "some CPU", 8e9, Precision::kFp32, kOps));
  std::vector<TimedCollective> timed;
  for (const double bytes : {1e3, 1e5, 1e7}) {
    timed.push_back({.bytes = bytes, .seconds = 2e-5 + bytes / 2e9});
  }
  const std::string fabric = fabric_toml("", 4, timed);
  EXPECT_EQ(fabric.rfind("# Read by tokamak price --cluster DEVICE+THIS.toml\n", 0), 0U) << fabric;
  const std::string comm = written("comm.toml", fabric);
  const Machine m = load_machine(op + "+" + comm);
  EXPECT_EQ(m.device.name, "some CPU");
  EXPECT_DOUBLE_EQ(m.device.peak_flops[kFp32], 7e14);
  EXPECT_DOUBLE_EQ(m.device.gemm.efficiency[kFp32], 1.0);
  EXPECT_DOUBLE_EQ(m.device.memory.bytes, 8e9);
  const GroupLayout all = strided_layout(4, 1, m);
  for (const TimedCollective& t : timed) {
    EXPECT_NEAR(collective_seconds(t.kind, t.bytes, all, m) / t.seconds, 1.0, 0.05);
  }
  EXPECT_THROW(device_toml("", "x", 8e9, Precision::kFp32, {kOps.data(), 2}), Error);
  EXPECT_THROW(fabric_toml("", 4, {}), Error);
}

TEST(Calibrate, FindsTheNumbersThatMadeTheTimes) {
  Machine truth = load_machine("h200");
  set_number(truth, "nvlink.efficiency=0.7");
  set_number(truth, "nvlink.base_s=20 us");
  set_number(truth, "nvlink.sqrt_s=9 us/sqrt(MiB)");
  set_number(truth, "nvlink.switch_reduce_bytes_per_s=240 GB/s");
  std::vector<TimedCollective> timed;
  for (const Collective kind : {Collective::kAllGather, Collective::kAllReduce}) {
    for (double bytes = 1 << 20; bytes < 5e9; bytes *= 4) {
      timed.push_back(
          {.kind = kind,
           .bytes = bytes,
           .seconds = collective_seconds(kind, bytes, strided_layout(8, 1, truth), truth)});
    }
  }
  Machine m = load_machine("h200");
  EXPECT_LT(fit_level(m, 0, 8, timed), 0.01);
  EXPECT_NEAR(m.levels[0].efficiency, 0.7, 0.014);
  EXPECT_NEAR(m.levels[0].switch_reduce_bytes_per_s, 240e9, 5e9);
  const std::string path = written("fabric.toml", fabric_toml("h200", 8, timed));
  const Machine refined = load_machine("h200+" + path);
  EXPECT_NEAR(refined.levels[0].efficiency, m.levels[0].efficiency, 1e-9);
  EXPECT_EQ(refined.levels[1].bytes_per_s, 50e9);
}

}  // namespace
}  // namespace tokamak::price

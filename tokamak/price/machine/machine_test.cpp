#include "tokamak/price/machine/machine.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak::price {
namespace {

constexpr size_t kBf16 = static_cast<size_t>(Precision::kBf16);

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { static_cast<void>(parse_machine(text, "my.toml")); });
}

std::string set_error(const std::string& assignment) {
  Machine m = load_machine("h100");
  return error_of([&] { set_number(m, assignment); });
}

TEST(Precision, HasNames) {
  EXPECT_EQ(name_of(Precision::kBf16), "bf16");
  EXPECT_EQ(name_of(Precision::kFp4), "fp4");
}

TEST(Machine, ItsNameMayBeWrittenInCapitals) {
  EXPECT_EQ(load_machine("H100").describe(), load_machine("h100").describe());
  EXPECT_EQ(load_machine("GB200").name, "gb200");
}

TEST(Machine, EveryBuiltInOneLoadsAndPrintsWhatSetNumberReads) {
  ASSERT_GE(machine_names().size(), 12U);
  for (const std::string& name : machine_names()) {
    const Machine m = load_machine(name);
    EXPECT_EQ(m.name, name);
    EXPECT_FALSE(m.about.empty()) << name;
    EXPECT_FALSE(m.device.name.empty()) << name;
    EXPECT_EQ(m.levels.back().num_devices, 0) << name << ": connects any number";
    Machine again = m;
    std::istringstream lines(m.describe());
    std::string line;
    size_t num_lines = 0;
    while (std::getline(lines, line)) {
      const size_t source = line.find("  (");
      ASSERT_NE(source, std::string::npos) << line;
      EXPECT_LT(source + 4, line.size()) << line << ": no source";
      set_number(again, line.substr(0, source));
      ++num_lines;
    }
    EXPECT_EQ(num_lines, machine_keys(m).size());
    for (const std::string& key : machine_keys(m)) {
      EXPECT_NEAR(get_number(again, key), get_number(m, key), 1e-9 * get_number(m, key)) << key;
    }
  }
}

TEST(Machine, HasTheDataSheetsNumbers) {
  const Machine h100 = load_machine("h100");
  EXPECT_DOUBLE_EQ(h100.device.peak_flops[kBf16], 989e12);
  EXPECT_DOUBLE_EQ(h100.device.memory.bytes_per_s, 3.35e12);
  EXPECT_EQ(h100.device.num_sms, 132);
  ASSERT_EQ(h100.levels.size(), 2U);
  EXPECT_EQ(h100.levels[0].name, "nvlink");
  EXPECT_EQ(h100.levels[0].num_devices, 8);
  EXPECT_DOUBLE_EQ(h100.levels[1].bytes_per_s, 50e9);
  EXPECT_EQ(load_machine("gb200").levels[0].num_devices, 72);
  EXPECT_DOUBLE_EQ(load_machine("mi355x").levels[0].pair_bytes_per_s, 76.5e9);
  EXPECT_EQ(load_machine("mi250x").levels.size(), 3U);
}

// NVFP4 of GB300 is fitted on GB300 alone: it is faster than GB200's by more than its peak is.
TEST(Machine, Gb300HasARateOfItsOwnInFp4) {
  const auto fp4 = [](const char* name) {
    const Device device = load_machine(name).device;
    return device.peak_flops[Precision::kFp4] * device.gemm.efficiency[Precision::kFp4];
  };
  EXPECT_GT(fp4("gb300"), 1.5 * fp4("gb200"));
  EXPECT_EQ(load_machine("gb300").source_of("device.gemm_efficiency_fp4"),
            "fitted on GB300 runs of at most 64 GPUs");
}

TEST(Machine, SaysWhereNoMeasuredRunBearsItOut) {
  EXPECT_EQ(
      unverified_text(load_machine("mi300x")),
      "unverified: no price on AMD MI300X 192 GB has been within 15 % of a measured run (none "
      "that states its step is known)");
  EXPECT_NE(unverified_text(load_machine("frontier+torchtitan")).find("30 to 66 % slower"),
            std::string::npos);
  for (const char* name : {"a100-40", "a100-80", "b200", "gb200", "gb300", "h100", "h100-published",
                           "h100-96", "h200", "mi350x", "mi355x"})
    EXPECT_EQ(unverified_text(load_machine(name)), "") << name;
  for (const std::string& name : machine_names()) {
    const Machine machine = load_machine(name);
    if (machine.device.verified_devices == 0) continue;
    EXPECT_GT(machine.source_of("device.verified_devices").size(), 20U) << name;
  }
}

constexpr std::string_view kMine = R"(
name = "mine"
about = "two levels of our own"
base = "h100-sxm"
levels = ["board", "pod", "hall"]
[board]
num_devices = { value = 4, source = "counted" }
bytes_per_s = { value = 300, unit = "GB/s", source = "measured" }
[pod]
num_devices = { value = 32, source = "counted" }
bytes_per_s = { value = 0.05, unit = "TB/s", source = "measured" }
latency_s = { value = 5, unit = "us", source = "measured" }
[hall]
num_devices = { value = 0, source = "any" }
bytes_per_s = { value = 12.5e9, unit = "B/s", source = "measured" }
[device]
memory_bytes = { value = 79, unit = "GiB", source = "measured" }
)";

TEST(Machine, AJobTakesAsManyNodesOfEveryRack) {
  const auto rack = [](const Machine& machine, int64_t num_devices) {
    return with_equal_domains(machine, num_devices).levels[0].num_devices;
  };
  const Machine gb200 = load_machine("gb200");
  EXPECT_EQ(rack(gb200, 72), 72);
  EXPECT_EQ(rack(gb200, 128), 64);
  EXPECT_EQ(rack(gb200, 16384), 64);
  EXPECT_EQ(rack(gb200, 144), 72);
  EXPECT_EQ(rack(gb200, 80), 40);
  EXPECT_EQ(rack(gb200, 76), 72) << "19 nodes: no rack for each";
  EXPECT_EQ(rack(gb200, 130), 72) << "no whole nodes";
  EXPECT_EQ(rack(load_machine("h100"), 12), 8) << "a node is not cut";
  Machine nodes_of_16 = gb200;
  nodes_of_16.storage.devices_per_node = 16;
  EXPECT_EQ(rack(nodes_of_16, 144), 72) << "two racks, filled";
  EXPECT_EQ(rack(nodes_of_16, 128), 72) << "no rack has whole nodes";
  EXPECT_EQ(taken_text(gb200), "");
  EXPECT_EQ(taken_text(with_equal_domains(gb200, 128)),
            "64 devices of each nvlink domain of 72, as sbatch --segment=16 takes them; --set "
            "nvlink.num_devices=72 fills one after the other");
  Machine said = gb200;
  set_number(said, "nvlink.num_devices=72");
  EXPECT_EQ(rack(said, 128), 72);

  Machine rows = gb200;  // of eight racks each
  rows.levels.insert(rows.levels.begin() + 1, Level{.name = "row", .num_devices = 576});
  EXPECT_EQ(with_equal_domains(rows, 2048).levels[1].num_devices, 512);
  rows.levels.pop_back();
  EXPECT_EQ(rack(rows, 512), 64);
  EXPECT_EQ(rack(rows, 560), 72) << "ten racks of 56, where there are eight";
}

TEST(MachineFile, OverridesItsBaseAndDefinesLevels) {
  const Machine m = parse_machine(kMine, "mine.toml");
  EXPECT_EQ(m.name, "mine");
  EXPECT_DOUBLE_EQ(m.device.peak_flops[kBf16], 989e12);
  EXPECT_DOUBLE_EQ(m.device.memory.bytes, 79.0 * 1024 * 1024 * 1024);
  ASSERT_EQ(m.levels.size(), 3U);
  EXPECT_EQ(m.levels[1].name, "pod");
  EXPECT_DOUBLE_EQ(m.levels[1].bytes_per_s, 50e9);
  EXPECT_DOUBLE_EQ(m.levels[1].latency_s, 5e-6);
  EXPECT_DOUBLE_EQ(m.levels[2].bytes_per_s, 12.5e9);
  EXPECT_EQ(m.source_of("pod.latency_s"), "measured");
  EXPECT_EQ(m.source_of("pod.base_s"), "default");
}

TEST(MachineFile, NamesAFileAsItsBaseAndIsJoinedByPlus) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "tokamak_machines";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "base.toml") << kMine;
  std::ofstream(folder / "top.toml")
      << "base = \"base.toml\"\n"
         "hall.bytes_per_s = { value = 25, unit = \"GB/s\", source = \"new cards\" }\n";
  std::ofstream(folder / "calibration.toml")
      << "device.memory_efficiency = { value = 0.91, source = \"measured\" }\n";
  const std::string top = (folder / "top.toml").string();
  EXPECT_DOUBLE_EQ(load_machine(top).levels[2].bytes_per_s, 25e9);
  const Machine joined = load_machine("h200+" + (folder / "calibration.toml").string());
  EXPECT_EQ(joined.name, "h200+calibration");
  EXPECT_DOUBLE_EQ(joined.device.memory.efficiency, 0.91);
  std::ofstream(folder / "a+b.toml") << kMine;
  EXPECT_EQ(load_machine((folder / "a+b.toml").string()).name, "mine");
  std::ofstream(folder / "loop.toml") << "base = \"loop.toml\"\n";
  EXPECT_NE(error_of([&] { load_machine((folder / "loop.toml").string()); }).find("each other's"),
            std::string::npos);
}

TEST(MachineFile, OfTheDocumentationIsRead) {
  const std::string page = read_file(std::filesystem::path(TOK_SOURCE_DIR) / "docs/pricing.md");
  const std::string fence = "```toml\n";
  const size_t begin = page.find(fence) + fence.size();
  const Machine m = parse_machine(page.substr(begin, page.find("```", begin) - begin), "page");
  EXPECT_EQ(m.name, "lab");
  ASSERT_EQ(m.levels.size(), 3U);
  EXPECT_EQ(m.levels[1].num_devices, 32);
  EXPECT_DOUBLE_EQ(get_number(m, "device.tile_256x256"), 0.98);
}

TEST(MachineFile, RefusesInOneClearLine) {
  const auto number = [](const std::string& key, const std::string& table) {
    return parse_error("base = \"h100\"\n" + key + " = " + table + "\n");
  };
  EXPECT_EQ(
      number("device.memory_bytes", R"({ value = 80, source = "s" })"),
      "my.toml:2: device.memory_bytes: no unit: wanted one of B, kB, KiB, MB, MiB, GB, GiB, TB");
  EXPECT_EQ(number("network.bytes_per_s", R"({ value = 80, unit = "Gb/s", source = "s" })"),
            "my.toml:2: network.bytes_per_s: unit \"Gb/s\": wanted one of B/s, MB/s, GB/s, TB/s");
  EXPECT_EQ(number("network.bytes_per_s", R"({ value = -80, unit = "GB/s", source = "s" })"),
            "my.toml:2: network.bytes_per_s: wanted 1 B/s to 1000 TB/s, got -80 GB/s");
  EXPECT_EQ(number("network.bytes_per_s", R"({ value = nan, unit = "GB/s", source = "s" })"),
            "my.toml:2: network.bytes_per_s: wanted 1 B/s to 1000 TB/s, got nan B/s");
  EXPECT_EQ(number("network.bytes_per_s", R"({ value = 1e40, unit = "GB/s", source = "s" })"),
            "my.toml:2: network.bytes_per_s: wanted 1 B/s to 1000 TB/s, got 1e+37 TB/s");
  EXPECT_EQ(number("network.efficiency", R"({ value = 1.2, source = "s" })"),
            "my.toml:2: network.efficiency: wanted 1e-06 to 1, got 1.2");
  EXPECT_EQ(number("device.num_sms", R"({ value = 13.5, source = "s" })"),
            "my.toml:2: device.num_sms: wanted a whole number, got 13.5");
  EXPECT_EQ(number("device.memory_byte", R"({ value = 80, unit = "GB", source = "s" })"),
            "my.toml:2: unknown key device.memory_byte; the nearest is device.memory_bytes");
  EXPECT_EQ(number("infiniband.bytes_per_s", R"({ value = 80, unit = "GB/s", source = "s" })"),
            "my.toml:2: unknown key infiniband.bytes_per_s; the nearest is nvlink.bytes_per_s");
  EXPECT_EQ(number("device.memory_bytes", R"({ value = 80, unit = "GB" })"),
            "my.toml:2: device.memory_bytes: no source: say where the number is from");
  EXPECT_EQ(number("device.memory_bytes", R"({ unit = "GB", source = "s" })"),
            "my.toml:2: device.memory_bytes: no value");
  EXPECT_EQ(number("device.memory_bytes", R"({ value = "80", unit = "GB", source = "s" })"),
            "my.toml:2: device.memory_bytes: wanted a number as its value, got the string \"80\"");
  EXPECT_EQ(number("device.memory_bytes", "80"),
            "my.toml:2: device.memory_bytes: wanted a known text (name, about, base, levels, "
            "device.name) or a "
            "number as { value = 1, unit = \"s\", source = \"...\" }");
  EXPECT_EQ(number("nvlink.num_devices", R"({ value = 0, source = "s" })"),
            "h100: nvlink.num_devices is 0, any number: only the outermost level may be so");
  EXPECT_EQ(parse_error(R"(base = ["h100-sxm", "frontier-node"]
xgmi.num_devices = { value = 7, source = "s" })"),
            "my.toml: xgmi.num_devices: wanted a multiple of 2, the devices of a domain inside it, "
            "and more than that, got 7");
  EXPECT_EQ(number("nvlink.num_devices", R"({ value = 1, source = "s" })"),
            "h100: nvlink.num_devices: wanted 2 or more (a level of one device is to be left out), "
            "got 1");
  EXPECT_EQ(
      parse_error("base = \"h100\"\nlevels = [\"De vice\"]"),
      "my.toml:2: levels: \"De vice\": wanted a name of small letters, digits, _ and - that is "
      "no section");
  EXPECT_EQ(parse_error("base = \"h100\"\nlevels = [\"spine\"]"),
            "h100: network.num_devices is 0, any number: only the outermost level may be so");
  EXPECT_EQ(parse_error("base = \"h100-sxm\"\nlevels = [\"spine\"]"),
            "my.toml: spine.bytes_per_s is missing");
  EXPECT_EQ(parse_error("name = \"x\""), "x: no device: device.peak_flops_bf16 is missing");
  const auto h100_with = [&](const std::string& assignment) {
    Machine m = load_machine("h100");
    set_number(m, assignment);
    return error_of([&] { validate(m); });
  };
  EXPECT_EQ(h100_with("device.gemm_efficiency_bf16=0"),
            "h100: device.gemm_efficiency_bf16 is missing or 0");
  EXPECT_EQ(h100_with("device.attention_forward_efficiency=0"),
            "h100: device.attention_forward_efficiency is missing or 0");
  EXPECT_EQ(h100_with("device.attention_backward_efficiency=0"),
            "h100: device.attention_backward_efficiency is missing or 0");
  const std::string bare = R"([device]
peak_flops_bf16 = { value = 1, unit = "PFLOP/s", source = "s" }
gemm_efficiency_bf16 = { value = 0.8, source = "s" }
memory_bytes = { value = 80, unit = "GiB", source = "s" }
memory_bytes_per_s = { value = 2, unit = "TB/s", source = "s" })";
  EXPECT_EQ(parse_error(bare), "my.toml: device.tile_128x128, or of another size, is missing");
  EXPECT_EQ(parse_error("name = 3"), "my.toml:1: name: wanted a text, got the integer 3");
  EXPECT_EQ(parse_error("base = \"../other.toml\""),
            "my.toml:1: base: \"../other.toml\": wanted the name of a built-in machine or part");
  EXPECT_EQ(parse_error("[device").substr(0, 27), "my.toml:1: not valid TOML: ");
}

TEST(MachineFile, NamesTheNearestMachine) {
  const std::string error = error_of([] { load_machine("h1000"); });
  EXPECT_EQ(error,
            "no machine \"h1000\"; the nearest is h100; `tokamak price --cluster list` prints all, "
            "and a file is NAME.toml");
  EXPECT_NE(error_of([] {
              load_machine("h100+infiband-ndr");
            }).find("no machine \"infiband-ndr\"; the nearest is infiniband-ndr; "),
            std::string::npos);
  EXPECT_NE(error_of([] { load_machine("no_such.toml"); }).find("no_such.toml"), std::string::npos);
  EXPECT_NE(error_of([] { load_machine(""); }).find("no machine \"\""), std::string::npos);
}

TEST(SetNumber, ReadsUnitsAndRefusesTheRest) {
  Machine m = load_machine("h100");
  set_number(m, "device.memory_bytes_per_s=4.0 TB/s");
  EXPECT_DOUBLE_EQ(m.device.memory.bytes_per_s, 4e12);
  EXPECT_EQ(m.source_of("device.memory_bytes_per_s"), "--set");
  set_number(m, " nvlink.efficiency = 85 % ");
  EXPECT_DOUBLE_EQ(m.levels[0].efficiency, 0.85);
  set_number(m, "nvlink.num_devices=4");
  EXPECT_EQ(m.levels[0].num_devices, 4);
  set_number(m, "failures.per_device_s=1 1/year");
  EXPECT_DOUBLE_EQ(m.failures.per_device_s, 1.0 / (365 * 86400.0));
  set_number(m, "device.tile_256x256=0.9");
  EXPECT_DOUBLE_EQ(get_number(m, "device.tile_256x256"), 0.9);
  EXPECT_EQ(m.device.gemm.tiles.back().n, 256);

  EXPECT_EQ(set_error("nvlink.bytes_per_s=400e9"),
            "--set nvlink.bytes_per_s=400e9: no unit: wanted one of B/s, MB/s, GB/s, TB/s");
  EXPECT_EQ(set_error("nvlink.bytes_per_s=400 GB"),
            "--set nvlink.bytes_per_s=400 GB: unit \"GB\": wanted one of B/s, MB/s, GB/s, TB/s");
  EXPECT_EQ(set_error("nvlink.bytes_per_s"), "--set nvlink.bytes_per_s: wanted KEY=NUMBER UNIT");
  EXPECT_EQ(set_error("nvlink.bytes_per_s=fast"),
            "--set nvlink.bytes_per_s=fast: wanted a number and its unit");
  EXPECT_EQ(set_error("nvlnk.efficiency=0.5"),
            "--set nvlnk.efficiency=0.5: unknown key nvlnk.efficiency; the nearest is "
            "nvlink.efficiency");
  EXPECT_EQ(set_error("nvlink.efficiency=0"),
            "--set nvlink.efficiency=0: nvlink.efficiency: wanted 1e-06 to 1, got 0");
  EXPECT_EQ(set_error("nvlink.pair_bytes_per_s=1e-300 B/s"),
            "--set nvlink.pair_bytes_per_s=1e-300 B/s: nvlink.pair_bytes_per_s: wanted 0 or 1 B/s "
            "to 1000 TB/s, got 1e-300 B/s");
  EXPECT_NE(set_error("device.gemm_efficiency_bf16=1e-300").find("wanted 0 or 1e-06 to 1"),
            std::string::npos);
  EXPECT_EQ(set_error("nvlink.latency_s=1 h"),
            "--set nvlink.latency_s=1 h: nvlink.latency_s: wanted 0 ns to 10 s, got 3600 s");
}

TEST(PlanningRates, AreTheDefaultsForHopper) {
  for (const char* name : {"h100", "h200", "h100-96", "h100-published"}) {
    const Rates rates = planning_rates(load_machine(name));
    EXPECT_EQ(rates.flops, Rates{}.flops) << name;
    EXPECT_EQ(rates.best.bytes_per_s, Rates{}.best.bytes_per_s) << name;
  }
}

TEST(PlanningRates, AreThoseOfTheFileForOthers) {
  const Rates rates = planning_rates(load_machine("frontier"));
  EXPECT_NEAR(rates.best.gemm_flops_bf16, 0.767 * 191.5e12, 1e6);
  EXPECT_LE(rates.flops, rates.best.gemm_flops_bf16);
  EXPECT_NEAR(rates.bytes_per_s, 0.8 * 1.6e12, 1.0);
  EXPECT_NEAR(rates.link_bytes_per_s, 0.745 * 75e9, 1.0) << "of all devices of a host";
  EXPECT_NEAR(rates.network_bytes_per_s, 0.8 * 12.5e9, 1.0);
  EXPECT_EQ(rates.num_sms, 110);
}

TEST(PlanningRates, AreOfMatmulsInFp32WhereThereAreNoOthers) {
  Machine machine = load_machine("b200");
  machine.device.peak_flops[Precision::kBf16] = 0.0;
  machine.levels.clear();
  EXPECT_GT(planning_rates(machine).flops, 0.0);
}

}  // namespace
}  // namespace tokamak::price

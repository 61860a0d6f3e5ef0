// `tokamak plan --cluster` on meshes, numbers and machine files that cannot be: one line each,
// which names what was wrong.
#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/program.h"

namespace tokamak {
namespace {

using Words = std::vector<std::string>;

struct Case {
  Words words;
  Words parts;  // of the line
};

void expect_one_line(const Case& c, const std::filesystem::path& folder = ".") {
  Words all{TOK_PROGRAM, "plan", "--training.dataset=synthetic", "--training.seq_len=4096",
            "--model.flavor=8B"};
  all.insert(all.end(), c.words.begin(), c.words.end());
  const auto result = run_program(all, folder);
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : c.parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << part << ": " << result.err;
}

Words on_h100(const std::string& gpus, Words words) {
  words.insert(words.begin(), {"--cluster=h100", "--gpus=" + gpus});
  return words;
}

TEST(PriceBadInput, ImpossibleMeshes) {
  const std::string p = "--parallelism.";
  for (const Case& c : {
           Case{on_h100("8", {p + "pipeline_parallel_degree=16"}),
                {"pipeline_parallel_degree 16", "8 ranks"}},
           Case{on_h100("24", {p + "tensor_parallel_degree=16"}),
                {"tensor_parallel_degree 16", "24 ranks"}},
           Case{on_h100("64", {p + "tensor_parallel_degree=64"}), {"32 attention heads"}},
           Case{on_h100("64", {p + "pipeline_parallel_degree=64"}), {"64 stages", "32"}},
           Case{on_h100("8", {p + "context_parallel_degree=0"}), {"context_parallel_degree", "0"}},
           Case{on_h100("8", {p + "pipeline_parallel_degree=2",
                              p + "pipeline_parallel_schedule=NoSuch"}),
                {"pipeline_parallel_schedule", "1F1B", "NoSuch"}},
           Case{on_h100("8", {"--training.global_batch_size=7"}), {"global_batch_size", "got 7"}},
           Case{on_h100("8", {"--training.local_batch_size=-1"}), {"local_batch_size", "got -1"}},
       })
    expect_one_line(c);
}

TEST(PriceBadInput, AbsurdNumbers) {
  for (const char* gpus : {"-1", "0", "1e9", "1000000000", "99999999999999999999", "nan", ""})
    expect_one_line({{"--cluster=h100", std::string("--gpus=") + gpus}, {"--gpus"}});
  for (const char* tokens : {"-1", "0", "nan", "inf", "1e999", "many"})
    expect_one_line({on_h100("8", {"--tokens", tokens}), {"--tokens", tokens}});
  for (const char* set :
       {"nvlink.bytes_per_s=450", "nvlink.bytes_per_s=nan GB/s", "nvlink.bytes_per_s=-1 GB/s",
        "nvlink.bytes_per_s=1e400 GB/s", "nvlink.bytes_per_s=1 furlong", "nvlink.bytes_per_s=1 us",
        "nvlink.efficiency=1.5", "nvlink.efficiency", "device.num_sms=0", "device.num_sms=1.5",
        "device.launch_s=-1 us", "nvlink.speed=1", "=5"})
    expect_one_line({on_h100("8", {"--set", set}), {"--set", set}});
  for (const char* sweep : {"nvlink.bytes_per_s=1GB/s,-5GB/s", "nvlink.nothing=1,2", "gpus=8,0"})
    expect_one_line({on_h100("8", {"--sweep", sweep}), {}});
}

TEST(PriceBadInput, MachineFiles) {
  const std::string head = "name = 'x'\nbase = 'h100-sxm'\nlevels = ['n']\n[n]\n";
  const std::string size = "num_devices = { value = 0, source = 's' }\n";
  const std::vector<std::pair<std::string, Words>> files = {
      {head + size + "bytes_per_s = 450\n", {"x.toml:6", "n.bytes_per_s", "{ value"}},
      {head + size + "bytes_per_s = { value = 450, source = 's' }\n", {"x.toml:6", "no unit"}},
      {head + size + "bytes_per_s = { value = 450, unit = 'GB/s' }\n", {"x.toml:6", "source"}},
      {head + size + "bytes_per_s = { value = -450, unit = 'GB/s', source = 's' }\n",
       {"x.toml:6", "-450"}},
      {head + size + "bytes_per_s = { value = 450, unit = 'GB/h', source = 's' }\n",
       {"x.toml:6", "GB/h"}},
      {head + size + "bandwidth = { value = 450, unit = 'GB/s', source = 's' }\n",
       {"x.toml:6", "n.bandwidth"}},
      {head + size, {"n.bytes_per_s"}},
      {"base = 'x.toml'\n", {"x.toml", "base"}},
      {"base = 'h1000'\n", {"h1000"}},
      {"name = \xff\n", {"x.toml:1", "TOML"}},
      {"[device\n", {"x.toml:1", "TOML"}},
  };
  const ScratchFolder folder;
  for (const auto& [text, parts] : files) {
    write_file_atomic(folder.path() / "x.toml", text);
    SCOPED_TRACE(text);
    expect_one_line({{"--cluster=x.toml", "--gpus=8"}, parts}, folder.path());
  }
  for (const char* name : {"no.toml", "/", "h100+", "h100-sxm", "hgx-h100"})
    expect_one_line({{std::string("--cluster=") + name, "--gpus=8"}, {}}, folder.path());
}

TEST(PriceBadInput, PlacesThatCannotBeWritten) {
  for (const char* option : {"--trace", "--html"})
    expect_one_line({on_h100("8", {option, "no/such/folder/x"}), {"no/such/folder/x"}});
}

}  // namespace
}  // namespace tokamak

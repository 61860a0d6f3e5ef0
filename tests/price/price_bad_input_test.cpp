// `tokamak price` on meshes, numbers and machine files that cannot be: one line each,
// which names what was wrong.
#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/price_program.h"

namespace tokamak {
namespace {

struct Case {
  Words words;
  Words parts;  // of the line
};

void expect_one_line(const Case& c, const std::filesystem::path& folder = ".") {
  const auto result = run_priced("plan", "8B", 4096, c.words, folder);
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
           Case{on_h100("1", {"--training.local_batch_size=1",
                              "--training.global_batch_size=2147483648"}),
                {"training.global_batch_size = 2147483648", "at most 65536 microbatches"}},
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
  for (const char* set :
       {"nvlink.num_devices=0", "network.num_devices=12", "device.reserve_bytes=100 GB",
        "device.memory_bytes=1 GB", "storage.write_bytes_per_s=0 GB/s",
        "device.to_host_bytes_per_s=0 GB/s", "nvlink.bytes_per_s=450 Gb/s",
        "nvlink.bytes_per_s=1e300 GB/s", "nvlink.bytes_per_s=inf GB/s", "nvlink.bytes_per_s=",
        "software.compute_slowdown=0.5", "network.oversubscription=0", "xgmi.bytes_per_s=1 GB/s"})
    expect_one_line({on_h100("8", {"--set", set}), {std::string(set).substr(0, 6)}});
  for (const char* batch : {"100000", "9223372036854775807"})
    expect_one_line({on_h100("8", {std::string("--training.local_batch_size=") + batch}),
                     {"training.local_batch_size", batch}});
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
      {"base = 'h100-sxm'\nlevels = ['n', 'n']\n[n]\n" + size, {"x.toml:2", "\"n\"", "twice"}},
      {"base = 'h100'\n[nvlink]\nbytes_per_s = { value = nan, unit = 'GB/s', source = 's' }\n",
       {"x.toml:3", "nvlink.bytes_per_s", "nan"}},
      {"base = 'h100'\n[nvlnk]\nbytes_per_s = { value = 1, unit = 'GB/s', source = 's' }\n",
       {"x.toml:3", "nvlnk.bytes_per_s", "nvlink.bytes_per_s"}},
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

TEST(PriceBadInput, AFabricThatEnds) {
  const ScratchFolder folder;
  write_file_atomic(folder.path() / "x.toml",
                    "name = 'x'\nbase = 'h100-sxm'\nlevels = ['n']\n[n]\n"
                    "num_devices = { value = 8, source = 's' }\n"
                    "bytes_per_s = { value = 450, unit = 'GB/s', source = 's' }\n");
  for (const Words& more : {Words{}, Words{"--search"}}) {
    Words words{"--cluster=x.toml", "--gpus=16"};
    words.insert(words.end(), more.begin(), more.end());
    expect_one_line({words, {"--gpus 16", "connects 8", "n.num_devices"}}, folder.path());
  }
}

TEST(PriceBadInput, OptionsThatDoNotGoTogether) {
  for (const Case& c : {
           Case{{"--gpus=16"}, {"--gpus", "twice"}},
           Case{{"--cluster=h200"}, {"--cluster", "twice"}},
           Case{{"--tokens="}, {"--tokens", "value"}},
           Case{{"--print"}, {"--print", "--cluster"}},
           Case{{"--why"}, {"--why", "--cluster"}},
           Case{{"--world-size=4"}, {"--world-size", "--gpus"}},
           Case{{"--csv", "x.csv"}, {"--csv", "--sweep"}},
           Case{{"--sweep=gpus=8,16", "--write=x.toml"}, {"--write", "--sweep"}},
           Case{{"--sweep=gpus=8,16", "--sweep=gpus=32"}, {"--sweep", "twice"}},
           Case{{"--sweep=nvlink.bytes_per_s=1GB/s,-5GB/s"}, {"--sweep", "-5GB/s"}},
           Case{{"--html=x.out", "--trace=./x.out"}, {"--html x.out", "--trace", "too"}},
           Case{{"--sweep=gpus=8,16", "--parallelism.data_parallel_shard_degree=8"},
                {"data_parallel_shard_degree=8", "--sweep gpus="}},
           Case{{"--sweep=gpus=8,16", "--sweep=parallelism.data_parallel_shard_degree=2,4"},
                {"data_parallel_shard_degree", "--sweep gpus="}},
           Case{{"--sweep=training.seq_len=8192", "--sweep=training.seq-len=4096"},
                {"training.seq-len", "twice"}},
           Case{{"--numbers", "--html=x.html"}, {"--html", "--numbers"}},
           Case{{"--search", "--csv=x.csv"}, {"--csv", "--search"}},
           Case{{"--search", "--sweep=gpus=8,16"}, {"--sweep", "--search"}},
           Case{{"--search", "--tokens=1e12"}, {"--tokens", "--search"}},
           Case{{"--search", "--all-ranks"}, {"--all-ranks", "--search"}},
       })
    expect_one_line({on_h100("8", c.words), c.parts});
}

TEST(PriceBadInput, PlacesThatCannotBeWritten) {
  const ScratchFolder folder;
  make_folders(folder.path() / "sub");
  for (const char* option : {"--trace", "--html", "--write"}) {
    for (const char* place : {"no/such/folder/x", "sub", "/dev/null"})
      expect_one_line({on_h100("8", {option, place}), {place}}, folder.path());
  }
  // Before a search has taken its time, and before any other file is written.
  expect_one_line({on_h100("8", {"--search", "--write", "no/x.toml"}), {"no/x.toml"}});
  expect_one_line({on_h100("8", {"--trace=a.json", "--html=no/x"}), {"no/x"}}, folder.path());
  EXPECT_EQ(list_folder(folder.path()).size(), 1U);
}

}  // namespace
}  // namespace tokamak

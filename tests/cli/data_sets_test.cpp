// Data sets by name and by address, from a hub on loopback (tests/fixtures/hub_server.py).
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/random.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class DataSets : public testing::Test {
 protected:
  DataSets()
      : server_({TOK_PYTHON, std::string(TOK_SOURCE_DIR) + "/tests/fixtures/hub_server.py",
                 hub_.path().string()}) {
    await([&] { return path_exists(hub_.path() / "port"); }, "the hub's port");
    endpoint_ = "http://127.0.0.1:" + read_file(hub_.path() / "port");
    for (const char* name : {"c4-train.0.json", "c4-train.1.json", "c4-train.2.json"})
      put_lines(fmt::format("allenai/c4/en/{}", name), 400);
    put_lines("allenai/c4/en/c4-validation.0.json", 60);
    put_lines("allenai/c4/de/c4-train.0.json", 10);
    write_file_atomic(hub_.path() / "allenai/c4/README.md", "no data");
    write_file_atomic(hub_.path() / "allenai/c4/.gitattributes", "no data");
  }

  void put_lines(const std::string& path, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i)
      text +=
          fmt::format(R"({{"text": "{} {} {}", "url": "x"}})", path, random_u32(1, 2, i), i) + "\n";
    make_folders((hub_.path() / path).parent_path());
    write_file_atomic(hub_.path() / path, text);
  }

  // Each run has a token cache of its own.
  ProgramResult train(const std::string& dump, const Words& more) const {
    Words words{"/usr/bin/env", "HF_TOKEN=", "HOME=/nonexistent", "HF_ENDPOINT=" + endpoint_,
                "TOKAMAK_CACHE=" + (here_.path() / (dump + ".cache")).string()};
    return run_program(words + train_words("llama_tiny", here_.path() / dump,
                                           Words{"--model.tokenizer_path=bytes",
                                                 "--model.vocab=258", "--training.steps=8"} +
                                               more),
                       here_.path());
  }

  std::vector<std::string> metrics(const std::string& dump) const {
    return timeless_metrics(here_.path() / dump);
  }

  std::string local(const std::string& path) const { return (hub_.path() / path).string(); }

  void expect_needs(const ProgramResult& result, const std::string& text) const {
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_NE((result.out + result.err).find(text), std::string::npos) << result.out << result.err;
  }

  ScratchFolder hub_;
  ScratchFolder here_;
  RunningProgram server_;
  std::string endpoint_;
};

TEST_F(DataSets, C4ByNameTrainsAsTheSameFilesHere) {
  const Words validation{"--validation.enable", "--validation.seq_len=32", "--validation.steps=2",
                         "--validation.local_batch_size=2", "--validation.freq=4"};
  const auto by_name = train("name", Words{"--training.dataset=c4"} + validation);
  ASSERT_EQ(by_name.exit_code, 0) << by_name.err;
  const auto here = train(
      "here", Words{"--training.dataset=c4", "--training.dataset_path=" + local("allenai/c4/en"),
                    "--validation.dataset_path=" + local("allenai/c4/en")} +
                  validation);
  ASSERT_EQ(here.exit_code, 0) << here.err;
  EXPECT_EQ(metrics("name").size(), 8U);
  EXPECT_EQ(metrics("name"), metrics("here"));
  EXPECT_EQ(timeless_validation(here_.path() / "name"), timeless_validation(here_.path() / "here"));
}

TEST_F(DataSets, AConnectionThatFailsChangesNoToken) {
  put_lines("org/few/flaky-a.jsonl", 300);
  put_lines("org/few/b.jsonl", 300);
  const auto far = train("far", {"--training.dataset=c4", "--training.dataset_path=hf:org/few"});
  ASSERT_EQ(far.exit_code, 0) << far.err;
  const auto here =
      train("here", {"--training.dataset=c4", "--training.dataset_path=" + local("org/few")});
  ASSERT_EQ(here.exit_code, 0) << here.err;
  EXPECT_EQ(metrics("far"), metrics("here"));
}

TEST_F(DataSets, ResumesWithTheTokensThatFollow) {
  const Words data{"--training.dataset=c4",     "--training.dataset_path=hf:allenai/c4@main#en",
                   "--training.shuffle_seed=3", "--checkpoint.enable",
                   "--checkpoint.interval=4",   "--lr_scheduler.total_steps=8"};
  ASSERT_EQ(train("whole", data).exit_code, 0);
  ASSERT_EQ(train("cut", data + Words{"--training.steps=4"}).exit_code, 0);
  ASSERT_EQ(train("cut", data).exit_code, 0);
  EXPECT_EQ(metrics("cut"), metrics("whole"));
}

TEST_F(DataSets, ASeedDrawsTheOrderOfFiles) {
  std::set<std::vector<std::string>> orders;
  for (int seed = 1; seed <= 4; ++seed) {
    const std::string name = fmt::format("seed{}", seed);
    const auto result = train(name, {"--training.dataset=c4", "--training.steps=2",
                                     fmt::format("--training.shuffle_seed={}", seed)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    orders.insert(metrics(name));
  }
  EXPECT_GT(orders.size(), 1U);
}

TEST_F(DataSets, AMixOfPlacesTrains) {
  const auto result =
      train("mix", {"--training.dataset=c4",
                    "--training.dataset_path=0.5 hf:allenai/c4#en 0.5 " + local("allenai/c4/de")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(DataSets, SaysBeforeStepZeroWhatIsWrong) {
  const std::string path = "--training.dataset_path=";
  const Words c4{"--training.dataset=c4", "--dry-run"};
  expect_needs(train("a", c4 + Words{path + "hf:allenai/c4#nothing"}),
               "no such repository or file");
  expect_needs(train("a", c4 + Words{path + "hf:allenai/c5"}), "no such repository");
  expect_needs(train("a", c4 + Words{path + "hf:org/gated"}), "access to it must be granted");
  expect_needs(train("a", c4 + Words{path + "hf:allenai"}), "wanted hf:OWNER/NAME");
  expect_needs(train("a", {"--training.dataset=tokens", "--dry-run", path + "hf:allenai/c4"}),
               "wants a local path");
  EXPECT_EQ(train("a", c4).exit_code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(here_.path() / "a.cache"))
    EXPECT_FALSE(entry.is_regular_file() && entry.file_size() > 0) << entry.path();
}

TEST_F(DataSets, DownloadsAFolderOfADataset) {
  const auto result =
      run_program({"/usr/bin/env", "HF_TOKEN=", "HOME=/nonexistent", TOK_PROGRAM, "download",
                   "--dataset", "allenai/c4#de", "--endpoint", endpoint_},
                  here_.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(here_.path() / "data/c4/de/c4-train.0.json"),
            read_file(hub_.path() / "allenai/c4/de/c4-train.0.json"));
  EXPECT_FALSE(path_exists(here_.path() / "data/c4/en"));
}

}  // namespace
}  // namespace tokamak

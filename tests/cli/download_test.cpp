// `tokamak download` against a hub on loopback (tests/fixtures/hub_server.py).
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/hub/digest.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class Download : public testing::Test {
 protected:
  Download()
      : server_({TOK_PYTHON, std::string(TOK_SOURCE_DIR) + "/tests/fixtures/hub_server.py",
                 hub_.path().string()}) {
    await([&] { return path_exists(hub_.path() / "port"); }, "the hub's port");
    endpoint_ = "http://127.0.0.1:" + read_file(hub_.path() / "port");
  }

  void put(const std::string& path, const std::string& text) const {
    make_folders((hub_.path() / path).parent_path());
    write_file_atomic(hub_.path() / path, text);
  }

  // A repository of a small model in two shards.
  void put_model(const std::string& repository, const std::string& shard = "model-2") const {
    put(repository + "/config.json", R"({"architectures": ["LlamaForCausalLM"]})");
    put(repository + "/tokenizer.json", "{}");
    put(repository + "/README.md", "not wanted");
    put(repository + "/pytorch_model.bin", "not wanted");
    put(repository + "/model.safetensors.index.json", "{}");
    put(repository + "/model-1.safetensors", std::string(100'000, 'a'));
    put(repository + "/" + shard + ".safetensors", std::string(300'000, 'b'));
  }

  ProgramResult download(const std::string& repository, const Words& more = {}) const {
    return run_program(Words{"/usr/bin/env", "HF_TOKEN=", "HOME=/nonexistent", TOK_PROGRAM,
                             "download", repository, "--endpoint", endpoint_} +
                           more,
                       here_.path());
  }

  void expect_refused(const ProgramResult& result, const std::string& text) const {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_FALSE(path_exists(here_.path() / "assets"));
  }

  std::string log() const { return read_file(hub_.path() / "log"); }

  ScratchFolder hub_;
  ScratchFolder here_;
  RunningProgram server_;
  std::string endpoint_;
};

TEST_F(Download, BringsWhatTheProgramReadsAndNothingElse) {
  put_model("org/small");
  const auto result = download("org/small");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const fs::path to = here_.path() / "assets/hf/small";
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors.index.json",
                           "model-1.safetensors", "model-2.safetensors"})
    EXPECT_EQ(read_file(to / name), read_file(hub_.path() / "org/small" / name)) << name;
  EXPECT_EQ(list_folder(to).size(), 5);
  const auto again = download("org/small");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("model-2.safetensors: 0.3 MB, already there"), std::string::npos)
      << again.out;
}

TEST_F(Download, TakesOnlyTheAssetsThatAreAsked) {
  put_model("org/small");
  const auto result = download("org/small", {"--assets", "tokenizer,config", "-o", "there"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(list_folder(here_.path() / "there").size(), 2);
}

TEST_F(Download, GoesOnWhereTheConnectionWasCut) {
  put_model("org/small", "cut-2");
  const auto result = download("org/small");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(here_.path() / "assets/hf/small/cut-2.safetensors"),
            std::string(300'000, 'b'));
  EXPECT_NE(log().find("/cdn/org/small/cut-2.safetensors bytes=150000-"), std::string::npos)
      << log();
}

TEST_F(Download, GoesOnWithAPartOfAnEarlierRun) {
  put_model("org/small");
  const fs::path to = here_.path() / "assets/hf/small";
  const std::string hash = sha256_of(hub_.path() / "org/small/model-2.safetensors");
  make_folders(to);
  write_file_atomic(to / ("model-2.safetensors." + hash.substr(0, 12) + ".part"),
                    std::string(100'000, 'b'));
  const auto result = download("org/small");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(to / "model-2.safetensors"), std::string(300'000, 'b'));
  EXPECT_NE(log().find("model-2.safetensors bytes=100000-"), std::string::npos) << log();
  EXPECT_EQ(list_folder(to).size(), 5);
}

TEST_F(Download, RefusesBytesWithAnotherHash) {
  put_model("org/small", "wrong-2");
  const auto result = download("org/small");
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_NE(result.err.find("wrong-2.safetensors: its bytes do not have the hash"),
            std::string::npos)
      << result.err;
  for (const fs::path& path : list_folder(here_.path() / "assets/hf/small"))
    EXPECT_EQ(path.filename().string().find("wrong-2"), std::string::npos) << path;
}

TEST_F(Download, SendsTheTokenToTheHubAlone) {
  put_model("org/private-model");
  expect_refused(
      download("org/private-model"),
      "there is no such repository, or it wants a token: give it by --token or HF_TOKEN");
  expect_refused(download("org/private-model", {"--token", "guess"}),
                 "the hub does not take this token");
  const auto result = download("org/private-model", {"--token", "secret"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(log().find("Bearer secret"), std::string::npos);
}

TEST_F(Download, SaysWhatAGatedRepositoryWants) {
  expect_refused(download("org/gated-model"),
                 "org/gated-model: access to it must be granted on its page first; then give the "
                 "account's token by --token or HF_TOKEN");
}

TEST_F(Download, NamesWhatIsNotThere) {
  put_model("org/small");
  expect_refused(download("org/none"), "org/none: there is no such repository");
  expect_refused(download("org/small", {"--revision", "v9"}), "org/small: it has no such revision");
  expect_refused(download("small"), "small: wanted a repository OWNER/NAME");
  put("org/pickled/config.json", "{}");
  put("org/pickled/tokenizer.json", "{}");
  put("org/pickled/pytorch_model.bin", "x");
  expect_refused(download("org/pickled"), "pickled Python objects only");
}

TEST_F(Download, RefusesPathsThatLeaveTheFolder) {
  put_model("org/evil");
  put("evil.tree.json", R"([{"type": "file", "path": "../config.json", "size": 2, "oid": "x"}])");
  expect_refused(download("org/evil"),
                 "the hub lists a file \"../config.json\", which is not a path inside a folder");
}

TEST_F(Download, SendsTheTokenToNoOtherHostThatAPageNames) {
  put_model("org/linked");
  const std::string port = endpoint_.substr(endpoint_.rfind(':') + 1);
  put("linked.link", "<http://localhost:" + port + "/api/models/org/linked/tree/x?cursor=6>");
  const auto result = download("org/linked", {"--token", "secret"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(log());
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(line.starts_with("localhost"), line.find("secret") == std::string::npos) << line;
  EXPECT_NE(log().find("localhost:" + port + " /api/models/org/linked/tree/x"), std::string::npos);
}

TEST_F(Download, EndsWherePagesDoNot) {
  put_model("org/endless");
  put("endless.link", "<" + endpoint_ + "/api/models/org/endless/tree/x?cursor=6>");
  expect_refused(download("org/endless"), "lists its files on more than 1000 pages");
}

TEST_F(Download, EndsWhereAFileIsShorterThanStated) {
  put("org/short/config.json", "{}");
  put("short.tree.json", R"([{"type": "file", "path": "config.json", "size": 100,)"
                         R"( "oid": "0000000000000000000000000000000000000000"}])");
  const auto result = download("org/short", {"--assets", "config"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find("config.json: the server sends 2 of the 100 bytes that it states"),
            std::string::npos)
      << result.err;
}

TEST_F(Download, LeavesHttpForNothing) {
  put_model("org/ftp-model");
  expect_refused(download("org/ftp-model"), "ftp://127.0.0.1/x: wanted an address of http");
}

TEST_F(Download, PrintsNoOrderToTheTerminal) {
  put_model("org/evil");
  for (const auto& [path, oid] : {std::pair{"a\\u001b[2J.safetensors", "x"},
                                  {"a\\u009b2J.safetensors", "x"},
                                  {"a.safetensors", "../../../../x\\u001b[2J"}}) {
    put("evil.tree.json",
        fmt::format(R"([{{"type": "file", "path": "{}", "size": 2, "oid": "{}"}}])", path, oid));
    const auto result = download("org/evil");
    expect_refused(result, "org/evil: ");
    for (const char c : result.err) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << result.err;
  }
}

TEST_F(Download, GivesUpOnAHubThatIsNotThere) {
  const auto result = run_program(
      {TOK_PROGRAM, "download", "org/small", "--endpoint", "http://127.0.0.1:1"}, here_.path());
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
}

}  // namespace
}  // namespace tokamak

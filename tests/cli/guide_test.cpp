// The commands of docs/guide.md, in order, as a reader would paste them.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// The lines of all blocks that are marked sh. Here-documents stay whole: no line of one is a fence.
std::string commands_of(std::string_view guide) {
  std::string commands;
  bool inside = false;
  while (!guide.empty()) {
    const size_t end = guide.find('\n');
    const std::string_view line = guide.substr(0, end);
    guide.remove_prefix(end == std::string_view::npos ? guide.size() : end + 1);
    if (line.substr(0, 3) == "```") {
      inside = line == "```sh";
    } else if (inside) {
      commands.append(line).push_back('\n');
    }
  }
  return commands;
}

TEST(Guide, EveryCommandWorks) {
  const std::string commands = commands_of(read_file(fs::path(TOK_SOURCE_DIR) / "docs/guide.md"));
  ASSERT_NE(commands.find("tokamak convert"), std::string::npos);

  const ScratchFolder scratch;
  const fs::path here = scratch.path() / "here";
  fs::create_directory(here);
  const fs::path script = scratch.path() / "guide.sh";
  FileWriter(script).write("set -euo pipefail\n" + commands);
  const std::string path = std::getenv("PATH");
  const auto result =
      run_program({"env", "PATH=" + fs::path(TOK_PROGRAM).parent_path().string() + ":" + path,
                   "TOKAMAK_CACHE=" + (scratch.path() / "cache").string(),
                   // The guide waits for a file, which a run that fails would never write.
                   "timeout", "--kill-after=5", "280", "bash", "-x", script.string()},
                  here);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;

  for (const char* name :
       {"exported/model.safetensors", "exported/config.json", "exported/tokenizer.json",
        "run/checkpoint/step-310/manifest.json", "third/checkpoint/step-10/model.safetensors"}) {
    EXPECT_TRUE(path_exists(here / name)) << name;
  }
  EXPECT_EQ(read_file(here / "exported/model.safetensors").find("optimizer."), std::string::npos);
  const auto metrics = read_json_lines(here / "run/metrics.jsonl");
  ASSERT_GE(metrics.size(), 2U);
  EXPECT_LT(metrics.back().at("loss").get<double>(), metrics.front().at("loss").get<double>());
  EXPECT_FALSE(read_json_lines(here / "run/validation.jsonl").empty());
}

}  // namespace
}  // namespace tokamak

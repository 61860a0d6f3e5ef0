// `tokamak bench matrix`: the rows of its axes, and a small matrix that is run, extended and read.
#include <gtest/gtest.h>

#include "tokamak/cli/matrix/matrix_rows.h"
#include "tokamak/core/file.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

TEST(MatrixRows, are_all_combinations) {
  const auto rows =
      cli::rows_of({.models = cli::models_of("gpt2:124M@2x64,llama3:debugmodel@1x128"),
                    .ranks = {1, 4},
                    .precisions = {"bf16", "tensorwise"},
                    .recomputes = {"none", "op", "2", "full"},
                    .graphs = {"on", "off"}});
  EXPECT_EQ(rows.size(), 2 * 3 * 2 * 4 * 2);  // ranks: one, ddp 4, fsdp 4
  int left_out = 0;
  for (const cli::MatrixRow& row : rows) left_out += row.is_left_out_by_peer() ? 1 : 0;
  EXPECT_EQ(left_out, 2 * 3 * (8 - 1));  // fp8 but for one: without recompute and graphs
  EXPECT_EQ(rows.front().name(), "gpt2:124M 2x64 bf16 recompute none graphs on");
  EXPECT_EQ(rows.back().name(),
            "llama3:debugmodel 1x128 fsdp4 tensorwise recompute full graphs off");
}

std::vector<std::string> matrix(const std::vector<std::string>& more) {
  std::vector<std::string> words{TOK_PROGRAM,    "bench",        "matrix",
                                 "--device=cpu", "--graphs=off", "--models=llama3:debugmodel@1x32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BenchMatrix, measures_prices_and_goes_on) {
  const ScratchFolder folder;
  const std::vector<std::string> small{"--recompute=none,1", "--precisions=bf16", "--steps=2",
                                       "--machine=h100", "--out=m"};
  const auto first = run_program(matrix(small), folder.path());
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("2/2 llama3:debugmodel 1x32 bf16 recompute 1 graphs off: "),
            std::string::npos)
      << first.out;
  EXPECT_NE(first.out.find("(priced "), std::string::npos);
  const fs::path kept = folder.path() / "m" / "matrix.jsonl";
  const std::string lines = read_file(kept);
  const auto again = run_program(matrix(small), folder.path());
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(read_file(kept), lines) << "a row that was measured is not run again";
  const std::string page = read_file(folder.path() / "m" / "matrix.html");
  EXPECT_NE(page.find("llama3:debugmodel, 1 x 32"), std::string::npos);
  EXPECT_FALSE(path_exists(folder.path() / "m" / "run"));
}

TEST(BenchMatrix, says_what_does_not_fit_or_fails) {
  const ScratchFolder folder;
  const auto large = run_program({TOK_PROGRAM, "bench", "matrix", "--device=cpu", "--graphs=off",
                                  "--models=llama3:405B@1x8192", "--recompute=none",
                                  "--precisions=bf16", "--machine=h100", "--out=m"},
                                 folder.path());
  EXPECT_EQ(large.exit_code, 0) << large.err;
  EXPECT_NE(large.out.find("does not fit: "), std::string::npos) << large.out;
  const auto failing = run_program(matrix({"--recompute=none", "--precisions=bf16",
                                           "--row-seconds=1", "--steps=100000", "--out=n"}),
                                   folder.path());
  EXPECT_EQ(failing.exit_code, 0) << failing.err;
  EXPECT_NE(failing.out.find("failed: it took too long"), std::string::npos) << failing.out;
}

TEST(BenchMatrix, names_bad_words) {
  const ScratchFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"--models=gpt2:124M", "NAME:FLAVOR@BATCHxTOKENS"},
      {"--models=gpt2:9B@1x64", "9B"},
      {"--models=gpt2:124M@0x64", "NAME:FLAVOR@BATCHxTOKENS"},
      {"--recompute=some", "wanted none, op, full or a number"},
      {"--precisions=fp4", "wanted bf16, tensorwise"},
      {"--graphs=maybe", "wanted on or off"},
      {"--ranks=0", "wanted 1 or more"},
      {"--steps=1", "wanted 2 and 1 or more"},
      {"--machine=h1000", "h1000"}};
  for (const auto& [word, wanted] : cases) {
    const auto result = run_program(
        {TOK_PROGRAM, "bench", "matrix", "--device=cpu", word, "--out=m"}, folder.path());
    EXPECT_EQ(result.exit_code, 2) << word << result.out;
    EXPECT_NE(result.err.find(wanted), std::string::npos) << word << ": " << result.err;
    EXPECT_FALSE(path_exists(folder.path() / "m"));
  }
}

}  // namespace
}  // namespace tokamak

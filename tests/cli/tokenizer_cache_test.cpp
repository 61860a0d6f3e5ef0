// `tokamak tokenizer cache`: its files for Megatron, and the column that it reads.
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/program.h"

namespace tokamak {
namespace {

class TokenizerCache : public ::testing::Test {
 protected:
  ProgramResult run(const std::vector<std::string>& more) const {
    std::vector<std::string> words{TOK_PROGRAM,   "tokenizer", "cache",   "c4",   "a.jsonl",
                                   "--tokenizer", "bytes",     "--cache", "cache"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, scratch.path());
  }

  void write(const std::string& text) const { FileWriter(scratch.path() / "a.jsonl").write(text); }

  std::string documents_of(const std::string& prefix) const {
    const auto result = run_program(
        {TOK_PYTHON, TOK_SOURCE_DIR "/tests/fixtures/read_megatron.py", prefix}, scratch.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

  const ScratchFolder scratch;
};

TEST_F(TokenizerCache, WritesWhatAReaderOfMegatronsLayoutFinds) {
  write("{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}\n");
  const auto result = run({"--megatron", "out"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "wrote out.bin and out.idx: 3 documents, 9 tokens\n");
  EXPECT_EQ(documents_of("out"), "256 97 98 257\n256 257\n256 99 257\n");
  write("{\"text\": \"d\"}\n");
  EXPECT_EQ(run({"--megatron", "out"}).exit_code, 0);
  EXPECT_EQ(documents_of("out"), "256 100 257\n") << "older files are replaced";
  const auto nowhere = run({"--megatron", "no/out"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_NE(nowhere.err.find("no/out.bin"), std::string::npos) << nowhere.err;
}

TEST_F(TokenizerCache, ReadsTheColumnThatIsNamed) {
  write("{\"messages\": [{\"content\": \"a\"}, {\"content\": \"b\"}], \"text\": \"c\"}\n");
  EXPECT_EQ(run({"--megatron", "text"}).exit_code, 0);
  EXPECT_EQ(documents_of("text"), "256 99 257\n");
  EXPECT_EQ(run({"--megatron", "chat", "--text-column=messages.content"}).exit_code, 0);
  EXPECT_EQ(documents_of("chat"), "256 97 10 98 257\n");
  const auto wrong = run({"--text-column=content"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("no \"content\" field, only messages, text"), std::string::npos)
      << wrong.err;
}

}  // namespace
}  // namespace tokamak

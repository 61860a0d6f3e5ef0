// `tokamak eval` against transformers (tests/oracles/eval_*), and meshes against one rank.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/mesh_cli_run.h"

namespace tokamak {
namespace {

constexpr double kBound = 2e-6;  // of a mean of fp32 losses against double precision

Words eval_words(const std::string& model, const Words& more) {
  const auto folder = oracle_folder(model);
  return Words{TOK_PROGRAM, "eval",        folder.string(), (folder / "text.jsonl").string(),
               "--json",    "--tokenizer", "bytes",         "--device",
               "cpu"} +
         more;
}

Json result_of(const Words& words) {
  const auto result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "eval");
}

class EvalOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(EvalOracle, LossesEqualThoseOfTransformers) {
  const Json facts = parse_json(read_file(oracle_folder(GetParam()) / "eval.json"), "eval.json");
  for (const Json& want : facts["cases"]) {
    const Json got = result_of(
        eval_words(GetParam(), {"--by", want["by"].get<std::string>(), "--batch", "3",
                                fmt::format("--seq-len={}", want["seq_len"].get<int64_t>()),
                                fmt::format("--stride={}", want["stride"].get<int64_t>())}));
    const double nats = want["nats"].get<double>();
    const double loss = nats / want["tokens"].get<double>();
    EXPECT_EQ(got["tokens"], want["tokens"]);
    EXPECT_EQ(got["bytes"], facts["bytes"]);
    EXPECT_EQ(got["documents"], facts["documents"]);
    EXPECT_NEAR(got["loss"].get<double>(), loss, kBound * loss) << want;
    EXPECT_NEAR(got["perplexity"].get<double>(), std::exp(loss),
                3 * kBound * loss * std::exp(loss));
    const double bits = nats / std::log(2.0) / facts["bytes"].get<double>();
    EXPECT_NEAR(got["bits_per_byte"].get<double>(), bits, kBound * bits);
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, EvalOracle, ::testing::Values("eval_llama", "eval_gpt2"),
                         [](const auto& of) { return std::string(of.param); });

// The bytes of a text are its tokens, so --by window of the text and of the token file agree.
TEST(Eval, TokenFilesAreReadAsTextByWindow) {
  const ScratchFolder scratch;
  std::string text;
  for (int i = 0; i < 700; ++i) text += fmt::format("{} ", i * 37 % 1013);
  FileWriter(scratch.path() / "a.txt").write(text);
  std::string ids("\0\1", 2);  // BOS 256
  for (const char c : text) ids += {c, '\0'};
  ids += {"\1\1", 2};  // EOS 257
  FileWriter(scratch.path() / "a.u16").write(ids);
  const auto eval = [&](const std::string& data, const Words& more) {
    return Words{TOK_PROGRAM,
                 "eval",
                 oracle_folder("eval_llama").string(),
                 (scratch.path() / data).string(),
                 "--json",
                 "--seq-len=30",
                 "--stride=11",
                 "--batch=2",
                 "--device=cpu"} +
           more;
  };
  const Json of_text = result_of(eval("a.txt", {"--by=window", "--tokenizer=bytes"}));
  const Json of_tokens = result_of(eval("a.u16", {}));
  EXPECT_EQ(of_tokens["by"], "window");
  EXPECT_EQ(of_tokens["loss"], of_text["loss"]);
  EXPECT_EQ(of_tokens["tokens"], of_text["tokens"]);
  EXPECT_FALSE(of_tokens.contains("bits_per_byte"));
  const Json on_two = result_of(on_ranks(2, eval("a.u16", {})));
  EXPECT_EQ(on_two["tokens"], of_text["tokens"]);
  EXPECT_NEAR(on_two["loss"].get<double>(), of_text["loss"].get<double>(), 1e-6);
  ids += {"\2\1", 2};  // 258 is not an id
  FileWriter(scratch.path() / "a.u16").write(ids);
  const auto outside = run_program(eval("a.u16", {}));
  EXPECT_EQ(outside.exit_code, 2);
  EXPECT_NE(outside.err.find("id 258, the model's vocabulary ends at 258"), std::string::npos)
      << outside.err;
  const auto by_document = run_program(eval("a.u16", {"--by=document"}));
  EXPECT_EQ(by_document.exit_code, 2);
  EXPECT_NE(by_document.err.find("holds tokens without documents"), std::string::npos);
}

TEST(Eval, MeshesGiveTheFigureOfOneRank) {
  const Words words = eval_words("eval_llama", {"--seq-len=30", "--stride=11", "--batch=2"});
  const Json one = result_of(words);
  const Words meshes[] = {
      {"--parallelism.tensor_parallel_degree=2"},
      {"--parallelism.pipeline_parallel_degree=2",
       "--parallelism.data_parallel_replicate_degree=2"},
      {"--parallelism.context_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"}};
  for (const Words& mesh : meshes) {
    const Json got = result_of(on_ranks(mesh.size() == 1 ? 2 : 4, words + mesh));
    EXPECT_EQ(got["tokens"], one["tokens"]);
    EXPECT_EQ(got["bytes"], one["bytes"]);
    EXPECT_NEAR(got["loss"].get<double>(), one["loss"].get<double>(), 1e-6) << mesh[0];
  }
}

TEST(Eval, ReadsPlainTextAndSaysWhatIsWrong) {
  const ScratchFolder scratch;
  const std::string model = oracle_folder("eval_llama").string();
  FileWriter(scratch.path() / "a.txt").write("Some plain text.");
  const auto run = [&](const Words& more) {
    return run_program(Words{TOK_PROGRAM, "eval", model} + more, scratch.path());
  };
  const auto fine = run({"a.txt", "--tokenizer=bytes", "--device=cpu"});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
  EXPECT_NE(fine.out.find("16 tokens of 16 bytes in 1 documents"), std::string::npos) << fine.out;
  const auto named = run({"a.txt", "--dataset=text", "--tokenizer=bytes", "--device=cpu"});
  EXPECT_EQ(named.out.substr(0, named.out.find('\n')), fine.out.substr(0, fine.out.find('\n')));
  const std::pair<Words, const char*> bad[] = {
      {{"none.txt"}, "no such file or folder: none.txt"},
      {{"a.txt"}, "there is no tokenizer"},
      {{"a.txt", "--tokenizer=bytes", "--by=line"}, "--by \"line\": wanted document or window"},
      {{"a.txt", "--tokenizer=bytes", "--stride=99", "--seq-len=9"}, "wanted 1 to --seq-len, 9"},
      {{"a.txt", "--tokenizer=bytes", "--training.steps=3"}, "--training.steps: of a run's keys"},
      {{"a.txt", "--tokenizer=bytes", "--parallelism.tensor_parallel_degree=2"},
       "there are 1 ranks"},
      {{"a.txt", "--tokenizer=shakespeare"}, "the model's vocabulary ends at 258"}};
  for (const auto& [words, text] : bad) {
    const auto result = run(words);
    EXPECT_EQ(result.exit_code, 2) << words.back();
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
  }
}

}  // namespace
}  // namespace tokamak

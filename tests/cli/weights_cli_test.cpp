// Weights and tokenizers through the program: convert, generate, tokenizer encode.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/oracle_export.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

ProgramResult run_ok(const Words& words, const std::string& in = "") {
  ProgramResult result = run_program(Words{TOK_PROGRAM} + words, ".", in);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

void expect_refused(const Words& words, const std::string& part) {
  const auto result = run_program(Words{TOK_PROGRAM} + words);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

class Convert : public ::testing::TestWithParam<const char*> {};

TEST_P(Convert, ThereAndBackGivesTheSameFiles) {
  const ScratchFolder scratch;
  const fs::path from = oracle_folder(GetParam());
  const std::string made = (scratch.path() / "ours").string();
  const fs::path back = scratch.path() / "back";
  run_ok({"convert", from.string(), made, "--to-format", "checkpoint"});
  run_ok({"convert", made, back.string()});
  EXPECT_EQ(read_file(back / "model.safetensors"), read_file(from / "model.safetensors"));
  expect_config_of(from / "config.json", back / "config.json");
  const std::string name = "generation_config.json";
  EXPECT_EQ(parse_json(read_file(back / name), name), parse_json(read_file(from / name), name));
}

TEST_P(Convert, BfloatLosesNothingTwice) {
  const ScratchFolder scratch;
  const std::string once = (scratch.path() / "once").string();
  const std::string twice = (scratch.path() / "twice").string();
  run_ok({"convert", oracle_folder(GetParam()).string(), once, "--dtype", "bfloat16"});
  run_ok({"convert", once, twice, "--dtype", "float32"});
  run_ok({"convert", twice, twice + "_again", "--dtype", "bfloat16"});
  EXPECT_EQ(read_tensors(twice + "_again"), read_tensors(once));
  for (const auto& [name, bytes] : read_tensors(oracle_folder(GetParam()))) {
    const auto found = read_tensors(twice);
    if (found.count(name) == 0) continue;
    EXPECT_LT(relative_error(to_floats(found.at(name)), to_floats(bytes)), 4e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Convert,
                         ::testing::Values("llama_tiny", "llama_tied", "gpt2_tiny"),
                         [](const auto& of) { return std::string(of.param); });

TEST(ConvertTarget, OnlyAnExportIsReplaced) {
  const ScratchFolder scratch;
  const fs::path root = scratch.path();
  const std::string from = oracle_folder("llama_tiny").string();
  fs::create_directories(root / "mine/sub");
  write_file_atomic(root / "mine/notes.txt", "precious");
  write_file_atomic(root / "file", "precious");
  fs::create_directory_symlink("mine", root / "link");
  expect_refused({"convert", from, (root / "mine").string()}, "notes.txt");
  expect_refused({"convert", from, (root / "mine/").string()}, "notes.txt");
  expect_refused({"convert", from, (root / "link").string()}, "notes.txt");
  expect_refused({"convert", from, (root / "mine").string(), "--to-format", "checkpoint"},
                 "notes.txt");
  expect_refused({"convert", from, (root / "file").string()}, "found a file");
  expect_refused({"convert", from, "."}, "the working folder cannot be replaced");
  EXPECT_EQ(read_file(root / "mine/notes.txt"), "precious");
  EXPECT_EQ(read_file(root / "file"), "precious");
  for (int turn = 0; turn < 2; ++turn) {
    run_ok({"convert", from, (root / "new/").string()});
    run_ok({"convert", from, (root / "ours").string(), "--to-format", "checkpoint"});
  }
  expect_refused({"convert", from, (root / "ours").string()}, "step-0");
  EXPECT_EQ(list_folder(root).size(), 5U);
}

// A copy of llama_tiny in which one piece of a file's text is replaced.
struct Changed {
  Changed(const fs::path& folder, const std::string& file, const std::string& from,
          const std::string& to)
      : path(folder / "changed") {
    fs::create_directories(path);
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::string text = read_file(oracle_folder("llama_tiny") / name);
      if (name == file) {
        const size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        text.replace(at, from.size(), to);
      }
      write_file_atomic(path / name, text);
    }
  }

  fs::path path;
};

TEST(ConvertWrongModels, AreRefusedByNameBeforeAnythingIsWritten) {
  const ScratchFolder scratch;
  const fs::path to = scratch.path() / "to";
  const auto refused = [&](const std::string& file, const std::string& from, const std::string& by,
                           const std::string& part) {
    const Changed changed(scratch.path(), file, from, by);
    expect_refused({"convert", changed.path.string(), to.string()}, part);
    EXPECT_FALSE(path_exists(to)) << part;
  };
  const std::string config = "config.json";
  const std::string weights = "model.safetensors";
  refused(config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
          "missing, the first is \"model.layers.2.");
  refused(config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "\"model.layers.1.");
  refused(config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 100000", "from 1 to 1024");
  refused(config, "\"rms_norm_eps\": ", "\"rms_norm_eps\": -", "rms_norm_eps");
  refused(config, "\"vocab_size\": ", "\"vocab_size\": 1", "the configuration makes it [1512, 64]");
  refused(weights, "\"model.norm.weight\"", "\"model.norm.weighs\"", "\"model.norm.weighs\"");
}

TEST(ConvertWrongModels, ATransposedOrInfiniteWeightIsNamed) {
  const ScratchFolder scratch;
  const fs::path to = scratch.path() / "to";
  const std::string bytes = read_file(oracle_folder("llama_tiny") / "model.safetensors");
  const std::string name = "\"model.layers.1.mlp.up_proj.weight\"";
  const size_t open = bytes.find('[', bytes.find(name));
  const size_t close = bytes.find(']', open);
  const std::string shape = bytes.substr(open + 1, close - open - 1);
  const size_t comma = shape.find(',');
  const std::string turned = shape.substr(comma + 1) + "," + shape.substr(0, comma);
  std::string other = bytes;
  other.replace(open + 1, shape.size(), turned);
  const Changed changed(scratch.path(), "", "", "");
  write_file_atomic(changed.path / "model.safetensors", other);
  expect_refused({"convert", changed.path.string(), to.string()}, "it is transposed");
  other = bytes;
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(other.data() + other.size() - sizeof infinity, &infinity, sizeof infinity);
  write_file_atomic(changed.path / "model.safetensors", other);
  expect_refused({"convert", changed.path.string(), to.string()}, "is NaN or infinite");
  EXPECT_FALSE(path_exists(to));
  const fs::path text = scratch.path() / "text.txt";
  write_file_atomic(text, "Some plain text.");
  expect_refused({"eval", changed.path.string(), text.string(), "--tokenizer=bytes"},
                 "is NaN or infinite");
  expect_refused({"generate", changed.path.string(), "-p", "a", "-n", "2", "--tokenizer=bytes"},
                 "weights that are NaN or infinite");
}

// A run's folder, its folder of checkpoints and one that a signal left stand for their newest
// complete checkpoint.
TEST(ModelFiles, TheFolderOfARunStandsForItsNewestCheckpoint) {
  const ScratchFolder scratch;
  const fs::path dump = scratch.path() / "out";
  const auto run = run_program(
      train_words("llama_tiny", dump,
                  {"--training.steps=2", "--checkpoint.enable", "--checkpoint.interval=1"}),
      scratch.path());
  ASSERT_EQ(run.exit_code, 0) << run.err;
  fs::copy(dump / "checkpoint/step-1", dump / "checkpoint/step-3", fs::copy_options::recursive);
  const auto generated = [&](const fs::path& model) {
    return run_ok({"generate", model.string(), "-p", "a", "-n", "4", "--tokenizer=bytes"});
  };
  const std::string wanted = generated(dump / "checkpoint/step-2").out;
  for (const fs::path& folder : {dump, dump / "checkpoint"}) {
    const auto got = generated(folder);
    EXPECT_EQ(got.out, wanted);
    EXPECT_NE(got.err.find(fmt::format("reading {}\n", (dump / "checkpoint/step-2").string())),
              std::string::npos)
        << got.err;
  }
  const fs::path text = scratch.path() / "a.txt";
  FileWriter(text).write("Some text to be measured.");
  const auto loss_of = [&](const fs::path& model) {
    return run_ok({"eval", model.string(), text.string(), "--tokenizer=bytes", "--seq-len=8"})
        .out.substr(0, 40);
  };
  EXPECT_EQ(loss_of(dump), loss_of(dump / "checkpoint/step-2"));
  fs::rename(dump / "checkpoint", dump / "elsewhere");
  EXPECT_EQ(generated(dump).out, wanted);
  for (const char* step : {"step-1", "step-2", "step-3"})
    fs::remove(dump / "elsewhere" / step / "manifest.json");
  expect_refused({"generate", dump.string(), "-p", "a", "--tokenizer=bytes"},
                 "none of its checkpoints is complete: ");
}

TEST(ConvertStep, ExportsTheModelAlone) {
  const ScratchFolder scratch;
  const fs::path dump = scratch.path() / "out";
  const auto run = run_program(
      train_words("llama_tiny", dump,
                  {"--training.steps=2", "--checkpoint.enable", "--checkpoint.interval=1",
                   "--checkpoint.last_save_model_only=false"}),
      scratch.path());
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const fs::path to = scratch.path() / "to";
  EXPECT_NE(run_ok({"convert", dump.string(), to.string()}).out.find("checkpoint/step-2\n"),
            std::string::npos);
  const fs::path other = scratch.path() / "other";
  run_ok({"convert", oracle_folder("llama_tiny").string(), other.string()});
  std::vector<std::string> names;
  std::vector<std::string> wanted;
  for (const auto& [name, bytes] : read_tensors(to)) names.push_back(name);
  for (const auto& [name, bytes] : read_tensors(other)) wanted.push_back(name);
  EXPECT_EQ(names, wanted);
}

TEST(Inputs, PipesAndHugeFilesAreRefusedAtOnce) {
  const ScratchFolder scratch;
  const Changed changed(scratch.path(), "", "", "");
  const fs::path to = scratch.path() / "to";
  fs::resize_file(changed.path / "config.json", uintmax_t{3} << 30);
  expect_refused({"convert", changed.path.string(), to.string()}, "wanted at most 16777216");
  fs::copy_file(oracle_folder("llama_tiny") / "config.json", changed.path / "config.json",
                fs::copy_options::overwrite_existing);
  for (const char* name : {"model.safetensors", "config.json"}) {
    fs::remove(changed.path / name);
    ASSERT_EQ(mkfifo((changed.path / name).c_str(), 0600), 0);
    expect_refused({"convert", changed.path.string(), to.string()}, "not a regular file");
  }
  expect_refused({"train", (changed.path / "config.json").string()}, "not a regular file");
}

TEST(ConvertForeign, PicklesAreRefusedWithTheRemedy) {
  const ScratchFolder scratch;
  const std::string out = (scratch.path() / "out").string();
  const fs::path dcp = scratch.path() / "dcp";
  const fs::path pth = scratch.path() / "pth";
  fs::create_directories(dcp);
  fs::create_directories(pth);
  FileWriter(dcp / ".metadata").write("x");
  FileWriter(pth / "consolidated.00.pth").write("PK\x03\x04");
  expect_refused({"convert", dcp.string(), out}, "convert_to_hf.py");
  expect_refused({"convert", pth.string(), out}, "save_pretrained");
  expect_refused({"convert", (pth / "consolidated.00.pth").string(), out}, "save_pretrained");
  expect_refused({"generate", pth.string(), "-p", "x"}, "save_pretrained");
}

TEST(Generate, TheSeedDecidesAndTemperature0TakesTheLikeliest) {
  const Words base{"generate",    oracle_folder("llama_tiny").string(),
                   "--tokenizer", "bytes",
                   "-p",          "some text",
                   "-n",          "12",
                   "--ids"};
  const auto ids = [&](const Words& more) { return run_ok(base + more).out; };
  EXPECT_EQ(ids({"-s", "3"}), ids({"-s", "3"}));
  EXPECT_NE(ids({"-s", "3"}), ids({"-s", "4"}));
  EXPECT_EQ(ids({"-t", "0"}), ids({"--top-k", "1", "-s", "9"}));
  EXPECT_NE(ids({"-t", "0"}), ids({"-t", "0", "--no-bos"}));
  EXPECT_EQ(count_lines(ids({})), 12);
}

TEST(Generate, ATextEndsBeforeAStop) {
  const Words words{"generate",    oracle_folder("llama_tiny").string(),
                    "--tokenizer", "bytes",
                    "-p",          "~",
                    "-n",          "60",
                    "-s",          "3"};
  const std::string all = run_ok(words).out;
  const auto stop = std::find_if(all.begin(), all.end(),
                                 [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; });
  ASSERT_NE(stop, all.end()) << all;
  std::string cut = run_ok(words + Words{"--stop", std::string(1, *stop)}).out;
  while (cut.ends_with('\n')) cut.pop_back();
  EXPECT_LE(cut.size(), static_cast<size_t>(stop - all.begin()));
  EXPECT_EQ(all.rfind(cut, 0), 0U) << all << cut;
}

// Chat models name several ids that end a text, and their tokenizer but one.
TEST(Generate, ATextEndsAtEveryEosOfTheModel) {
  const ScratchFolder scratch;
  const fs::path model = scratch.path() / "model";
  fs::copy(oracle_folder("llama_tiny"), model);
  FileWriter(scratch.path() / "text.txt").write("some text of some words");
  run_ok({"tokenizer", "train", (scratch.path() / "text.txt").string(), "-o", model.string(),
          "--vocab-size", "258"});
  const auto ids = [&](const Words& more) {
    const auto result = run_ok(
        Words{"generate", model.string(), "-p", "some", "-t", "0", "-n", "8", "--ids"} + more);
    std::istringstream lines(result.out);
    std::vector<int> all;
    for (int id = 0; lines >> id;) all.push_back(id);
    return all;
  };
  fs::remove(model / "generation_config.json");
  const auto want = ids({});
  ASSERT_EQ(want.size(), 8U);
  const auto end = std::find(want.begin(), want.end(), want[5]);
  FileWriter(model / "generation_config.json")
      .write("{\"eos_token_id\": [257, " + std::to_string(want[5]) + "]}");
  EXPECT_EQ(ids({}), std::vector<int>(want.begin(), end));
  // The ids of another tokenizer mean something else.
  EXPECT_EQ(ids({"--tokenizer", "bytes"}).size(), 8U);
}

TEST(Generate, AFileOfPromptsIsABatch) {
  const ScratchFolder scratch;
  const fs::path file = scratch.path() / "prompts.jsonl";
  FileWriter(file).write(
      "{\"prompt\": \"some text\"}\n\n{\"prompt\": \"a\"}\n \n{\"prompt\": \"a longer piece of "
      "text\"}\n");
  const Words base{
      "generate", oracle_folder("llama_tiny").string(), "--tokenizer", "bytes", "--ids", "-n",
      "12"};
  const auto ids = [&](const Words& more) {
    const auto result = run_ok(base + Words{"--prompts", file.string()} + more);
    FileWriter(scratch.path() / "out.jsonl").write(result.out);
    return read_json_lines(scratch.path() / "out.jsonl");
  };
  for (const Words& sampling : {Words{"-t", "0"}, Words{"-s", "3", "--top-p", "0.9"}}) {
    const auto together = ids(sampling);
    ASSERT_EQ(together.size(), 3U);
    EXPECT_EQ(together, ids(sampling + Words{"--batch-size", "1"}));
    EXPECT_EQ(together, ids(sampling + Words{"--batch-size", "2"}));
    EXPECT_EQ(together[1]["prompt"], "a");
    EXPECT_EQ(together[1]["end"], "length");
    EXPECT_EQ(together[1]["tokens"], 12);
  }
  // Prompt i draws what it draws alone with the seed + i.
  const auto alone = run_ok(base + Words{"-p", "a", "-s", "4"});
  std::string lines;
  const auto drawn = ids({"-s", "3"});
  for (const auto& id : drawn[1]["ids"]) lines += fmt::format("{}\n", id.get<int>());
  EXPECT_EQ(alone.out, lines);
  FileWriter(file).write("{\"prompt\": \"x\"}\n\n\n{\"text\": \"y\"}\n");
  expect_refused(base + Words{"--prompts", file.string()}, "prompts.jsonl:4");
  expect_refused(base + Words{"--prompts", file.string(), "--batch-size", "0"}, "--batch-size 0");
}

TEST(Generate, ATrainedRunCanBeAsked) {
  const ScratchFolder scratch;
  const auto trained = run_program(
      train_words("llama_tiny", scratch.path(),
                  {"--model.flavor=debugmodel", "--training.dataset=shakespeare",
                   "--training.seq_len=64", "--checkpoint.enable", "--training.steps=2"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto text = run_ok(
      {"generate", (scratch.path() / "checkpoint/step-2").string(), "-p", "ROMEO:", "-n", "5"});
  EXPECT_EQ(text.out.rfind("ROMEO:", 0), 0U) << text.out;
}

TEST(Generate, SaysWhenATextIsLongerThanTheModelWasMadeFor) {
  const Words base{
      "generate", oracle_folder("llama_tiny").string(), "--tokenizer", "bytes", "-p", "x", "-t",
      "0"};
  EXPECT_EQ(run_ok(base + Words{"-n", "3"}).err.find("was made for"), std::string::npos);
  const std::string err = run_ok(base + Words{"-n", "300"}).err;
  EXPECT_NE(err.find("up to 302 tokens, but the model was made for 256"), std::string::npos) << err;
}

TEST(Generate, AModelMayHaveTheCheckpointsOfARunBesideIt) {
  const ScratchFolder scratch;
  const std::string from = oracle_folder("llama_tiny").string();
  const std::string model = (scratch.path() / "model").string();
  run_ok({"convert", from, model});
  run_ok({"convert", from, model + "/checkpoint", "--to-format", "checkpoint"});
  const Words asked{"--tokenizer", "bytes", "-p", "x", "-t", "0", "-n", "5", "--ids"};
  EXPECT_EQ(run_ok(Words{"generate", model} + asked).out,
            run_ok(Words{"generate", from} + asked).out);
  fs::remove(model + "/model.safetensors");
  EXPECT_EQ(run_ok(Words{"generate", model} + asked).out,
            run_ok(Words{"generate", from} + asked).out);
}

TEST(Generate, MistakesAreOneLine) {
  const std::string gpt2 = oracle_folder("gpt2_tiny").string();
  expect_refused({"generate", "nowhere", "-p", "x"}, "nowhere");
  expect_refused({"generate", gpt2, "-p", "x"}, "--tokenizer");
  expect_refused({"generate", gpt2, "--tokenizer", "bytes", "-p", "x", "-n", "200"},
                 "128 learned positions");
  expect_refused({"generate", gpt2, "--tokenizer", "bytes", "-p", "x", "-t", "-1"},
                 "--temperature");
  expect_refused({"generate", gpt2, "-t", "1", "-t", "2"},
                 "--temperature: wanted once, got 2 times");
  expect_refused({"generate", gpt2, "--model", "gpt2:124M"}, "leave --model out");
  expect_refused({"generate", gpt2, "-n", "1e3"}, "--max-new-tokens = 1e3: wanted an integer");
  expect_refused({"generate", gpt2, "-t", "hot"}, "--temperature = hot: wanted a number");
  expect_refused(
      {"generate", oracle_folder("qwen2_tiny").string(), "--tokenizer", "bytes", "-p", "x"},
      "the tokenizer has 258 ids and makes 256 of the prompt");
}

TEST(TokenizerTrain, KeepsTheTokenizerOfAModel) {
  const ScratchFolder scratch;
  const std::string text = (scratch.path() / "text.txt").string();
  const std::string model = (scratch.path() / "model").string();
  write_file_atomic(text, "some text for a tokenizer\n");
  const Words words{"tokenizer", "train", text, "--vocab-size", "300", "-o"};
  for (int turn = 0; turn < 2; ++turn) run_ok(words + Words{model});
  const std::string tokenizer = read_file(model + "/tokenizer.json");
  write_file_atomic(model + "/model.safetensors", "weights");
  write_file_atomic(text, "other text\n");
  expect_refused(words + Words{model}, "model.safetensors was trained with the tokenizer");
  EXPECT_EQ(read_file(model + "/tokenizer.json"), tokenizer);
  expect_refused(words + Words{text}, "cannot create folder");
}

TEST(TokenizerTrain, TakesGpt2sSplitAndTheFormatOfTheFiles) {
  const ScratchFolder scratch;
  const std::string text = (scratch.path() / "text").string();
  write_file_atomic(text, "{\"text\": \"some text, some text\"}\n");
  const auto made = [&](const Words& more) {
    const fs::path out = scratch.path() / "out";
    run_ok(Words{"tokenizer", "train", text, "-o", out.string(), "--vocab-size", "270"} + more);
    return read_file(out / "tokenizer.json");
  };
  const std::string usual = made({});
  EXPECT_EQ(usual, made({"--format", "text", "--split", "llama3"}));
  EXPECT_NE(usual, made({"--format", "c4"}));
  EXPECT_NE(usual, made({"--split", "gpt2"}));
}

TEST(TokenizerTrain, LearnsTheTextsOfJsonLines) {
  const ScratchFolder scratch;
  write_file_atomic(scratch.path() / "text.txt", "some text for a tokenizer, some text");
  make_folders(scratch.path() / "lines");
  write_file_atomic(scratch.path() / "lines/a.jsonl",
                    "{\"text\": \"some text for a tokenizer, some text\", \"score\": NaN}\n");
  std::vector<std::string> made;
  for (const char* name : {"text.txt", "lines"}) {
    const fs::path out = scratch.path() / (std::string("of_") + name);
    run_ok({"tokenizer", "train", (scratch.path() / name).string(), "-o", out.string()});
    made.push_back(read_file(out / "tokenizer.json"));
  }
  EXPECT_EQ(made[0], made[1]);
}

TEST(TokenizerEncode, AddsBosAndEosOnRequest) {
  const std::string folder = fs::path(TOK_SOURCE_DIR) / "tests/oracles/tokenizers/spm_llama2";
  const auto ids = [&](const Words& more) {
    return parse_json(
               run_ok(Words{"tokenizer", "encode", folder} + more, "{\"text\": \"a\"}\n").out,
               "encode")["ids"]
        .get<std::vector<int>>();
  };
  const std::vector<int> plain = ids({});
  const std::vector<int> both = ids({"--bos", "--eos"});
  ASSERT_EQ(both.size(), plain.size() + 2);
  EXPECT_EQ(std::vector<int>(both.begin() + 1, both.end() - 1), plain);
}

TEST(TokenizerEncode, SaysWhenItsOutputIsFull) {
  const std::string command = std::string("echo '{\"text\": \"a\"}' | ") + TOK_PROGRAM +
                              " tokenizer encode bytes > /dev/full";
  const auto result = run_program({"sh", "-c", command});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("not all of it could be written"), std::string::npos) << result.err;
}

TEST(TokenizerEncode, SaysWhatALineMustBe) {
  const auto result =
      run_program({TOK_PROGRAM, "tokenizer", "encode", "bytes"}, ".", "{\"text\": \"a\"}\nhello\n");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("standard input, line 2: wanted an object such as "
                            "{\"text\": \"a text\"}, got \"hello\""),
            std::string::npos)
      << result.err;
}

TEST(TokenizerEncode, OracleCases) {
  for (const char* name : {"gpt2_bpe", "llama3_bpe"}) {
    const fs::path folder = fs::path(TOK_SOURCE_DIR) / "tests/oracles/tokenizers" / name;
    const std::string cases = read_file(folder / "cases.jsonl");
    const auto result = run_ok({"tokenizer", "encode", folder.string()}, cases);
    const ScratchFolder scratch;
    FileWriter(scratch.path() / "got").write(result.out);
    const auto got = read_json_lines(scratch.path() / "got");
    const auto want = read_json_lines(folder / "cases.jsonl");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]["ids"], want[i]["ids"]) << i;
      EXPECT_EQ(got[i]["decoded"], want[i]["decoded"]) << i;
    }
  }
}

}  // namespace
}  // namespace tokamak

// What a user, a file or a machine does wrong: one clear line, the right exit code, nothing lost.
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class BadInput : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return scratch_.path() / name; }

  fs::path dump() const { return at("out"); }

  void write(const std::string& name, const std::string& text) const {
    FileWriter(at(name)).write(text);
  }

  void write_ids(const std::string& name, const std::vector<uint32_t>& ids) const {
    FileWriter(at(name)).write(std::as_bytes(std::span(ids)));
  }

  // A copy of llama_tiny whose last number is infinite.
  void write_infinite_model() const {
    fs::create_directories(at("inf"));
    fs::copy_file(oracle_folder("llama_tiny") / "config.json", at("inf") / "config.json");
    std::string bytes = read_file(oracle_folder("llama_tiny") / "model.safetensors");
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() + bytes.size() - sizeof(float), &infinity, sizeof(float));
    write("inf/model.safetensors", bytes);
  }

  // `tokamak train` fails with `code` and one line on stderr that holds `part`.
  void expect_failure(int code, const std::string& part, const Words& more) const {
    const auto result = run_program(train_words("llama_tiny", dump(), more), scratch_.path());
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }

  Words tokens(const std::string& name) const {
    return {"--training.dataset=tokens", "--training.dataset_path=" + at(name).string()};
  }

  Words text(const std::string& name) const {
    return {"--training.dataset=text", "--training.dataset_path=" + at(name).string(),
            "--model.tokenizer_path=bytes"};
  }

  ScratchFolder scratch_;
};

TEST_F(BadInput, ADivergedRunKeepsItsLastCheckpoint) {
  expect_failure(3, "step 2",
                 {"--optimizer.lr=1e30", "--checkpoint.enable", "--checkpoint.interval=1"});
  EXPECT_EQ(timeless_metrics(dump()).size(), 1U);
  EXPECT_TRUE(path_exists(dump() / "checkpoint/step-1"));
  EXPECT_FALSE(path_exists(dump() / "checkpoint/step-2"));
}

TEST_F(BadInput, InfiniteWeightsStopBeforeTheFirstUpdate) {
  write_infinite_model();
  expect_failure(3, "step 1",
                 {"--checkpoint.enable", "--checkpoint.initial_load_path=" + at("inf").string()});
  EXPECT_TRUE(timeless_metrics(dump()).empty());
}

TEST_F(BadInput, TokenFiles) {
  write_ids("empty.u32", {});
  expect_failure(2, "wanted tokens, got none", tokens("empty.u32"));
  write_ids("short.u32", std::vector<uint32_t>(10, 1));
  expect_failure(2, "one window of 33 tokens", tokens("short.u32"));
  write("odd.u32", std::string(4001, '\1'));
  expect_failure(2, "multiple of 4 bytes", tokens("odd.u32"));
  write_ids("outside.u32", std::vector<uint32_t>(5000, 512));
  expect_failure(2, "vocabulary of 512", tokens("outside.u32"));
  expect_failure(2, "vocabulary of 512", {"--training.dataset=shakespeare"});
}

TEST_F(BadInput, ABadTokenLaterInTheDataKeepsTheCheckpoints) {
  std::vector<uint32_t> ids(50000, 5);
  ids[3000] = 600;
  write_ids("late.u32", ids);
  expect_failure(2, "id 600",
                 tokens("late.u32") + Words{"--training.steps=600", "--checkpoint.enable",
                                            "--checkpoint.interval=20"});
  EXPECT_TRUE(path_exists(dump() / "checkpoint/step-40/manifest.json"));
}

TEST_F(BadInput, TextFiles) {
  write("empty.txt", "");
  expect_failure(2, "empty", text("empty.txt"));
  write("broken.jsonl", "{\"text\": \"abc\"}\n{\"text\": \n");
  expect_failure(2, "line 2", text("broken.jsonl") + Words{"--training.dataset=c4"});
  write("other.jsonl", "{\"txt\": \"abc\"}\n");
  expect_failure(2, "text", text("other.jsonl") + Words{"--training.dataset=c4"});
}

TEST_F(BadInput, NumbersThatDoNotFit) {
  expect_failure(2, "training.global_batch_size", {"--training.global_batch_size=3"});
  expect_failure(2, "training.local_batch_size", {"--training.local_batch_size=0"});
  expect_failure(2, "training.seq_len", {"--training.seq_len=9000000000"});
  expect_failure(2, "training.stepz", {"--training.stepz=3"});
  expect_failure(2, "validation.steps", {"--validation.enable", "--validation.dataset=synthetic"});
  expect_failure(
      2, "training.seq_len",
      {"--model.hf_assets_path=" + oracle_folder("gpt2_tiny").string(), "--training.seq_len=129"});
}

TEST_F(BadInput, EnvironmentsAndLimitsThatCannotBe) {
  const auto run_in = [&](const std::string& setting) {
    std::string line = setting + "; exec";
    for (const std::string& word : train_words("llama_tiny", dump(), {"--training.threads=0"}))
      line += " '" + word + "'";
    return run_program({"sh", "-c", line}, scratch_.path());
  };
  for (const auto& [setting, part] :
       {std::pair{"export OMP_NUM_THREADS=100000", "OMP_NUM_THREADS asks for 100000 threads"},
        std::pair{"export OMPI_COMM_WORLD_SIZE=99999999999", "OMPI_COMM_WORLD_SIZE"},
        std::pair{"ulimit -v 150000", "ulimit -v"}}) {
    const auto result = run_in(setting);
    EXPECT_EQ(result.exit_code, 2) << setting << result.err;
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }
  // Without a standard output, log lines go nowhere, least of all into metrics.jsonl.
  EXPECT_EQ(run_in("exec >&-").exit_code, 0);
  EXPECT_EQ(read_file(dump() / "metrics.jsonl").substr(0, 7), "{\"step\"");
  EXPECT_EQ(read_file(dump() / "metrics.jsonl").find("titan"), std::string::npos);
}

TEST_F(BadInput, WeightsOfAnotherModel) {
  for (const auto& [other, tensor] : {std::pair{"llama_tied", "model.embed_tokens.weight"},
                                      {"gpt2_tiny", "transformer.h.0.attn.c_attn.bias"}}) {
    expect_failure(
        2, tensor,
        {"--checkpoint.enable", "--checkpoint.initial_load_path=" + oracle_folder(other).string()});
  }
  write("cut.safetensors",
        read_file(oracle_folder("llama_tiny") / "model.safetensors").substr(0, 50000));
  expect_failure(
      2, "cut.safetensors",
      {"--checkpoint.enable", "--checkpoint.initial_load_path=" + at("cut.safetensors").string()});
  write("huge.safetensors", std::string(8, '\x7f') + "{}");
  expect_failure(
      2, "huge.safetensors",
      {"--checkpoint.enable", "--checkpoint.initial_load_path=" + at("huge.safetensors").string()});
}

TEST_F(BadInput, ANameBesideAFolderOfAnotherFamily) {
  expect_failure(2, "model.name = \"mixtral\": not one of ours", {"--model.name=mixtral"});
  expect_failure(2, "is that of config.json, a LlamaForCausalLM: leave model.name out",
                 {"--model.name=gpt2"});
  EXPECT_FALSE(path_exists(dump()));
}

TEST_F(BadInput, AConfigJsonThatSaysOtherwiseIsNamed) {
  std::string config = read_file(oracle_folder("llama_tiny") / "config.json");
  const std::string eps = "\"rms_norm_eps\": 1e-05";
  config.replace(config.find(eps), eps.size(), "\"rms_norm_eps\": 1e-06");
  fs::create_directories(at("hf"));
  write("hf/config.json", config);
  fs::copy_file(oracle_folder("llama_tiny") / "model.safetensors", at("hf/model.safetensors"));
  const auto train = [&](const Words& more) {
    const auto result = run_program(
        train_words("llama_tiny", dump(), Words{"--checkpoint.enable"} + more), scratch_.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out + result.err;
  };
  const std::string loaded =
      train({"--training.steps=1", "--checkpoint.initial_load_path=" + at("hf").string()});
  EXPECT_NE(loaded.find("describes another model: rms_norm_eps 1e-06 (now 1e-05)"),
            std::string::npos)
      << loaded;
  const std::string resumed =
      train({"--training.steps=2", "--model.hf_assets_path=" + at("hf").string()});
  EXPECT_NE(resumed.find("config.json rms_norm_eps 1e-05 (now 1e-06)"), std::string::npos)
      << resumed;
}

TEST_F(BadInput, AFileInTheWayOfTheDumpFolder) {
  write("out", "a file");
  expect_failure(2, "out", {});
  expect_failure(2, "out", {"--checkpoint.enable"});
}

TEST_F(BadInput, AFolderThatMayNotBeWritten) {
  fs::create_directories(at("closed"));
  fs::permissions(at("closed"), fs::perms::owner_read | fs::perms::owner_exec |
                                    fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(scratch_.path(), fs::perms::all);
  Words words = train_words("llama_tiny", at("closed/out"), {"--checkpoint.enable"});
  if (getuid() == 0) {
    words = Words{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"} + words;
    if (run_program({"setpriv", "--reuid=65534", "--clear-groups", TOK_PROGRAM, "--version"})
            .exit_code != 0)
      GTEST_SKIP() << "another user cannot run the program here";
  }
  const auto result = run_program(words);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
  EXPECT_NE(result.err.find("closed/out"), std::string::npos) << result.err;
}

TEST_F(BadInput, AFullDiskKeepsTheOldCheckpoint) {
  fs::create_directories(at("disk"));
  if (mount("tmpfs", at("disk").c_str(), "tmpfs", 0, "size=5m") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  const auto result = run_program(train_words(
      "llama_tiny", at("disk/out"),
      {"--checkpoint.enable", "--checkpoint.interval=1", "--checkpoint.keep_latest_k=0"}));
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
  const auto kept = list_folder(at("disk/out/checkpoint"));
  for (const fs::path& path : kept)
    EXPECT_EQ(path.string().find(".tmp"), std::string::npos) << path;
  // Nothing half written is there, and the run goes on once there is room.
  EXPECT_EQ(mount("tmpfs", at("disk").c_str(), "tmpfs", MS_REMOUNT, "size=50m"), 0);
  const auto resumed = run_program(train_words("llama_tiny", at("disk/out"),
                                               {"--checkpoint.enable", "--checkpoint.interval=1"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.out.find("starts at step 1\n"), std::string::npos) << resumed.out;
  EXPECT_EQ(timeless_metrics(at("disk/out")).size(), 6U);
  umount(at("disk").c_str());
}

TEST_F(BadInput, AllErrorsOfAFileAreListed) {
  write("many.toml",
        "[training]\nsteps = \"x\"\nseq_length = 3\nlocal_batch_size = 0\n[modle]\nname = \"a\"\n"
        "[optimizer]\nlr = -1\n");
  const auto result = run_program({TOK_PROGRAM, "train", at("many.toml").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(count_lines(result.err), 5) << result.err;
  for (const char* part : {"many.toml:2: training.steps", "many.toml:3: training.seq_length",
                           "training.local_batch_size", "modle.name", "optimizer.lr"})
    EXPECT_NE(result.err.find(part), std::string::npos) << part;
}

TEST_F(BadInput, WhatThisMachineLacksIsNoConfigError) {
  const Words absent{"--training.dataset=c4", "--training.dataset_path=nowhere",
                     "--checkpoint.initial_load_path=nowhere_too", "--checkpoint.enable"};
  const Words words = train_words("llama_tiny", dump(), absent);
  const auto dry = run_program(words + Words{"--dry-run"}, scratch_.path());
  EXPECT_EQ(dry.exit_code, 2) << dry.err;
  const auto real = run_program(words, scratch_.path());
  EXPECT_EQ(real.exit_code, 2);
  for (const char* line :
       {"needs: training.dataset_path = nowhere",
        "needs: model.hf_assets_path = ", "needs: checkpoint.initial_load_path = nowhere_too"}) {
    EXPECT_NE(dry.out.find(line), std::string::npos) << dry.out;
    EXPECT_NE(real.err.find(line), std::string::npos) << real.err;
  }
  EXPECT_NE(dry.out.find("peak (planned = allocated)"), std::string::npos) << dry.out;
  EXPECT_FALSE(path_exists(dump()));
  const auto no_model = run_program(
      train_words("llama_tiny", dump(), {"--model.hf_assets_path=nowhere", "--dry-run"}));
  EXPECT_EQ(no_model.exit_code, 2);
  EXPECT_NE(no_model.out.find("needs: model.hf_assets_path = nowhere"), std::string::npos);
}

TEST_F(BadInput, ATokenizerLargerThanTheModelIsNamedAtTheStart) {
  const Words words{TOK_PROGRAM,
                    "train",
                    "--job.device=cpu",
                    "--model.vocab=300",
                    "--training.seq_len=32",
                    "--training.local_batch_size=1",
                    "--training.steps=1",
                    "--job.dump_folder=" + dump().string()};
  const std::string line = " ids and the model's vocabulary ends at 300: ";
  const auto dry = run_program(words + Words{"--dry-run"}, scratch_.path());
  EXPECT_EQ(dry.exit_code, 2) << dry.err;
  EXPECT_NE(dry.err.find(line), std::string::npos) << dry.err;
  const auto real = run_program(words, scratch_.path());
  EXPECT_EQ(real.exit_code, 2);
  for (const std::string& err : {dry.err, real.err})
    EXPECT_NE(err.find("is outside the model's vocabulary of 300"), std::string::npos) << err;
}

TEST_F(BadInput, CheckpointsThatCannotBeResumedAreNotOverwritten) {
  fs::create_directories(dump() / "checkpoint/step-5");
  write("out/checkpoint/step-5/.metadata", "x");
  expect_failure(2, "distributed checkpoint", {"--checkpoint.enable"});
  fs::remove_all(dump());
  const Words model_only{"--checkpoint.enable", "--checkpoint.last_save_model_only"};
  ASSERT_EQ(run_program(train_words("llama_tiny", dump(), model_only)).exit_code, 0);
  const auto again = run_program(train_words("llama_tiny", dump(), model_only));
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.out.find("already completed"), std::string::npos) << again.out;
  expect_failure(2, "holds the model only", model_only + Words{"--training.steps=8"});
  EXPECT_EQ(timeless_metrics(dump()).size(), 6U);
}

}  // namespace
}  // namespace tokamak

// A torchtitan checkout as it is: its debug_model.toml names inputs relative to the checkout.
#include <fstream>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// As in torchtitan v0.2.2, torchtitan/models/llama3/train_configs/debug_model.toml.
constexpr std::string_view kDebugModel = R"([job]
dump_folder = "./outputs"
description = "Llama 3 debug training"
print_config = false

[profiling]
enable_profiling = false
save_traces_folder = "profile_trace"
profile_freq = 10
enable_memory_snapshot = false
save_memory_snapshot_folder = "memory_snapshot"

[metrics]
log_freq = 1
disable_color_printing = false
enable_tensorboard = false
save_tb_folder = "tb"
enable_wandb = false

[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"

[optimizer]
name = "AdamW"
lr = 8e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 2
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.0

[training]
local_batch_size = 8
seq_len = 2048
max_norm = 1.0
steps = 10
dataset = "c4_test"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
tensor_parallel_degree = 1
enable_async_tensor_parallel = false
pipeline_parallel_degree = 1
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_degree = 1

[checkpoint]
enable = false
folder = "checkpoint"
interval = 10
last_save_model_only = false
export_dtype = "float32"
async_mode = "disabled"

[activation_checkpoint]
mode = "selective"
selective_ac_option = '2'

[compile]
enable=false
components = ["model", "loss"]

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
precompute_float8_dynamic_scale_for_fsdp = false
filter_fqns = ["output"]

[validation]
enable = false
dataset = "c4_validation"
freq = 5
steps = 10
)";

// A checkout's configuration, tokenizer and a little C4.
class Checkout {
 public:
  Checkout() {
    make_folders(file().parent_path());
    write_file_atomic(file(), kDebugModel);
    const fs::path data = assets() / "c4_test";
    make_folders(data);
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += "{\"text\": \"The quick brown fox jumps over " + std::to_string(i) +
               " lazy dogs, and then it sleeps.\"}\n";
    write_file_atomic(data / "data.json", lines);
    const auto made = run_program({TOK_PROGRAM, "tokenizer", "train", (data / "data.json").string(),
                                   "-o", (assets() / "tokenizer").string(), "--vocab-size", "300"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }

  fs::path file() const {
    return root_.path() / "torchtitan/models/llama3/train_configs/debug_model.toml";
  }

  fs::path assets() const { return root_.path() / "tests/assets"; }

  const fs::path& root() const { return root_.path(); }

 private:
  ScratchFolder root_;
};

const Words kSmall = {"--training.steps=2", "--training.seq_len=32",
                      "--training.local_batch_size=2", "--job.device=cpu"};

TEST(Torchtitan, DebugModelTrainsFromAnyFolder) {
  const Checkout checkout;
  const ScratchFolder elsewhere;
  const auto result =
      run_program(Words{TOK_PROGRAM, "train", checkout.file().string()} + kSmall, elsewhere.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("Training completed"), std::string::npos) << result.out;
  EXPECT_EQ(read_json_lines(elsewhere.path() / "outputs/metrics.jsonl").size(), 2);
  const std::string taken = "note: training.dataset_path = tests/assets/c4_test: taken from ";
  EXPECT_NE(result.err.find(taken + fs::absolute(checkout.assets() / "c4_test").string()),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("This run saves nothing until it is stopped (then ./outputs/stopped): "
                            "checkpoint.enable = false; "
                            "--checkpoint.enable writes ./outputs/checkpoint every 10 steps"),
            std::string::npos)
      << result.out;
}

TEST(Torchtitan, TheWorkingFolderComesFirst) {
  const Checkout checkout;
  const auto result = run_program(
      Words{TOK_PROGRAM, "train", checkout.file().string(), "--checkpoint.enable"} + kSmall,
      checkout.root());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("taken from"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("saves nothing"), std::string::npos) << result.out;
}

TEST(Paths, ATildeIsTheHomeFolder) {
  const ScratchFolder home;
  const ScratchFolder elsewhere;
  fs::create_directories(home.path() / "a");
  write_file_atomic(home.path() / "a/text.txt", std::string(4000, 'x') + "\n");
  const auto result = run_program(
      Words{"env", "HOME=" + home.path().string(), TOK_PROGRAM, "train", "--job.dump_folder=~/run",
            "--training.dataset=text", "--training.dataset_path=0.5 ~/a 0.5 ~/a/text.txt",
            "--model.hf_assets_path=bytes", "--model.vocab=258"} +
          kSmall,
      elsewhere.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(path_exists(home.path() / "run/metrics.jsonl"));
  EXPECT_FALSE(path_exists(elsewhere.path() / "~"));
}

// torchtitan's users write -1 after a space.
TEST(Words, MayBeNumbersBelowZeroAfterASpace) {
  const ScratchFolder folder;
  const Words dry{TOK_PROGRAM,
                  "train",
                  "--dry-run",
                  "--training.dataset=synthetic",
                  "--training.seq_len=32",
                  "--job.device=cpu"};
  for (const char* key : {"--parallelism.data_parallel_shard_degree", "--checkpoint.load_step"}) {
    const auto result = run_program(dry + Words{key, "-1"}, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const auto alone = run_program(dry + Words{"-1"}, folder.path());
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_NE(alone.err.find("-1: no such flag"), std::string::npos) << alone.err;
  const auto below = run_program(dry + Words{"--training.steps", "-1"}, folder.path());
  EXPECT_NE(below.err.find("--training.steps: wanted an integer >=0, got -1"), std::string::npos)
      << below.err;
}

TEST(KeysOfTheProgram, DoWhatHelpSays) {
  const ScratchFolder folder;
  const auto result =
      run_program(Words{TOK_PROGRAM, "train", "--training.dataset=synthetic", "--model.layers=1",
                        "--job.description=my own words", "--job.print_config",
                        "--job.save_config_file=resolved.json", "--metrics.command=cat > got"} +
                      kSmall,
                  folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"Starting job: my own words", "\"print_config\": true"})
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  const std::string lines = read_file(folder.path() / "outputs/metrics.jsonl") +
                            read_file(folder.path() / "outputs/events.jsonl");
  const std::string got = read_file(folder.path() / "got");
  EXPECT_EQ(got.size(), lines.size());
  EXPECT_NE(got.find(lines.substr(0, lines.find('\n'))), std::string::npos) << got;
  EXPECT_NE(read_file(folder.path() / "outputs/resolved.json").find("my own words"),
            std::string::npos);
}

// Runs a small training where `python3` finds no package of a tracker.
ProgramResult run_without_packages(const ScratchFolder& folder, const std::string& word) {
  const std::filesystem::path python = folder.path() / "python3";
  std::ofstream(python) << "#!/bin/sh\necho \"there is no Python package $4\" >&2\nexit 1\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  return run_program(Words{"/usr/bin/env", "PATH=" + folder.path().string() + ":/usr/bin:/bin",
                           TOK_PROGRAM, "train", "--training.dataset=synthetic", word} +
                         kSmall,
                     folder.path());
}

TEST(Trackers, AMissingPackageIsSaidBeforeTheFirstStep) {
  const ScratchFolder folder;
  const auto asked = run_without_packages(folder, "--metrics.tracker=mlflow");
  EXPECT_EQ(asked.exit_code, 2);
  EXPECT_NE(
      asked.err.find("metrics.tracker = \"mlflow\": python3 -m tokamak.track mlflow: there is "
                     "no Python package mlflow"),
      std::string::npos)
      << asked.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "outputs/metrics.jsonl"));
  const auto accepted = run_without_packages(folder, "--metrics.enable_wandb");
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_NE(accepted.err.find("no Python package wandb; the run goes on without it"),
            std::string::npos)
      << accepted.err;
  const auto both = run_program(Words{TOK_PROGRAM, "train", "--training.dataset=synthetic",
                                      "--metrics.tracker=mlflow", "--metrics.command=cat"} +
                                    kSmall,
                                folder.path());
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("metrics.command and the tracker mlflow are both set"), std::string::npos)
      << both.err;
}

// The files of torchtitan's other models have keys of their own, which say less than the model
// does.
TEST(Torchtitan, FilesOfOtherModelsAreRefusedByTheModel) {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& text) {
    write_file_atomic(folder.path() / "a.toml", text);
    const auto result = run_program({TOK_PROGRAM, "train", "a.toml"}, folder.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
    return result.err;
  };
  const std::string flux =
      refusal("[model]\nname = \"flux\"\n[encoder]\nt5_encoder = \"google/t5-v1_1-small\"\n");
  EXPECT_NE(flux.find("model.name = \"flux\": not one of ours: llama3, "), std::string::npos)
      << flux;
  const std::string ours =
      refusal("[model]\nname = \"llama3\"\n[encoder]\nt5_encoder = \"google/t5-v1_1-small\"\n");
  EXPECT_NE(ours.find("a.toml:4: encoder.t5_encoder: no such key"), std::string::npos) << ours;
}

TEST(Torchtitan, InputsThatAreNowhereAreNamed) {
  const Checkout checkout;
  fs::remove_all(checkout.assets() / "c4_test");
  const ScratchFolder elsewhere;
  const auto result =
      run_program({TOK_PROGRAM, "train", checkout.file().string()}, elsewhere.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("training.dataset_path = tests/assets/c4_test: no such file or folder"),
            std::string::npos)
      << result.err;
  EXPECT_TRUE(list_folder(elsewhere.path()).empty());
}

TEST(Torchtitan, AnUnknownDatasetIsOneError) {
  const ScratchFolder folder;
  const auto result = run_program(
      Words{TOK_PROGRAM, "train", "--training.dataset=texts", "--training.dataset_path=."} + kSmall,
      folder.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
  EXPECT_NE(result.err.find("training.dataset = \"texts\": not one of ours: "), std::string::npos)
      << result.err;
}

TEST(Paths, OfOtherStoragesAreRefusedBeforeAnythingIsWritten) {
  const ScratchFolder folder;
  const Words verbs[] = {{"train", "--checkpoint.enable", "--checkpoint.folder=s3://bucket/x"},
                         {"train", "--job.dump_folder=gs://bucket/x"},
                         {"train", "s3://bucket/x.toml"},
                         {"convert", "s3://bucket/x", "y"},
                         {"convert", "y", "s3://bucket/x"},
                         {"generate", "hf://owner/name", "-p", "x"},
                         {"eval", "x", "https://host/x"},
                         {"tokenizer", "train", "x", "-o", "file:///tmp/x"},
                         {"report", "s3://bucket/x"},
                         {"price", "--cluster", "h100", "--gpus", "8", "--html", "s3://bucket/x"}};
  for (const Words& words : verbs) {
    const auto result = run_program(Words{TOK_PROGRAM} + words, folder.path());
    EXPECT_EQ(result.exit_code, 2) << words[0];
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
    EXPECT_NE(result.err.find("wanted a local path, got "), std::string::npos) << result.err;
  }
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

}  // namespace
}  // namespace tokamak

// torchtitan's integration configurations of llama3 that mean something on a CPU: each runs on its
// mesh for ten steps and equals one rank that was told the same, less the mesh.
//
// Left out: flex and varlen attention (backends of one GPU framework; there is one causal
// attention here), float8 emulation, optimizer_in_backward (not built), test_generate (no
// generation after training), the memory estimate (`train --dry-run` is ours). compile has no
// meaning ahead of time: what differs from another configuration only by it runs once, with it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/mesh_cli_run.h"

namespace tokamak {
namespace {

// A run, or one of several that follow each other in the same folder.
struct Phase {
  int num_ranks = 4;
  Words mesh;         ///< --parallelism.KEY=VALUE, and the local batch
  Words common;       ///< of one rank too
  size_t steps = 10;  ///< at its end
};

struct Peer {
  const char* name;
  std::vector<Phase> phases;
};

const std::string kLocal = "--training.local_batch_size=";
const std::string kRecompute = "--activation_checkpoint.selective_ac_option=op";

// Degrees of a mesh in its order; the global batch of 8 is dealt over the data-parallel ranks.
Words mesh(int pp, int dp_replicate, int dp_shard, int cp, int tp, const Words& more = {}) {
  return Words{fmt::format("--parallelism.pipeline_parallel_degree={}", pp),
               fmt::format("--parallelism.data_parallel_replicate_degree={}", dp_replicate),
               fmt::format("--parallelism.data_parallel_shard_degree={}", dp_shard),
               fmt::format("--parallelism.context_parallel_degree={}", cp),
               fmt::format("--parallelism.tensor_parallel_degree={}", tp),
               kLocal + std::to_string(8 / (dp_replicate * dp_shard))} +
         more;
}

Words schedule(const std::string& name, int layers_per_stage = 0) {
  Words words{"--parallelism.pipeline_parallel_schedule=" + name};
  if (layers_per_stage > 0) {
    words.push_back(
        fmt::format("--parallelism.pipeline_parallel_layers_per_stage={}", layers_per_stage));
  }
  return words;
}

Words rotate(const std::string& method) {
  return {"--parallelism.context_parallel_rotate_method=" + method};
}

const Words kSave{"--checkpoint.enable", "--checkpoint.interval=10",
                  "--checkpoint.last_save_model_only=false"};
const Words kExport{"--checkpoint.enable", "--checkpoint.last_save_model_only"};

std::vector<Peer> dense_peers() {
  return {
      {"default",
       {{4,
         mesh(1, 1, 4, 1, 1),
         {"--profiling.enable_profiling", "--metrics.enable_tensorboard"}}}},
      {"compile_1d", {{4, mesh(1, 1, 4, 1, 1, {"--compile.enable"}), {}}}},
      {"compile_1d_sac_op", {{4, mesh(1, 1, 4, 1, 1, {"--compile.enable", kRecompute}), {}}}},
      {"eager_2d", {{4, mesh(1, 1, 2, 1, 2), {}}}},
      {"asynctp_2d",
       {{4, mesh(1, 1, 2, 1, 2, {"--parallelism.enable_async_tensor_parallel"}), {}}}},
      {"optimizer_foreach", {{2, mesh(1, 1, 2, 1, 1), {"--optimizer.implementation=foreach"}}}},
      {"ddp", {{4, mesh(1, 4, 1, 1, 1), {}}}},
      {"hsdp", {{4, mesh(1, 2, 2, 1, 1), {}}}},
      {"fsdp_full_recompute",
       {{4, mesh(1, 1, 4, 1, 1, {"--activation_checkpoint.mode=full"}), {}}}},
      {"fsdp_reshard_always",
       {{4, mesh(1, 1, 4, 1, 1, {"--parallelism.fsdp_reshard_after_forward=always"}), {}}}},
      {"gradient_accumulation", {{2, mesh(1, 1, 2, 1, 1, {kLocal + "1"}), {}}}},
      {"dataloader_kwargs",
       {{2,
         mesh(1, 1, 2, 1, 1),
         {"--training.dataloader.num_workers=2", "--training.dataloader.pin_memory",
          "--training.dataloader.persistent_workers", "--training.dataloader.prefetch_factor=4"}}}},
      {"cp_allgather", {{4, mesh(1, 1, 1, 4, 1, rotate("allgather")), {}}}},
      {"cp_alltoall", {{4, mesh(1, 1, 1, 4, 1, rotate("alltoall")), {}}}},
      {"hsdp_tp", {{8, mesh(1, 2, 2, 1, 2), {}}}},
      {"fsdp_cp", {{4, mesh(1, 1, 2, 2, 1), {}}}},
      {"hsdp_cp_without_dp_shard", {{4, mesh(1, 2, 1, 2, 1), {}}}},
      {"hsdp_cp_with_dp_shard", {{8, mesh(1, 2, 2, 2, 1), {}}}},
      {"fsdp_tp_cp", {{8, mesh(1, 1, 2, 2, 2), {}}}},
  };
}

std::vector<Peer> pipeline_peers() {
  const Words csv{"--parallelism.pipeline_parallel_schedule=PipelineScheduleMulti",
                  "--parallelism.pipeline_parallel_schedule_csv=@",
                  "--parallelism.pipeline_parallel_microbatch_size=4"};
  const Words validation{"--validation.enable", "--validation.dataset=synthetic",
                         "--validation.freq=5", "--validation.steps=2", "--validation.seq_len=32"};
  return {
      {"pp_looped_zero_bubble", {{4, mesh(4, 1, 1, 1, 1, schedule("InterleavedZeroBubble")), {}}}},
      {"pp_zbv", {{2, mesh(2, 1, 1, 1, 1, schedule("ZBVZeroBubble")), {}}}},
      {"pp_1f1b", {{2, mesh(2, 1, 1, 1, 1, schedule("1F1B")), {}}}},
      {"pp_gpipe", {{2, mesh(2, 1, 1, 1, 1, schedule("GPipe")), {}}}},
      {"pp_dp_1f1b", {{4, mesh(2, 1, 2, 1, 1, schedule("1F1B")), {}}}},
      {"pp_dp_1f1b_layers_per_stage", {{4, mesh(2, 1, 2, 1, 1, schedule("1F1B", 4)), {}}}},
      {"pp_dp_gpipe", {{4, mesh(2, 1, 2, 1, 1, schedule("GPipe")), {}}}},
      {"pp_tp", {{4, mesh(2, 1, 1, 1, 2), {}}}},
      {"pp_dp_tp_resumed", {{8, mesh(2, 1, 2, 1, 2), kSave}, {8, mesh(2, 1, 2, 1, 2), kSave, 20}}},
      {"compile_3d", {{8, mesh(2, 1, 2, 1, 2, {"--compile.enable"}), {}}}},
      {"pp_looped_1f1b", {{4, mesh(4, 1, 1, 1, 1, schedule("Interleaved1F1B")), {}}}},
      {"pp_looped_1f1b_layers_per_stage",
       {{4, mesh(4, 1, 1, 1, 1, schedule("Interleaved1F1B", 1)), {}}}},
      {"pp_custom_csv", {{2, mesh(2, 1, 1, 1, 1, csv), {}}}},
      {"validation_tp_cp_pp",
       {{8,
         mesh(2, 1, 1, 2, 2,
              schedule("Interleaved1F1B") + Words{"--validation.local_batch_size=8"}),
         validation}}},
  };
}

std::vector<Peer> checkpoint_peers() {
  const Words offload = kSave + Words{"--training.enable_cpu_offload"};
  const std::string exclude = "--checkpoint.exclude_from_loading=lr_scheduler,dataloader,optimizer";
  const Words from_hf{"--checkpoint.enable", "--checkpoint.folder=second",
                      "--checkpoint.initial_load_path=@dump/checkpoint/step-10",
                      "--checkpoint.initial_load_in_hf"};
  return {
      {"full_checkpoint", {{4, mesh(1, 1, 4, 1, 1), kSave}, {4, mesh(1, 1, 4, 1, 1), kSave, 20}}},
      {"model_only_hf_checkpoint",
       {{4, mesh(1, 1, 4, 1, 1), kExport + Words{"--checkpoint.last_save_in_hf"}},
        {4, mesh(1, 1, 4, 1, 1), from_hf}}},
      {"last_save_model_only_fp32", {{4, mesh(1, 1, 4, 1, 1), kExport}}},
      {"last_save_model_only_bf16",
       {{4, mesh(1, 1, 4, 1, 1), kExport + Words{"--checkpoint.export_dtype=bfloat16"}}}},
      {"cpu_offload_tp_cp_then_dp",
       {{8, mesh(1, 1, 2, 2, 2), offload}, {8, mesh(1, 2, 1, 2, 2), offload, 20}}},
      {"optional_checkpoint",
       {{4, mesh(1, 1, 4, 1, 1), kSave}, {4, mesh(1, 1, 2, 1, 2), kSave + Words{exclude}, 20}}},
  };
}

std::vector<Peer> peers() {
  std::vector<Peer> all = dense_peers();
  for (const auto& more : {pipeline_peers(), checkpoint_peers()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

class PeerList : public ::testing::TestWithParam<Peer> {
 protected:
  // Two stages a rank, all forwards before all backwards, as a schedule of one's own.
  void SetUp() override {
    write_model(model_, "debugmodel");
    FileWriter(csv_).write(
        std::string_view("0F0,0F1,2F0,2F1,,,2B0,2B1,0B0,0B1\n"
                         ",1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1,\n"));
  }

  std::filesystem::path train(const std::string& name, bool on_one_rank) {
    auto dump = scratch_.path() / name;
    for (const Phase& phase : GetParam().phases) {
      Words words = train_words(
          "llama_tiny", dump,
          Words{"--model.hf_assets_path=" + model_.string(), "--training.global_batch_size=8",
                "--lr_scheduler.warmup_steps=2", fmt::format("--training.steps={}", phase.steps)} +
              phase.common + (on_one_rank ? Words{kLocal + "8"} : phase.mesh));
      for (std::string& word : words) {
        if (const size_t at = word.find("=@"); at != std::string::npos) {
          const bool is_dump = word.compare(at + 2, 4, "dump") == 0;
          word = word.substr(0, at + 1) +
                 (is_dump ? dump.string() + word.substr(at + 6) : csv_.string());
        }
      }
      run_ok(on_ranks(on_one_rank ? 1 : phase.num_ranks, words));
    }
    return dump;
  }

 private:
  ScratchFolder scratch_;
  std::filesystem::path model_ = scratch_.path() / "model";
  std::filesystem::path csv_ = scratch_.path() / "schedule.csv";
};

TEST_P(PeerList, EqualsOneRank) {
  const auto want = train("want", true);
  const auto got = train("got", false);
  expect_same_curve(got, want, GetParam().phases.back().steps);
  if (!path_exists(want / "validation.jsonl")) return;
  const auto a = read_json_lines(got / "validation.jsonl");
  const auto b = read_json_lines(want / "validation.jsonl");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    const double loss = b[i]["loss"].get<double>();
    EXPECT_NEAR(a[i]["loss"].get<double>(), loss, 1e-5 * loss) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Llama3, PeerList, ::testing::ValuesIn(peers()),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace tokamak

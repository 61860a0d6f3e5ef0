// Jobs of two to eight processes over MPI, drawn over all axes and options, against one process.
//
// TOK_MESH_SEED draws another list, TOK_MESH_COUNT its length, TOK_MESH_RANKS (at least 2) the most
// ranks of a job; the seed with a case's number draws it again, and a failure prints its words. On
// a machine with GPUs the jobs take them.
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/graph/mesh.h"

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_cli_run.h"

namespace tokamak {
namespace {

constexpr int64_t kSteps = 5;
constexpr double kLr = 8e-4;

struct Job {
  std::string model;
  Mesh mesh;
  Words common;       ///< of one rank too
  Words distributed;  ///< of the mesh only
  int64_t global_batch = 1;
  bool is_bf16 = false;
};

// Deals the prime factors of a world size over the axes, the first of them to each axis in turn.
Mesh draw_mesh(Draw& draw, uint64_t index) {
  Mesh mesh;
  const auto most = static_cast<int>(number_from("TOK_MESH_RANKS", 8));
  int rest = draw.one_of({2, 3, 4, 4, 6, 8, 8});
  while (rest > most) rest = draw.one_of({2, 3, 4, 4, 6, 8, 8});
  auto axis = static_cast<size_t>(index % kNumMeshAxes);
  while (rest > 1) {
    const int prime = rest % 2 == 0 ? 2 : 3;
    const bool is_pp = axis == static_cast<size_t>(MeshAxis::kPp);
    if (!is_pp || mesh.degrees[axis] * prime <= 4) {
      mesh.degrees[axis] *= prime;
      rest /= prime;
    }
    axis = static_cast<size_t>(draw.below(static_cast<int>(kNumMeshAxes)));
  }
  if (mesh.degree(MeshAxis::kTp) == 8) mesh.degrees = {1, 1, 1, 2, 4};  // there are 6 heads
  return mesh;
}

Words draw_recompute(Draw& draw) {
  return {
      "--activation_checkpoint.mode=" +
          draw.one_of<std::string>({"none", "full", "selective", "selective", "memory_budget"}),
      fmt::format("--activation_checkpoint.memory_budget={}", draw.one_of({0.25, 0.6})),
      "--activation_checkpoint.selective_ac_option=" + draw.one_of<std::string>({"op", "1", "2"})};
}

Words draw_options(Draw& draw, const Mesh& mesh) {
  const bool ulysses_fits = mesh.degree({MeshAxis::kCp, MeshAxis::kTp}) <= 6;
  return {"--parallelism.data_parallel_type=" +
              draw.one_of<std::string>({"fsdp", "fsdp", "zero1", "zero2"}),
          "--parallelism.fsdp_reshard_after_forward=" +
              draw.one_of<std::string>({"default", "always", "never"}),
          "--training.grad_store=" + draw.one_of<std::string>({"auto", "full", "sharded"}),
          "--parallelism.context_parallel_rotate_method=" +
              draw.one_of<std::string>(
                  {"allgather", "alltoall", ulysses_fits ? "ulysses" : "alltoall"}),
          "--parallelism.context_parallel_load_balancer=" +
              draw.one_of<std::string>({"headtail", "headtail", "none"}),
          fmt::format("--parallelism.disable_loss_parallel={}", draw.below(3) == 0),
          fmt::format("--activation_checkpoint.gather_again={}", draw.flip())};
}

Words degrees_of(const Mesh& mesh) {
  Words words;
  const char* keys[] = {"pipeline_parallel", "data_parallel_replicate", "data_parallel_shard",
                        "context_parallel", "tensor_parallel"};
  for (size_t a = 0; a < kNumMeshAxes; ++a)
    words.push_back(fmt::format("--parallelism.{}_degree={}", keys[a], mesh.degrees[a]));
  return words;
}

Job draw_job(uint64_t seed, uint64_t index) {
  Draw draw(seed, index);
  Job job{.model = draw.one_of<std::string>({"llama", "llama_tied", "gpt2"}),
          .mesh = draw_mesh(draw, index)};
  const int64_t microbatch = draw.one_of<int64_t>({1, 2});
  const bool is_pipeline = job.mesh.degree(MeshAxis::kPp) > 1;
  const int64_t local = microbatch * (is_pipeline ? draw.one_of<int64_t>({2, 3, 4}) : 1);
  const int64_t dp = job.mesh.degree({MeshAxis::kDpReplicate, MeshAxis::kDpShard});
  job.global_batch = dp * local * draw.one_of<int64_t>({1, 2, 3});
  job.is_bf16 = draw.below(4) == 0;
  job.common = {fmt::format("--training.seq_len={}", draw.one_of({32, 29})),
                fmt::format("--training.global_batch_size={}", job.global_batch),
                fmt::format("--optimizer.lr={}", kLr)};
  if (job.model == "gpt2" && draw.flip()) job.common.emplace_back("--model.dropout=0.1");
  job.distributed = degrees_of(job.mesh);
  job.distributed = job.distributed + draw_recompute(draw);
  job.distributed = job.distributed + draw_options(draw, job.mesh);
  job.distributed.push_back(fmt::format("--training.local_batch_size={}", local));
  job.distributed.push_back(
      fmt::format("--parallelism.pipeline_parallel_microbatch_size={}", microbatch));
  if (is_pipeline) {
    job.distributed.push_back(
        "--parallelism.pipeline_parallel_schedule=" +
        draw.one_of<std::string>({"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
                                  "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}));
  }
  return job;
}

class MeshCli : public ::testing::TestWithParam<uint64_t> {
 protected:
  // Trains into a folder of that name.
  std::filesystem::path train(const Job& job, const std::string& name, int num_ranks,
                              const Words& more) {
    auto dump = scratch_.path() / name;
    const Words words =
        train_words("llama_tiny", dump,
                    Words{"--model.hf_assets_path=" +
                              write_model(scratch_.path() / job.model, job.model).string(),
                          fmt::format("--training.steps={}", kSteps), "--checkpoint.enable",
                          "--checkpoint.last_save_in_hf"} +
                        job.common + more);
    run_ok(on_ranks(num_ranks, words));
    return dump;
  }

 private:
  ScratchFolder scratch_;
};

// |mesh - fp32| <= 1.5 |one rank's bf16 - fp32| + 1e-4 |fp32|
void expect_close(const Curve& mesh, const Curve& one, const Curve& exact) {
  ASSERT_EQ(mesh.loss.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(one.loss.size(), mesh.loss.size());
  ASSERT_EQ(exact.loss.size(), mesh.loss.size());
  for (size_t i = 0; i < mesh.loss.size(); ++i) {
    EXPECT_LE(std::abs(mesh.loss[i] - exact.loss[i]),
              1.5 * std::abs(one.loss[i] - exact.loss[i]) + 1e-4 * exact.loss[i])
        << "step " << i + 1 << ": " << mesh.loss[i] << ", one rank " << one.loss[i] << ", fp32 "
        << exact.loss[i];
  }
}

TEST_P(MeshCli, EqualsOneRank) {
  const Job job = draw_job(number_from("TOK_MESH_SEED", 1), GetParam());
  SCOPED_TRACE(fmt::format("{} {}{} {}", job.model, job.is_bf16 ? "bf16 " : "",
                           fmt::join(job.common, " "), fmt::join(job.distributed, " ")));
  const Words whole_batch{fmt::format("--training.local_batch_size={}", job.global_batch)};
  const Words bf16{"--training.mixed_precision_param=bfloat16"};
  const auto want = train(job, "want", 1, whole_batch);
  const auto got =
      train(job, "got", job.mesh.size(), job.distributed + (job.is_bf16 ? bf16 : Words{}));
  if (job.is_bf16) {
    const auto one = train(job, "one", 1, whole_batch + bf16);
    expect_close(read_curve(got), read_curve(one), read_curve(want));
    return;
  }
  expect_same_curve(got, want, kSteps);
  const std::string last = fmt::format("checkpoint/step-{}", kSteps);
  expect_same_parameters(got / last, want / last, 1e-3 * kLr * kSteps);
}

INSTANTIATE_TEST_SUITE_P(Drawn, MeshCli,
                         ::testing::Range(uint64_t{0}, number_from("TOK_MESH_COUNT", 20)));

TEST(MeshCliFault, RanksThatDoNotMatchTheMesh) {
  const ScratchFolder scratch;

  const struct {
    int num_ranks;
    Words degrees;
    const char* says;
  } cases[] = {
      {4,
       {"--parallelism.pipeline_parallel_degree=2", "--parallelism.data_parallel_shard_degree=3",
        "--parallelism.tensor_parallel_degree=2"},
       "parallelism.tensor_parallel_degree 2 = 12, but there are 4 ranks; with"},
      {3,
       {"--parallelism.context_parallel_degree=2"},
       "the other degrees make 2, but there are 3 ranks, no multiple of that"}};

  for (const auto& c : cases) {
    const auto run =
        run_program(on_ranks(c.num_ranks, train_words("llama_tiny", scratch.path(), c.degrees)));
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
    EXPECT_NE(run.err.find(c.says), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace tokamak

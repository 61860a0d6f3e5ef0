// Every axis alone: the same model text on a mesh equals one rank.
#include <gtest/gtest.h>

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

ModelSpec small_gpt2() {
  return {.family = &family_of("gpt2"),
          .name = "test",
          .flavor = "small",
          .vocab_size = 61,
          .dim = 32,
          .num_layers = 3,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 8,
          .mlp_dim = 48,
          .max_seq_len = 32,
          .tied = true};
}

MeshCase base(const ModelSpec& model) {
  return {.model = model, .seq_len = 16, .global_batch = 8, .num_microbatches = 1};
}

struct ScheduleCase {
  const char* schedule;
  int pp;
  int chunks;
  int64_t microbatches;
};

class EachSchedule : public ::testing::TestWithParam<ScheduleCase> {
 protected:
  MeshCase with(ModelSpec model) const {
    model.num_layers = 4;
    MeshCase c = base(model);
    c.num_microbatches = GetParam().microbatches;
    c.distribute.mesh.degrees = {GetParam().pp, 1, 1, 1, 1};
    set_pipeline(c, GetParam().schedule, GetParam().chunks);
    return c;
  }
};

TEST_P(EachSchedule, llama) {
  expect_as_one_rank(with(small_llama()));
}

TEST_P(EachSchedule, gradients) {
  expect_gradients_as_one_rank(with(small_llama()));
  expect_gradients_as_one_rank(with(small_gpt2()));
}

TEST_P(EachSchedule, tied_gpt2) {
  expect_as_one_rank(with(small_gpt2()));
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, EachSchedule,
    ::testing::Values(ScheduleCase{"GPipe", 2, 1, 4}, ScheduleCase{"1F1B", 2, 1, 4},
                      ScheduleCase{"1F1B", 4, 1, 4}, ScheduleCase{"Interleaved1F1B", 2, 2, 4},
                      ScheduleCase{"LoopedBFS", 2, 2, 4},
                      ScheduleCase{"InterleavedZeroBubble", 2, 1, 4},
                      ScheduleCase{"InterleavedZeroBubble", 2, 2, 4},
                      ScheduleCase{"ZBVZeroBubble", 2, 2, 4}, ScheduleCase{"DualPipeV", 2, 2, 4},
                      ScheduleCase{"VHalf", 2, 2, 4}, ScheduleCase{"VMin", 2, 2, 4}),
    [](const auto& test) {
      return std::string(test.param.schedule[0] == '1' ? "One" : "") + test.param.schedule + "_p" +
             std::to_string(test.param.pp) + "v" + std::to_string(test.param.chunks);
    });

// Stages with only the embedding, only norm and head, or the head alone, where tp leaves the
// embedding's output a pending sum.
TEST(ThinStages, equal_one_rank) {
  for (const std::vector<int>& stages :
       {std::vector<int>{0, 1, 1, 1, 2, 2}, std::vector<int>{0, 0, 0, 1, 1, 2},
        std::vector<int>{0, 1, 1, 2, 2, 2}}) {
    for (const ModelSpec& model : {small_llama(), small_gpt2()}) {
      MeshCase c = base(model);
      c.num_microbatches = 4;
      c.distribute.mesh.degrees = {3, 1, 1, 1, 2};
      set_pipeline(c, "1F1B", 1);
      c.distribute.stage_of_module = stages;
      expect_as_one_rank(c);
    }
  }
}

struct AxisCase {
  const char* name;
  MeshCoordinates degrees;
};

class EachAxis : public ::testing::TestWithParam<AxisCase> {};

TEST_P(EachAxis, llama) {
  MeshCase c = base(small_llama());
  c.distribute.mesh.degrees = GetParam().degrees;
  expect_as_one_rank(c);
}

TEST_P(EachAxis, gradients) {
  for (const ModelSpec& model : {small_llama(), small_gpt2()}) {
    MeshCase c = base(model);
    c.distribute.mesh.degrees = GetParam().degrees;
    expect_gradients_as_one_rank(c);
  }
}

TEST_P(EachAxis, padded_logits) {
  for (const bool tied : {false, true}) {
    for (const bool loss_parallel : {true, false}) {
      MeshCase c = base(small_gpt2());
      c.model.tied = tied;
      c.num_microbatches = 2;
      c.logits_multiple = 32;
      c.distribute.mesh.degrees = GetParam().degrees;
      c.distribute.loss_parallel = loss_parallel;
      expect_as_one_rank(c);
      expect_gradients_as_one_rank(c);
    }
  }
}

TEST_P(EachAxis, llama_accumulates) {
  MeshCase c = base(small_llama());
  c.num_microbatches = 2;
  c.distribute.mesh.degrees = GetParam().degrees;
  expect_as_one_rank(c);
}

TEST_P(EachAxis, gpt2) {
  MeshCase c = base(small_gpt2());
  c.distribute.mesh.degrees = GetParam().degrees;
  expect_as_one_rank(c);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, EachAxis,
    ::testing::Values(AxisCase{"ddp2", {1, 2, 1, 1, 1}}, AxisCase{"fsdp2", {1, 1, 2, 1, 1}},
                      AxisCase{"fsdp4", {1, 1, 4, 1, 1}}, AxisCase{"hsdp", {1, 2, 2, 1, 1}},
                      AxisCase{"tp2", {1, 1, 1, 1, 2}}, AxisCase{"tp3", {1, 1, 1, 1, 3}},
                      AxisCase{"tp4", {1, 1, 1, 1, 4}}, AxisCase{"cp2", {1, 1, 1, 2, 1}},
                      AxisCase{"fsdp_tp", {1, 1, 2, 1, 2}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tokamak

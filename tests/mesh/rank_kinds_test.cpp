// Kinds of ranks stand for all ranks: running one of each finds what running all does.
//
// TOK_MESH_SEED draws another list, TOK_MESH_COUNT its length.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/plan/rank_step.h"
#include "tokamak/run/plan_proof.h"

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/drawn_case.h"

namespace tokamak {
namespace {

MeshCase kinds_case(Draw& draw) {
  ModelSpec model = small_llama();
  model.num_layers = draw.one_of<int64_t>({3, 4});
  model.num_heads = 6;
  model.num_kv_heads = draw.one_of<int64_t>({1, 2, 6});
  model.vocab_size = draw.one_of<int64_t>({61, 64});
  return draw_case(draw, model);
}

uint64_t digest_of(const std::string& text) {
  return hash_of(std::as_bytes(std::span(text)));
}

struct AllRanks {
  Mesh mesh;
  std::vector<Plan> plans;
  int num_microbatches = 1;

  explicit AllRanks(const MeshCase& c)
      : mesh(c.distribute.mesh), num_microbatches(static_cast<int>(c.num_microbatches)) {
    const WholeGraphs whole(c.model, shape_of(c, 0), Target{});
    for (int rank = 0; rank < mesh.size(); ++rank)
      plans.push_back(PlannedRun(c.model, shape_of(c, rank), Target{}, whole).plan());
  }

  // The error that running all ranks finds, or "".
  std::string fault_of_all() const {
    std::vector<const Plan*> all;
    for (const Plan& plan : plans) all.push_back(&plan);
    return fault_of([&] { check_ranks(mesh, all, num_microbatches); });
  }

  // The error that running one rank of each kind finds, or "".
  std::string fault_of_kinds(int* num_kinds = nullptr) const {
    return fault_of([&] { check_one_of_each(num_kinds); });
  }

 private:
  void check_one_of_each(int* num_kinds) const {
    std::vector<RankStep> steps;
    std::vector<uint64_t> digests;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      steps.push_back(step_of(plans[rank], mesh, rank, num_microbatches));
      digests.push_back(digest_of(to_text(steps.back())));
    }
    const RankKinds kinds = find_kinds(mesh, digests);
    if (num_kinds != nullptr) *num_kinds = kinds.size();
    std::vector<RankStep> firsts;
    for (const int rank : kinds.first_ranks())
      firsts.push_back(parse_rank_step(to_text(steps[rank])));
    check_kinds(kinds, firsts);
  }

  template <class F>
  static std::string fault_of(F&& check) {
    try {
      check();
    } catch (const Bug& bug) {
      return bug.what();
    }
    return "";
  }
};

// Places of tasks that communicate.
std::vector<std::pair<int, int>> calls_of(const Plan& plan) {
  std::vector<std::pair<int, int>> calls;
  for (int s = 0; s < std::ssize(plan.segments); ++s) {
    const std::vector<Task>& tasks = plan.segments[s].tasks;
    for (int t = 0; t < std::ssize(tasks); ++t) {
      if (tasks[t].rules->is_communication) calls.emplace_back(s, t);
    }
  }
  return calls;
}

// Changes the plan as a fault of a pass might; equal draws change equal plans alike.
void damage(Plan& plan, Draw draw) {
  const auto calls = calls_of(plan);
  if (calls.empty()) return;
  const auto [s, t] = calls[static_cast<size_t>(draw.below(static_cast<int>(calls.size())))];
  std::vector<Task>& tasks = plan.segments[s].tasks;
  Task& task = tasks[t];
  switch (draw.below(5)) {
    case 0:
      task.label.origin.part += 1;
      break;
    case 1:  // it waits for none
      task.waits.clear();
      break;
    case 2:
      task.when = When::kLastMicrobatch;
      break;
    case 3: {
      const auto [other, at] =
          calls[static_cast<size_t>(draw.below(static_cast<int>(calls.size())))];
      Task& with = plan.segments[other].tasks[at];
      std::swap(task.op, with.op);
      std::swap(task.rules, with.rules);
      std::swap(task.in, with.in);
      std::swap(task.out, with.out);
      std::swap(task.label, with.label);
      break;
    }
    default:  // a later task of the segment begins after it
      if (t + 1 < std::ssize(tasks)) tasks.back().waits.push_back(t);
  }
}

// Damages one rank, all ranks with one coordinate of an axis, or all ranks alike.
void damage_some(AllRanks& ranks, Draw& draw) {
  const uint64_t how = static_cast<uint64_t>(draw.below(1 << 20));
  const int axis = draw.below(static_cast<int>(kNumMeshAxes) + 2);
  const int victim = draw.below(ranks.mesh.size());
  for (int rank = 0; rank < ranks.mesh.size(); ++rank) {
    const bool is_meant =
        axis == 0 ? rank == victim
        : axis > static_cast<int>(kNumMeshAxes)
            ? true
            : ranks.mesh.coordinates(rank)[axis - 1] == ranks.mesh.coordinates(victim)[axis - 1];
    if (is_meant) damage(ranks.plans[rank], Draw(how, 0));
  }
}

TEST(RankKinds, find_what_all_ranks_find_in_drawn_meshes) {
  const uint64_t seed = number_from("TOK_MESH_SEED", 1);
  int faults = 0;
  int sound = 0;
  int folded = 0;
  for (uint64_t i = 0; i < number_from("TOK_MESH_COUNT", 24); ++i) {
    Draw draw(seed + 77, i);
    const MeshCase c = kinds_case(draw);
    const AllRanks ranks(c);
    int num_kinds = 0;
    EXPECT_EQ(ranks.fault_of_all(), "") << describe(c);
    EXPECT_EQ(ranks.fault_of_kinds(&num_kinds), "") << describe(c);
    folded += num_kinds < ranks.mesh.size() ? 1 : 0;
    for (int k = 0; k < 12; ++k) {
      AllRanks damaged = ranks;
      damage_some(damaged, draw);
      const std::string of_all = damaged.fault_of_all();
      EXPECT_EQ(damaged.fault_of_kinds().empty(), of_all.empty())
          << describe(c) << ", damage " << k << ": " << of_all;
      ++(of_all.empty() ? sound : faults);
    }
  }
  EXPECT_GT(faults, 24);
  EXPECT_GT(sound, 0);
  EXPECT_GT(folded, 0);
}

// The ends of each axis tell the kinds of all ranks.
TEST(RankKinds, are_found_from_the_ends_of_axes_in_drawn_meshes) {
  const uint64_t seed = number_from("TOK_MESH_SEED", 1);
  for (uint64_t i = 0; i < number_from("TOK_MESH_COUNT", 24); ++i) {
    Draw draw(seed + 78, i);
    const MeshCase c = kinds_case(draw);
    if (c.distribute.mesh.size() == 1) continue;
    const Target target{.backend = "gpu", .arch = 90};
    const PlannedRun own(c.model, shape_of(c, 0), target);
    const PlannedKinds planned = prove_all_ranks(own, target, 1);
    const WholeGraphs whole(c.model, shape_of(c, 0), target);
    std::vector<uint64_t> digests;
    for (int rank = 0; rank < c.distribute.mesh.size(); ++rank)
      digests.push_back(
          digest_of(step_lines(PlannedRun(c.model, shape_of(c, rank), target, whole))));
    const RankKinds all = find_kinds(c.distribute.mesh, digests);
    for (size_t a = 1; a < kNumMeshAxes; ++a) {
      if (planned.kinds.num_classes[a] > 1) continue;
      EXPECT_EQ(all.num_classes[a], 1) << describe(c) << ", axis " << a;
    }
  }
}

TEST(RankKinds, are_few_where_axes_cut_evenly) {
  MeshCase c{.model = small_llama(), .seq_len = 16, .global_batch = 16, .num_microbatches = 1};
  c.model.num_kv_heads = 4;
  c.model.vocab_size = 64;
  c.distribute.mesh.degrees = {1, 2, 4, 1, 2};
  const PlannedRun own(c.model, shape_of(c, 0), Target{});
  const PlannedKinds planned = prove_all_ranks(own, Target{}, 2);
  EXPECT_EQ(planned.kinds.size(), 1);
  EXPECT_EQ(planned.num_planned, 4);  // the first rank, and the last one of each axis
}

}  // namespace
}  // namespace tokamak

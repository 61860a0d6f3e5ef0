// The parts of a run that several ranks share, on ranks as threads.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/comm/flight.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/train/report/run_log.h"
#include "tokamak/train/state/checkpoint_saver.h"
#include "tokamak/train/state/resume_point.h"
#include "tokamak/train/step_inputs.h"
#include "tokamak/train/together.h"
#include "tokamak/train/validator.h"

#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::ScratchFolder;

constexpr int64_t kRow = 1000;

// A rank that holds one row of a matrix "w" and one of its moment.
class RowRank {
 public:
  RowRank(int rank, int num_ranks) : backend_(cpu::make_backend({.threads = 1})) {
    for (const StateKind kind : {StateKind::kParameter, StateKind::kMoment}) {
      const std::string name = kind == StateKind::kParameter ? "w" : "optimizer.m.w";
      const StateId id = states_.declare(
          {.name = "row." + name, .type = {.dtype = DType::kF32, .dims = {kRow}}, .kind = kind});
      pieces_.push_back({.tensor = name,
                         .type = {.dtype = DType::kF32, .dims = {num_ranks, kRow}},
                         .kind = kind,
                         .box_begin = {rank, 0},
                         .box_end = {rank + 1, kRow},
                         .end = kRow,
                         .state = id});
    }
    layout_ = lay_out(states_);
    plan_.arena_bytes[ArenaKind::kState] = layout_.bytes;
    const Plan* plans[] = {&plan_};
    memory_ = std::make_unique<Memory>(*backend_, plans);
  }

  StateAccess access() const { return {*memory_, states_, layout_}; }

  std::span<const TensorPiece> pieces() const { return pieces_; }

  void fill(float value) const {
    const std::vector<float> row(kRow, value);
    for (const TensorPiece& p : pieces_) access().write(p.state, std::span<const float>(row));
  }

  float first() const { return access().read<float>(pieces_[0].state)[0]; }

 private:
  std::unique_ptr<Backend> backend_;
  StateTable states_;
  StateLayout layout_;
  Plan plan_;
  std::unique_ptr<Memory> memory_;
  std::vector<TensorPiece> pieces_;
};

CheckpointSaverOptions saver_options(const fs::path& folder, bool in_background) {
  return {.folder = folder,
          .keep_latest_k = 2,
          .in_background = in_background,
          .retry_after = std::chrono::duration<double>(0.0),
          .say = [](const std::string&, const std::string&) {}};
}

TEST(CheckpointSaver, InTheBackgroundSavesWhatWasThereWhenItBegan) {
  const ScratchFolder scratch;
  run_ranks(3, [&](World& world) {
    const RowRank rank(world.rank(), 3);
    CheckpointSaver saver(world, saver_options(scratch.path(), true));
    for (int64_t step = 1; step <= 4; ++step) {
      rank.fill(static_cast<float>(step));
      saver.save(rank.access(), rank.pieces(), {.step = step, .loader = "{}"}, {});
      EXPECT_TRUE(saver.is_saving());
      EXPECT_EQ(saver.step(), step);
      saver.await_copy();
      rank.fill(-1.0F);
    }
    saver.finish();
    EXPECT_FALSE(saver.is_saving());
    saver.finish();
    const RowRank other(world.rank(), 3);
    load_checkpoint(other.access(), other.pieces(), scratch.path() / "step-4", {});
    EXPECT_EQ(other.first(), 4.0F);
    load_checkpoint(other.access(), other.pieces(), scratch.path() / "step-3", {});
    EXPECT_EQ(other.first(), 3.0F);
  });
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 2U);
}

TEST(CheckpointSaver, ASaveThatIsGivenUpLeavesTheOneBefore) {
  const ScratchFolder scratch;
  run_ranks(2, [&](World& world) {
    const RowRank rank(world.rank(), 2);
    CheckpointSaver saver(world, saver_options(scratch.path(), true));
    saver.save(rank.access(), rank.pieces(), {.step = 1, .loader = "{}"}, {});
    saver.save(rank.access(), rank.pieces(), {.step = 2, .loader = "{}"}, {});
    world.barrier();
  });
  const auto newest = testing::newest_complete(scratch.path());
  ASSERT_TRUE(newest.entry.has_value());
  EXPECT_EQ(newest.entry->step, 1);
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 1U);
}

TEST(CheckpointSaver, AFailureInTheBackgroundIsToldWhenItEnds) {
  const ScratchFolder scratch;
  std::atomic<int> told = 0;
  run_ranks(2, [&](World& world) {
    const RowRank rank(world.rank(), 2);
    std::vector<TensorPiece> pieces(rank.pieces().begin(), rank.pieces().end());
    if (world.rank() == 1) pieces[1].offset = 7;  // leaves its State
    CheckpointSaver saver(world, saver_options(scratch.path(), true));
    saver.save(rank.access(), pieces, {.step = 1, .loader = "{}"}, {});
    try {
      saver.finish();
    } catch (const AgreedFailure& failure) {
      told += failure.code() == ExitCode::kBug ? 1 : 0;
    }
    EXPECT_FALSE(saver.is_saving());
  });
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(CheckpointSaver, AFailedSaveLeavesTheRunGoingUntilTheyAreTooMany) {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "checkpoint";
  for (const bool in_background : {false, true}) {
    std::ofstream(folder) << "in the way";
    run_ranks(2, [&](World& world) {
      const RowRank rank(world.rank(), 2);
      CheckpointSaver saver(world, saver_options(folder, in_background));
      saver.prepare(rank.access(), rank.pieces());
      const auto save = [&](int64_t step) {
        saver.save(rank.access(), rank.pieces(), {.step = step, .loader = "{}"}, {});
        saver.finish();
      };
      save(1);
      save(2);
      EXPECT_EQ(saver.num_failed(), 2);
      EXPECT_TRUE(saver.wants_retry());
      world.barrier();
      if (world.rank() == 0) fs::remove(folder);
      world.barrier();
      save(3);
      EXPECT_EQ(saver.num_failed(), 0);
      world.barrier();
      if (world.rank() == 0) {
        fs::remove_all(folder);
        std::ofstream(folder) << "in the way";
      }
      world.barrier();
      save(4);
      save(5);
      EXPECT_THROW(save(6), SystemError);
    });
    fs::remove(folder);
  }
}

void save_rows(const fs::path& folder, int64_t step, int num_ranks, bool resumable = true) {
  run_ranks(num_ranks, [&](World& world) {
    const RowRank rank(world.rank(), num_ranks);
    rank.fill(static_cast<float>(step));
    save_checkpoint(world, rank.access(), rank.pieces(), folder, {.step = step, .loader = "{}"},
                    {.resumable = resumable});
  });
}

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int value = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(value ^ 1));
}

TEST(CheckpointSaver, ThatAPeerIsLostIsNoFailedSave) {
  const ScratchFolder folder;
  std::mutex mutex;
  std::vector<std::string> said;
  const auto job = [&](World& world) {
    CheckpointSaver saver(world,
                          {.folder = folder.path(), .say = [&](const auto& text, const auto&) {
                             const std::lock_guard lock(mutex);
                             said.push_back(text);
                           }});
    if (world.rank() == 1) throw SystemError("a dead rank");
    saver.attempt(4, [&] { world.barrier(); });
    ADD_FAILURE() << "training continues without rank 1";
  };
  EXPECT_THROW(run_ranks(2, job), SystemError);
  EXPECT_TRUE(said.empty()) << said[0];
}

TEST(ResumePoint, DamageThatOnlyOneRankSeesPassesTheCheckpointOverOnAll) {
  const ScratchFolder scratch;
  const fs::path& folder = scratch.path();
  for (const int64_t step : {1, 2, 3}) save_rows(folder, step, 3);
  save_rows(folder, 4, 3, false);
  flip_last_byte(folder / "step-3" / "shard-00002.safetensors");
  fs::remove(folder / "step-2" / "shard-00000.safetensors");
  for (const int num_ranks : {1, 2, 4}) {
    run_ranks(num_ranks, [&](World& world) {
      std::vector<std::string> skipped;
      const ResumePoint point = find_resume_point(
          world, folder,
          [&](const fs::path& path) {
            CheckpointReader(path).verify(world.rank(), world.size(), 2);
          },
          [&](const std::string& line) { skipped.push_back(line); });
      ASSERT_TRUE(point.path.has_value());
      EXPECT_EQ(*point.path, folder / "step-1");
      ASSERT_EQ(skipped.size(), 2U);
      EXPECT_NE(skipped[0].find("step-3/shard-00002.safetensors: damaged"), std::string::npos);
      EXPECT_NE(skipped[0].find("(\"w\""), std::string::npos) << skipped[0];
      EXPECT_NE(skipped[1].find("is absent"), std::string::npos);
      EXPECT_EQ(point.newest_of_any_kind, folder / "step-4");
      EXPECT_EQ(find_finished_run(world, folder, 4).step, 4);
    });
  }
}

TEST(FinishedRun, ADamagedModelDoesNotCount) {
  const ScratchFolder scratch;
  save_rows(scratch.path(), 4, 3, false);
  flip_last_byte(scratch.path() / "step-4" / "shard-00001.safetensors");
  run_ranks(2, [&](World& world) {
    const FinishedRun run = find_finished_run(world, scratch.path(), 4);
    EXPECT_FALSE(run.step.has_value());
    ASSERT_EQ(run.damaged.size(), 1U);
    EXPECT_NE(run.damaged[0].find("shard-00001.safetensors: damaged"), std::string::npos);
  });
}

TEST(ResumePoint, AnEmptyFolderHasNone) {
  const ScratchFolder scratch;
  run_ranks(2, [&](World& world) {
    const auto nothing = [](const auto&) {};
    const ResumePoint point = find_resume_point(world, scratch.path() / "none", nothing, nothing);
    EXPECT_FALSE(point.path.has_value());
    EXPECT_TRUE(point.newest_of_any_kind.empty());
    EXPECT_FALSE(find_finished_run(world, scratch.path(), 1).step.has_value());
  });
}

TEST(Counts, AreSummedOverRanksThatReadDifferentRows) {
  const Mesh mesh{.degrees = {1, 2, 1, 1, 2}};
  run_ranks(4, [&](World& world) {
    EXPECT_EQ(sum_over_rows(world, mesh, 10 + dp_index(mesh, world.rank())), 21);
    const auto mine = world.rank() == 1 ? std::nullopt : std::optional<int64_t>(1);
    EXPECT_EQ(sum_over_rows(world, mesh, mine), std::nullopt) << "rank 1 still waits for tokens";
  });
}

TEST(StepInputs, LeaveOutWhatARankDoesNotHold) {
  const auto backend = cpu::make_backend({.threads = 1});
  StateTable states;
  const auto declare = [&](const char* name, DType dtype, Dims dims, bool is_absent) {
    return states.declare({.name = name,
                           .type = {.dtype = dtype, .dims = std::move(dims)},
                           .kind = StateKind::kInput,
                           .is_absent = is_absent});
  };
  const StepState state{.tokens = declare("tokens", DType::kI32, {2, 4}, false),
                        .labels = declare("labels", DType::kI32, {2, 4}, true),
                        .rows = declare("rows", DType::kI64, {2}, false),
                        .scalars = declare("scalars", DType::kF64, {4}, false)};
  const StateLayout layout = lay_out(states);
  Plan plan;
  plan.arena_bytes[ArenaKind::kState] = layout.bytes;
  const Plan* plans[] = {&plan};
  const Memory memory(*backend, plans);
  const StateAccess access(memory, states, layout);
  const SequenceShare share{.seq_len = 3, .padded_len = 8, .num_ranks = 2, .rank = 1};
  const StepInputs inputs(access, state, share);
  Batch batch{.rows = 2, .seq_len = 3, .valid_rows = 2};
  batch.tokens = {1, 2, 3, 4, 5, 6};
  batch.labels = {2, 3, 4, 5, 6, 7};
  inputs.write_batch(batch, 40);
  inputs.write_loss_scale(1.0F);
  inputs.write_scalars(0.5, 3, 2, {.beta1 = 0.5, .beta2 = 0.25});
  EXPECT_EQ(access.read<int32_t>(state.tokens), (std::vector<int32_t>{3, 0, 0, 0, 6, 0, 0, 0}));
  EXPECT_EQ(access.read<int64_t>(state.rows), (std::vector<int64_t>{40, 41}));
  EXPECT_EQ(access.read<double>(state.scalars), (std::vector<double>{0.5, 0.75, 0.9375, 3.0}));
}

TEST(RunLog, RankZeroSpeaksForAll) {
  const ScratchFolder scratch;
  const ModelSpec model = flavor_spec("llama3", "debugmodel");
  int lines = 0;
  LoggingOptions options{.dump_folder = scratch.path(), .log_freq = 2};
  options.print = [&](const std::string&, const std::string&) { ++lines; };
  for (const int rank : {1, 0}) {
    RunLog log(options, model, 16, rank, 4);
    log.open(0, true, std::chrono::system_clock::now());
    for (int64_t step = 1; step <= 4; ++step)
      log.add_step({.step = step, .loss = 1.5, .tokens_seen = 64 * step}, 64);
    log.add_validation(4, 2.5, 100, 1e-3);
    EXPECT_EQ(lines, rank == 0 ? 4 : 0);
    EXPECT_EQ(path_exists(scratch.path() / "metrics.jsonl"), rank == 0);
  }
  const std::string text = read_file(scratch.path() / "metrics.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_NE(text.find("\"world_size\": 4"), std::string::npos);
  EXPECT_NE(read_file(scratch.path() / "validation.jsonl").find("\"tps\": 25000.0"),
            std::string::npos);
}

TEST(Together, WhatAllMetIsToldOnce) {
  run_ranks(2, [](World& world) {
    const auto same = []() -> std::string { throw Error("no such file"); };
    EXPECT_EQ(testing::error_of([&] { all_together(world, same); }), "no such file");
    try {
      fail_together(world, [] { throw Diverged("NaN"); });
      FAIL();
    } catch (const AgreedFailure& failure) {
      EXPECT_EQ(failure.code(), ExitCode::kDiverged);
    }
    fail_together(world, [] {});
  });
}

// The plain loops are chosen only where an op has no other kernel for a CPU.
TEST(Together, WorkMayTakeLongerThanRanksWaitForEachOther) {
  std::atomic<int> beats = 0;
  const auto job = [&](World& world) {
    const auto texts = all_together_for_long(world, [&] {
      if (world.rank() != 1) return std::string("done");
      const uint64_t ticks = world.flights().ticks;
      await_time(2.5, std::chrono::steady_clock::now());
      EXPECT_EQ(world.flights().ticks, ticks) << "telling others is no progress";
      EXPECT_TRUE(world.flights().is_awaited);
      ++beats;
      return std::string("late");
    });
    EXPECT_EQ(texts, (std::vector<std::string>{"done", "late", "done"}));
    EXPECT_FALSE(world.flights().is_awaited);
    const auto text = on_rank_zero_for_long(world, [] { return std::string("zero"); });
    EXPECT_EQ(text, "zero");
    EXPECT_THROW(on_rank_zero_for_long(world, []() -> std::string { throw Error("no"); }), Error);
    EXPECT_THROW(work_together(world,
                               [&] {
                                 if (world.rank() == 2)
                                   throw SystemError("mine");
                                 else
                                   throw Error("other");
                               }),
                 std::runtime_error);
  };
  run_ranks(3, job, {.timeout = std::chrono::milliseconds(1500)});
  EXPECT_EQ(beats, 1);
}

TEST(PlannedRun, Gpt2TakesTheFasterKernelOfEachOp) {
  ModelSpec model = flavor_spec("gpt2", "124M");
  model.num_layers = 2;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const RunShape shape{.training = {.batch = 2, .seq_len = 64, .compute = compute}};
    const PlannedRun run(model, shape, cpu::make_backend({.threads = 1})->target());
    for (const Segment& segment : run.plan().segments) {
      for (const Task& task : segment.tasks) {
        const auto variants = task.rules->variants();
        const bool has_other =
            std::any_of(variants.begin(), variants.end(), [](const Variant& variant) {
              return variant.backend == "cpu" && variant.name != kCpuReference.name;
            });
        EXPECT_TRUE(!has_other || task.variant->name != kCpuReference.name)
            << task.rules->name << " in " << name_of(compute);
      }
    }
  }
}

}  // namespace
}  // namespace tokamak

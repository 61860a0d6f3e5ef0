// Steps kept in memory: what a rank that starts again finds there.
#include "tokamak/train/state/step_memory.h"

#include <fstream>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/cpu/backend.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::ScratchFolder;

// More than two parts, of which the last is short.
constexpr int64_t kElements = 600'001;

// A rank of one process: its State, and what it says.
class Process {
 public:
  Process(World& world, const fs::path& folder, const std::string& digest = "a")
      : world_(world), backend_(cpu::make_backend({.threads = 1})) {
    states_.declare({.name = "weight",
                     .type = {.dtype = DType::kF32, .dims = {kElements}},
                     .kind = StateKind::kParameter});
    layout_ = lay_out(states_);
    plan_.arena_bytes[ArenaKind::kState] = layout_.bytes;
    const Plan* plans[] = {&plan_};
    buffers_ = std::make_unique<Memory>(*backend_, plans);
    pieces_ = whole_pieces(states_);
    memory_ = std::make_unique<StepMemory>(
        world, access(), pieces_,
        StepMemoryOptions{
            .folder = folder,
            .config_digest = digest,
            .text_bytes = 100,
            .num_threads = 2,
            .patience = std::chrono::seconds(60),
            .say = [this](const std::string& text, const std::string&) { said += text; }});
  }

  StateAccess access() const { return {*buffers_, states_, layout_}; }

  std::vector<float> values(int64_t step) const {
    std::vector<float> all(kElements);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(i) + static_cast<float>(1000 * step + world_.rank());
    return all;
  }

  void train(int64_t step) {
    memory_->await_copy();
    access().write<float>(StateId{0}, values(step));
    memory_->seal();
    memory_->keep({.step = step, .tokens_seen = 10 * step, .seed = 5, .loader = "{}"});
  }

  // Expects to go on from `step`; 0 = that there is none.
  void expect_restored(int64_t step) {
    const auto state = memory_->restore();
    ASSERT_EQ(state.has_value(), step > 0);
    if (step == 0) return;
    EXPECT_EQ(state->step, step);
    EXPECT_EQ(state->tokens_seen, 10 * step);
    EXPECT_EQ(state->seed, 5U);
    EXPECT_EQ(state->loader, "{}");
    EXPECT_EQ(access().read<float>(StateId{0}), values(step));
  }

  StepMemory& memory() { return *memory_; }

  std::string said;

 private:
  World& world_;
  std::unique_ptr<Backend> backend_;
  StateTable states_;
  StateLayout layout_;
  Plan plan_;
  std::unique_ptr<Memory> buffers_;
  std::vector<TensorPiece> pieces_;
  std::unique_ptr<StepMemory> memory_;
};

// Two ranks that keep steps 1, 2, ... up to their own last one, and end.
void train_to(const fs::path& folder, int64_t last, int64_t last_of_rank_1) {
  run_ranks(2, [&](World& world) {
    Process process(world, folder);
    process.expect_restored(0);
    for (int64_t step = 1; step <= (world.rank() == 0 ? last : last_of_rank_1); ++step)
      process.train(step);
    process.memory().seal();
  });
}

void expect_restored(const fs::path& folder, int64_t step) {
  run_ranks(2, [&](World& world) { Process(world, folder).expect_restored(step); });
}

void flip(const fs::path& file, int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const int byte = stream.get();
  stream.seekp(offset);
  stream.put(static_cast<char>(byte ^ 4));
}

TEST(StepMemory, GoesOnFromTheNewestStepThatAllRanksHold) {
  const ScratchFolder scratch;
  train_to(scratch.path(), 5, 4);
  expect_restored(scratch.path(), 4);
  for (const char* const file : {"rank-0.0", "rank-0.1", "rank-1.0", "rank-1.1"}) {
    EXPECT_EQ(fs::status(scratch.path() / file).permissions(),
              fs::perms::owner_read | fs::perms::owner_write);
  }
}

TEST(StepMemory, WritesOverTheOlderCopyAfterARestart) {
  const ScratchFolder scratch;
  train_to(scratch.path(), 4, 3);
  run_ranks(2, [&](World& world) {
    Process process(world, scratch.path());
    process.expect_restored(3);
    process.train(4);  // and dies before the copy of step 5 is whole on rank 1
    if (world.rank() == 0) process.train(5);
    process.memory().seal();
  });
  expect_restored(scratch.path(), 4);
}

TEST(StepMemory, PassesDamagedCopiesOver) {
  const ScratchFolder scratch;
  train_to(scratch.path(), 4, 4);
  const int64_t end = static_cast<int64_t>(fs::file_size(scratch.path() / "rank-1.1"));
  flip(scratch.path() / "rank-1.1", end - 6000);  // step 4 on rank 1, in its data
  run_ranks(2, [&](World& world) {
    Process process(world, scratch.path());
    process.expect_restored(3);
    EXPECT_EQ(process.said, world.rank() == 0 ? "Step 4 in memory is damaged on rank 1" : "");
  });
  flip(scratch.path() / "rank-0.0", 8);  // step 3 on rank 0, in its header
  expect_restored(scratch.path(), 0);
}

TEST(StepMemory, HoldsNothingForOtherRunsOrAfterForgetting) {
  const ScratchFolder scratch;
  train_to(scratch.path(), 2, 2);
  run_ranks(2, [&](World& world) { Process(world, scratch.path(), "b").expect_restored(0); });
  run_ranks(2, [&](World& world) {
    Process process(world, scratch.path());
    process.expect_restored(2);
    if (world.rank() == 1) process.memory().forget();
  });
  expect_restored(scratch.path(), 0);
}

TEST(StepMemory, KeepsNothingWhereARankHasNoRoom) {
  const ScratchFolder scratch;
  run_ranks(2, [&](World& world) {
    const fs::path folder = world.rank() == 0 ? scratch.path() : scratch.path() / "absent";
    Process process(world, folder);
    if (world.rank() == 0) {
      EXPECT_EQ(process.said.rfind("--keep-last-step: rank 1 cannot open ", 0), 0U) << process.said;
    }
    process.train(1);
    process.expect_restored(0);
  });
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

}  // namespace
}  // namespace tokamak

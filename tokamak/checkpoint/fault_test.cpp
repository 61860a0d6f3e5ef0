// Kills and starves the writers at every system call that changes the disk. The calls of the C
// library are replaced in this program: a counter runs while armed, and the k-th call either ends
// the process or fails.

#include <cerrno>
#include <cstdarg>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/checkpoint/test_tensors.h"

namespace {

enum class Fault { kNone, kKill, kKillAfter, kNoSpace, kNoSwap };

struct Injector {
  Fault fault = Fault::kNone;
  int at = 0;
  int calls = 0;
  std::set<std::string> unsynced;
  bool renamed_unsynced = false;
};

Injector injector;

std::string path_of(int fd) {
  char text[512] = "";
  const auto n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof text - 1);
  return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
}

bool is_ours(const std::string& path) {
  return path.find("tokamak_Fault") != std::string::npos;
}

// True if this call shall fail; does not return if the process shall die before it.
bool fails(bool takes_space) {
  if (injector.fault == Fault::kNone) return false;
  const bool here = injector.calls++ == injector.at;
  if (here && injector.fault == Fault::kKill) ::_exit(99);
  if (injector.fault != Fault::kNoSpace || !takes_space || injector.calls <= injector.at) {
    return false;
  }
  errno = ENOSPC;
  return true;
}

template <class T>
T after(T result) {
  if (injector.fault == Fault::kKillAfter && injector.calls == injector.at + 1) ::_exit(99);
  return result;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static const auto kNext = real<ssize_t (*)(int, const void*, size_t)>("write");
  const std::string path = injector.fault == Fault::kNone ? "" : path_of(fd);
  if (!is_ours(path)) return kNext(fd, data, size);
  if (fails(true)) return -1;
  injector.unsynced.insert(path);
  // Half of what is asked, so that short writes are met too.
  return after(kNext(fd, data, size > 1 ? size / 2 : size));
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  static const auto kNext = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const std::string path = injector.fault == Fault::kNone ? "" : path_of(fd);
  if (!is_ours(path)) return kNext(fd, data, size, at);
  if (fails(true)) return -1;
  injector.unsynced.insert(path);
  return after(kNext(fd, data, size > 1 ? size / 2 : size, at));
}

int ftruncate(int fd, off_t length) noexcept {
  static const auto kNext = real<int (*)(int, off_t)>("ftruncate");
  if (fails(true)) return -1;
  return after(kNext(fd, length));
}

// Counted, never done: a killed process does not lose what the system holds.
int fsync(int fd) {
  if (fails(true)) return -1;
  if (injector.fault != Fault::kNone) injector.unsynced.erase(path_of(fd));
  return after(0);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  static const auto kNext = real<int (*)(int, int, off_t, off_t)>("fallocate");
  if (fails(true)) return -1;
  return after(kNext(fd, mode, offset, length));
}

int rename(const char* from, const char* to) noexcept {
  static const auto kNext = real<int (*)(const char*, const char*)>("rename");
  if (fails(false)) return -1;
  for (const std::string& path : injector.unsynced) {
    injector.renamed_unsynced |= path.starts_with(from);
  }
  return after(kNext(from, to));
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  static const auto kNext =
      real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  if (injector.fault == Fault::kNoSwap) {
    errno = EINVAL;
    return -1;
  }
  if (fails(false)) return -1;
  return after(kNext(from_fd, from, to_fd, to, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto kNext = real<int (*)(const char*, mode_t)>("mkdir");
  if (fails(true)) return -1;
  return after(kNext(path, mode));
}

int unlinkat(int fd, const char* path, int flags) noexcept {
  static const auto kNext = real<int (*)(int, const char*, int)>("unlinkat");
  if (fails(false)) return -1;
  return after(kNext(fd, path, flags));
}

}  // extern "C"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::pattern;
using testing::ScratchFolder;

std::vector<TensorSource> state(int64_t step) {
  const auto seed = static_cast<uint32_t>(step);
  return {pattern("w", DType::kF32, {30, 10}, seed), pattern("b", DType::kBF16, {7}, seed)};
}

void save(const fs::path& folder, int64_t step) {
  CheckpointWriter writer(folder, step, {.rank = 0, .token = "", .chunk_bytes = 256});
  for (TensorSource& tensor : state(step)) writer.add(std::move(tensor));
  const ShardSummary shard = writer.finish_shard();
  writer.commit(std::vector{shard},
                {.step = step, .resumable = true, .config_digest = "", .sections = {}});
}

// Three ranks, each with a shard of its own, and one that holds nothing.
void save_on_ranks(const fs::path& folder, int64_t step) {
  const auto tensors = state(step);
  const TensorSource& w = tensors[0];
  std::vector<std::unique_ptr<CheckpointWriter>> ranks;
  std::vector<ShardSummary> shards;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<CheckpointWriter>(
        folder, step,
        CheckpointWriterOptions{.rank = rank, .token = std::to_string(step), .chunk_bytes = 256}));
    if (rank == 0) ranks[0]->add(tensors[1]);
    if (rank < 3) {
      const Slice rows = slice_of(Box{.begin = {rank * 10, 0}, .end = {rank * 10 + 10, 10}});
      TensorSource part = w;
      part.dims = {100};
      part.read = [w, rank](int64_t first, std::span<std::byte> out) {
        w.read(rank * 100 + first, out);
      };
      ranks.back()->add("w", w.type(), rows, part);
    }
  }
  shards.reserve(ranks.size());
  for (const auto& rank : ranks)
    shards.push_back(parse_shard_summary(to_text(rank->finish_shard()), "summary"));
  ranks[0]->commit(shards, {.step = step, .resumable = true, .config_digest = "", .sections = {}});
}

using Save = void (*)(const fs::path& folder, int64_t step);

// Runs `call` in a child that dies at its k-th call; true once the child ends by itself.
bool survives(Fault fault, int k, const std::function<void()>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    injector = {.fault = fault, .at = k, .calls = 0, .unsynced = {}, .renamed_unsynced = false};
    call();
    const bool torn = injector.renamed_unsynced;
    injector.fault = Fault::kNone;
    ::_exit(torn ? 98 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 98) << "renamed before it was synced";
  return WEXITSTATUS(status) == 0;
}

int64_t newest_verified(const fs::path& folder) {
  const auto newest = testing::newest_complete(folder);
  EXPECT_TRUE(newest.skipped.empty()) << newest.skipped[0];
  if (!newest.entry) return -1;
  const CheckpointReader reader(newest.entry->path);
  for (const TensorSource& tensor : state(newest.entry->step)) {
    EXPECT_EQ(read_all(reader.source(tensor.name)), read_all(tensor));
  }
  return newest.entry->step;
}

// The folder after a crash at every point of saving step 2 over step 1, then a save by the next
// run.
void expect_old_or_new(const fs::path& root, Fault fault, Save save) {
  bool done = false;
  bool was_new = false;
  int k = 0;
  for (; !done && k < 1000; ++k) {
    const fs::path folder = root / std::to_string(k);
    save(folder, 1);
    done = survives(fault, k, [&] { save(folder, 2); });
    const int64_t step = newest_verified(folder);
    ASSERT_TRUE(step == 1 || step == 2) << "killed at call " << k;
    ASSERT_TRUE(step == 2 || !was_new) << "old again after call " << k;
    was_new = step == 2;
    save(folder, 3);
    ASSERT_EQ(newest_verified(folder), 3);
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_EQ(entry.path().filename().string().find('.'), std::string::npos) << entry.path();
    }
    fs::remove_all(folder);
  }
  EXPECT_TRUE(was_new);
  EXPECT_GT(k, 15) << "too few calls were met";
}

TEST(Fault, a_kill_before_any_call_leaves_the_old_or_the_new_checkpoint) {
  const ScratchFolder folder;
  expect_old_or_new(folder.path(), Fault::kKill, save);
}

TEST(Fault, a_kill_of_any_rank_leaves_the_old_or_the_new_checkpoint) {
  const ScratchFolder folder;
  expect_old_or_new(folder.path(), Fault::kKill, save_on_ranks);
}

TEST(Fault, a_kill_after_any_call_leaves_the_old_or_the_new_checkpoint) {
  const ScratchFolder folder;
  expect_old_or_new(folder.path(), Fault::kKillAfter, save);
}

TEST(Fault, a_kill_while_the_same_step_is_saved_again_loses_nothing) {
  const ScratchFolder folder;
  save(folder.path(), 1);
  bool done = false;
  for (int k = 0; !done && k < 1000; ++k) {
    done = survives(Fault::kKill, k, [&] { save(folder.path(), 1); });
    ASSERT_EQ(newest_verified(folder.path()), 1) << "killed at call " << k;
  }
  EXPECT_TRUE(done);
}

TEST(Fault, a_step_is_replaced_where_the_filesystem_cannot_swap) {
  const ScratchFolder folder;
  save(folder.path(), 1);
  EXPECT_TRUE(survives(Fault::kNoSwap, 0, [&] { save(folder.path(), 1); }));
  EXPECT_EQ(newest_verified(folder.path()), 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

void expect_machine_faults(const fs::path& folder, Save save) {
  save(folder, 1);
  int k = 0;
  for (bool done = false; !done && k < 1000; ++k) {
    injector = {
        .fault = Fault::kNoSpace, .at = k, .calls = 0, .unsynced = {}, .renamed_unsynced = false};
    try {
      save(folder, 2);
      done = true;
    } catch (const SystemError& error) {
      EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
    }
    injector.fault = Fault::kNone;
    const int64_t step = newest_verified(folder);
    ASSERT_TRUE(done ? step == 2 : step == 1 || step == 2) << "full at call " << k;
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_EQ(entry.path().filename().string().find('.'), std::string::npos) << entry.path();
    }
    if (!done) fs::remove_all(folder / "step-2");
  }
  EXPECT_GT(k, 10) << "too few calls were met";
}

TEST(Fault, a_disk_full_at_any_call_is_a_machine_fault_that_leaves_the_old_checkpoint) {
  const ScratchFolder folder;
  expect_machine_faults(folder.path() / "one", save);
  expect_machine_faults(folder.path() / "ranks", save_on_ranks);
}

TEST(Fault, a_disk_full_while_weights_are_exported_keeps_the_old_export) {
  const ScratchFolder folder;
  save_hf_weights(folder.path(), state(1));
  for (int k = 0; k < 1000; ++k) {
    injector = {
        .fault = Fault::kNoSpace, .at = k, .calls = 0, .unsynced = {}, .renamed_unsynced = false};
    bool done = false;
    try {
      save_hf_weights(folder.path(), state(2));
      done = true;
    } catch (const SystemError&) {
    }
    injector.fault = Fault::kNone;
    const HfWeights weights(folder.path());
    const auto got = read_all(source_of(*weights.find("w")));
    ASSERT_TRUE(got == read_all(state(1)[0]) || got == read_all(state(2)[0])) << k;
    if (done) return;
  }
  FAIL() << "never ended";
}

TEST(Fault, a_kill_during_purge_leaves_only_whole_checkpoints) {
  const ScratchFolder root;
  bool done = false;
  for (int k = 0; !done && k < 1000; ++k) {
    const fs::path folder = root.path() / std::to_string(k);
    for (const int64_t step : {1, 2, 3}) save(folder, step);
    done = survives(Fault::kKill, k, [&] { purge(folder, 1, 3); });
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      EXPECT_EQ(entry.kind, CheckpointKind::kResumable) << entry.problem;
      CheckpointReader(entry.path).verify();
    }
    ASSERT_EQ(newest_verified(folder), 3);
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace tokamak

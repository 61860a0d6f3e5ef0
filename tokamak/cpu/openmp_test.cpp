#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <unistd.h>

#include "tests/fixtures/processes.h"

namespace tokamak::cpu {
namespace {

// Where the object lies that has the function at `address`.
const void* base_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// oneDNN looks its functions up in the same order.
TEST(OpenMp, FunctionsAreThoseOfTheProgram) {
  static const int kOurs = 0;
  for (const char* name :
       {"GOMP_parallel", "GOMP_barrier", "omp_get_max_threads", "omp_get_num_threads",
        "omp_get_thread_num", "omp_in_parallel", "omp_set_num_threads"}) {
    EXPECT_EQ(base_of(::dlsym(RTLD_DEFAULT, name)), base_of(&kOurs)) << name;
  }
}

TEST(OpenMp, ARegionHasOneOfEachThread) {
  for (const int threads : {3, 5, 2}) {  // a larger team, then a part of it
    std::vector<std::atomic<int>> count(threads);
    for (int round = 0; round < 1000; ++round) {
#pragma omp parallel num_threads(threads)
      {
        if (omp_get_num_threads() == threads && omp_in_parallel() != 0)
          ++count[omp_get_thread_num()];
      }
    }
    for (const std::atomic<int>& c : count) EXPECT_EQ(c, 1000);
  }
  EXPECT_EQ(omp_in_parallel(), 0);
  EXPECT_EQ(omp_get_num_threads(), 1);
}

TEST(OpenMp, NestedRegionsHaveOneThread) {
  std::atomic<int> inner = 0;
  std::atomic<int> alike = 0;
#pragma omp parallel num_threads(3)
  {
    const int outer = omp_get_thread_num();
#pragma omp parallel num_threads(3)
    inner += omp_get_num_threads();
    if (omp_get_thread_num() == outer && omp_get_num_threads() == 3) ++alike;
  }
  EXPECT_EQ(inner, 3);
  EXPECT_EQ(alike, 3);
}

TEST(OpenMp, NoThreadPassesABarrierAlone) {
  constexpr int kThreads = 4;
  std::atomic<int> arrived = 0;
  std::atomic<int> early = 0;
#pragma omp parallel num_threads(kThreads)
  for (int round = 1; round <= 500; ++round) {
    ++arrived;
#pragma omp barrier
    if (arrived < round * kThreads) ++early;
#pragma omp barrier
  }
  EXPECT_EQ(early, 0);
  EXPECT_EQ(arrived, 500 * kThreads);
}

TEST(OpenMp, ThreadsWithTeamsOfTheirOwnDoNotMeet) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> masters(4);
  for (int i = 0; i < 4; ++i) {
    masters[i] = std::thread([&wrong, threads = 1 + i] {
      omp_set_num_threads(threads);
      for (int round = 0; round < 200; ++round) {
        std::atomic<int> sum = 0;
#pragma omp parallel
        sum += 1 + omp_get_thread_num();
        if (sum != threads * (threads + 1) / 2 || omp_get_max_threads() != threads) ++wrong;
      }
    });
  }
  for (std::thread& master : masters) master.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OpenMp, AForkEndsWithoutItsWorkers) {
#pragma omp parallel num_threads(3)
  EXPECT_LT(omp_get_thread_num(), 3);
  EXPECT_EXIT(std::exit(7), ::testing::ExitedWithCode(7), "");
}

// Runs a region in a fork, where the team has lost its workers, and ends.
void run_alone() {
  int sum = 0;
#pragma omp parallel num_threads(3)
  sum += 1 + omp_get_thread_num();
  std::exit(sum);
}

TEST(OpenMp, PartsOfThreadsThatDoNotComeAreRun) {
#pragma omp parallel num_threads(3)
  EXPECT_LT(omp_get_thread_num(), 3);
  EXPECT_EXIT(run_alone(), ::testing::ExitedWithCode(1 + 2 + 3), "");
}

// Whether all threads of this process but this one wait without a core.
bool are_others_asleep() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t id = std::stoi(thread.path().filename());
    if (id != ::gettid() && !is_asleep(id)) return false;
  }
  return true;
}

TEST(OpenMp, ThreadsSleepSoonAndWake) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> sum = 0;
#pragma omp parallel num_threads(3)
    ++sum;
    EXPECT_EQ(sum, 3);
    await(are_others_asleep, "the workers to sleep");
  }
}

TEST(OpenMp, NobodySpinsForAThreadThatIsLate) {
#pragma omp parallel num_threads(3)
  if (omp_get_thread_num() == 2) await(are_others_asleep, "the others to sleep");
}

TEST(OpenMp, PartsAndBarriersHoldBesideBusyThreads) {
  std::atomic<bool> is_over = false;
  std::vector<std::thread> busy(2 * std::max(1U, std::thread::hardware_concurrency()));
  for (std::thread& b : busy) {
    b = std::thread([&] {
      while (!is_over) continue;
    });
  }
  int wrong = 0;
  for (const int threads : {2, 3, 4}) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
    for (int region = 0; std::chrono::steady_clock::now() < end; ++region) {
      std::vector<int> count(threads, 0);
      std::atomic<int> arrived = 0;
      std::atomic<int> early = 0;
#pragma omp parallel num_threads(threads)
      {
        ++count[omp_get_thread_num()];
        if (region % 100 == 99) {
          ++arrived;
#pragma omp barrier
          if (arrived != threads) ++early;
        }
      }
      if (early != 0 || count != std::vector<int>(threads, 1)) ++wrong;
    }
  }
  is_over = true;
  for (std::thread& b : busy) b.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tokamak::cpu

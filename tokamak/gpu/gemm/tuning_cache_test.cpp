#include "tokamak/gpu/gemm/tuning_cache.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"

namespace tokamak::gpu {
namespace {

TunedChoice choice_of(uint64_t seed) {
  TunedChoice choice{.microseconds = 0.5 * static_cast<double>(seed)};
  for (size_t i = 0; i < choice.algo.size(); ++i) choice.algo[i] = (seed + i) * 0x9E3779B97F4A7C15U;
  return choice;
}

class TuningCacheTest : public ::testing::Test {
 protected:
  TuningCacheTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()),
        path_(folder_ / "new" / "gemm.json") {
    std::filesystem::remove_all(folder_);
  }

  ~TuningCacheTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(TuningCacheTest, keeps_choices_for_each_machine) {
  TuningCache one(path_, "one");
  EXPECT_FALSE(one.find("a"));
  EXPECT_EQ(one.add("a", choice_of(1)), choice_of(1));
  EXPECT_EQ(one.add("b", choice_of(2)), choice_of(2));
  EXPECT_EQ(TuningCache(path_, "one").find("a"), choice_of(1));
  EXPECT_EQ(TuningCache(path_, "one").find("b"), choice_of(2));
  EXPECT_FALSE(TuningCache(path_, "other").find("a"));
}

TEST_F(TuningCacheTest, gives_back_what_another_process_put_there_before) {
  TuningCache(path_, "one").add("a", choice_of(1));
  EXPECT_EQ(TuningCache(path_, "one").add("a", choice_of(2)), choice_of(1));
}

TEST_F(TuningCacheTest, takes_damaged_files_for_empty_and_replaces_them) {
  make_folders(path_.parent_path());
  for (const std::string text :
       {"", "{\"one\": ", "[1]", "{\"one\": 3}", R"({"one": {"a": {"algo": "12"}}})",
        R"({"one": {"a": {"algo": "12", "microseconds": 1.0}}})"}) {
    write_file_atomic(path_, text);
    TuningCache cache(path_, "one");
    EXPECT_FALSE(cache.find("a")) << text;
    EXPECT_EQ(cache.add("a", choice_of(3)), choice_of(3)) << text;
    EXPECT_EQ(cache.find("a"), choice_of(3)) << text;
  }
}

TEST_F(TuningCacheTest, loses_nothing_where_many_write_at_once) {
  std::vector<std::thread> writers;
  for (uint64_t t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (uint64_t i = 0; i < 8; ++i)
        TuningCache(path_, "one").add(std::to_string(8 * t + i), choice_of(8 * t + i));
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (uint64_t i = 0; i < 32; ++i)
    EXPECT_EQ(TuningCache(path_, "one").find(std::to_string(i)), choice_of(i));
}

TEST_F(TuningCacheTest, goes_on_where_nothing_can_be_written) {
  make_folders(folder_);
  write_file_atomic(folder_ / "new", "a file in the way");
  TuningCache cache(path_, "one");
  EXPECT_EQ(cache.add("a", choice_of(1)), choice_of(1));
  EXPECT_FALSE(cache.find("a"));
  TuningCache nowhere("", "one");
  EXPECT_EQ(nowhere.add("a", choice_of(1)), choice_of(1));
  EXPECT_FALSE(nowhere.find("a"));
}

}  // namespace
}  // namespace tokamak::gpu

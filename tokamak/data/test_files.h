// Files for the tests of this folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak {

/// A folder of the running test, empty at first, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("tokamak_data_") + test->test_suite_name() + "_" + test->name() + "_" +
             std::to_string(::getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }

  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  std::string path() const { return path_.string(); }

  /// Writes a file, with its folders; returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// The little-endian bytes of values.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// 0, 1, 2, ...
template <class T>
std::vector<T> counting(int64_t count, int64_t first = 0) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(first + i));
  return values;
}

/// The text of the Error that `call` throws; "" if it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tokamak

/// The statement throws Error whose text holds `part`, on one line.
#define EXPECT_ERROR(statement, part)                                          \
  do {                                                                         \
    const std::string text = ::tokamak::error_of([&] { statement; });          \
    EXPECT_NE(text.find(part), std::string::npos) << "got: \"" << text << '"'; \
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;                     \
  } while (false)

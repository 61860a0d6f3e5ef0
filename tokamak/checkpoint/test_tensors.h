// What the tests of this folder share: a scratch folder, tensors in memory, error texts.
#pragma once

#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak::testing {

/// An empty folder that goes away with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("tokamak_{}_{}_{}", test->test_suite_name(), test->name(), ::getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }

  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A tensor that owns its bytes: element i holds the pattern of `seed` + i.
inline TensorSource pattern(const std::string& name, DType dtype, const Dims& dims,
                            uint32_t seed = 0) {
  const int64_t width = size_of(dtype);
  const auto read = [width, seed](int64_t first, std::span<std::byte> out) {
    for (int64_t i = 0; i < std::ssize(out); ++i) {
      const auto element = static_cast<uint32_t>(first + i / width) + seed;
      out[i] = static_cast<std::byte>((element * 2654435761U) >> (8 * (i % width % 4)));
    }
  };
  return {.name = name, .dtype = dtype, .dims = dims, .read = read};
}

/// A float tensor in memory.
inline TensorSource floats(const std::string& name, const Dims& dims,
                           const std::vector<float>& values) {
  const auto read = [values](int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), values.data() + first, out.size());
  };
  return {.name = name, .dtype = DType::kF32, .dims = dims, .read = read};
}

inline std::vector<float> values_of(const TensorSource& tensor) {
  const auto bytes = read_all(tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::vector<TensorSource> sources_of(std::span<const TensorView> views) {
  std::vector<TensorSource> sources;
  sources.reserve(views.size());
  for (const TensorView& view : views) sources.push_back(source_of(view));
  return sources;
}

struct NewestCheckpoint {
  std::optional<CheckpointEntry> entry;
  /// One line for each newer folder that cannot be used, to be shown to the user.
  std::vector<std::string> skipped;
};

enum class VerifyDepth {
  /// Seal of the manifest and sizes of the shards; for many ranks, each of which hashes what it
  /// reads.
  kManifest,
  /// Every byte.
  kContents,
};

/// The newest checkpoint a run can go on from; damaged ones are skipped and reported, model-only
/// ones are passed over.
inline NewestCheckpoint newest_complete(const std::filesystem::path& folder,
                                        VerifyDepth depth = VerifyDepth::kContents) {
  NewestCheckpoint newest;
  auto entries = list_checkpoints(folder);
  for (; !entries.empty(); entries.pop_back()) {
    CheckpointEntry& entry = entries.back();
    try {
      if (entry.kind == CheckpointKind::kUnusable) throw Error(entry.problem);
      if (entry.kind != CheckpointKind::kResumable) continue;
      if (depth == VerifyDepth::kContents) CheckpointReader(entry.path).verify();
      newest.entry = std::move(entry);
      return newest;
    } catch (const std::runtime_error& error) {
      newest.skipped.emplace_back(error.what());
    }
  }
  return newest;
}

/// The text of the Error that `call` throws, or "" if it throws none.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  FileWriter(path).write(text);
}

inline std::filesystem::path oracle(const std::string& model) {
  return std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles" / model;
}

}  // namespace tokamak::testing

/// Expects that `call` throws an Error whose text holds `part`.
#define EXPECT_ERROR(call, part)                                                 \
  do {                                                                           \
    const std::string text_ = ::tokamak::testing::error_of([&] { call; });       \
    EXPECT_NE(text_.find(part), std::string::npos) << "got: \"" << text_ << '"'; \
    EXPECT_EQ(text_.find('\n'), std::string::npos);                              \
  } while (false)

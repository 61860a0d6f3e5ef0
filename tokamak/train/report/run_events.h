// events.jsonl: what a run said besides its step lines (starts, saves, bad steps, slow ranks), with
// the step after which it said so. It is never cut, so it holds what runs that ended did too.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/core/file.h"
#include "tokamak/core/json.h"

namespace tokamak {

/// Any thread may add lines. None is worth ending a run for: one that cannot be written is lost,
/// and the console has it.
class RunEvents {
 public:
  /// Appends to `path`, first what was added before, at the resumed step. With resumed_step = 0 the
  /// file of an earlier run is kept as PATH.previous. Throws Error where the path cannot be
  /// written.
  void open(const std::filesystem::path& path, int64_t resumed_step);

  /// `level` is INFO or WARNING.
  void add(const std::string& level, const std::string& text);

  void set_step(int64_t step) { step_ = step; }

 private:
  void write(const std::string& lines);

  std::mutex mutex_;
  std::optional<FileWriter> file_;
  std::vector<OrderedJson> pending_;  // lines added before there is a file, still at step 0
  std::atomic<int64_t> step_{0};
};

}  // namespace tokamak

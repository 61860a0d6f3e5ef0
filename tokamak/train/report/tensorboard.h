// TensorBoard event files: scalars under torchtitan's names, where TensorBoard looks for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/file.h"
#include "tokamak/train/report/step_metrics.h"

namespace tokamak {

struct Scalar {
  std::string_view tag;
  double value = 0.0;
};

/// Returns the scalars of a step under torchtitan's names; unknown ones are left out.
std::vector<Scalar> to_scalars(const StepMetrics& metrics);
std::vector<Scalar> to_scalars(const ValidationMetrics& metrics);

/// CRC-32C (Castagnoli).
uint32_t crc32c(std::string_view bytes);

/// Returns one record of a TFRecord file: length, masked crc of the length, bytes, masked crc of
/// the bytes.
std::string tf_record(std::string_view bytes);

/// Returns `<dump_folder>/<save_tb_folder>/YYYYMMDD-HHMM` in local time.
std::filesystem::path tensorboard_folder(const std::filesystem::path& dump_folder,
                                         const std::filesystem::path& save_tb_folder,
                                         std::chrono::system_clock::time_point start);

/// One events.out.tfevents.* file. Each event is written whole, so that a viewer can follow it.
class EventFile {
 public:
  /// Makes `folder` and a file in it whose name no other process takes; throws Error if it cannot.
  EventFile(const std::filesystem::path& folder, std::chrono::system_clock::time_point now);

  /// Throws SystemError (disk full).
  void add(int64_t step, std::span<const Scalar> scalars,
           std::chrono::system_clock::time_point now);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileWriter file_;
};

}  // namespace tokamak

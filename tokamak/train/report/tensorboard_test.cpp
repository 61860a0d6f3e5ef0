#include "tokamak/train/report/tensorboard.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tensorboard.pb.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using WallClock = std::chrono::system_clock;

template <class T>
T read_at(std::string_view bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<tensorboard::Event> read_events(std::string_view bytes) {
  std::vector<tensorboard::Event> events;
  while (bytes.size() >= 16) {
    const auto size = read_at<uint64_t>(bytes, 0);
    events.emplace_back();
    EXPECT_TRUE(events.back().ParseFromString(std::string(bytes.substr(12, size))));
    EXPECT_EQ(tf_record(bytes.substr(12, size)), bytes.substr(0, 16 + size));
    bytes.remove_prefix(16 + size);
  }
  EXPECT_TRUE(bytes.empty());
  return events;
}

TEST(TensorBoard, Crc32cKnownAnswers) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
}

TEST(TensorBoard, RecordFraming) {
  const std::string record = tf_record("abc");
  ASSERT_EQ(record.size(), 8 + 4 + 3 + 4);
  EXPECT_EQ(read_at<uint64_t>(record, 0), 3U);
  const uint32_t crc = crc32c("abc");
  EXPECT_EQ(read_at<uint32_t>(record, 15), ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U);
}

TEST(TensorBoard, UnknownScalarsAreLeftOut) {
  const auto scalars = to_scalars(StepMetrics{.step = 1, .loss = 2.0});
  std::string tags;
  for (const Scalar& scalar : scalars) tags += std::string(scalar.tag) + " ";
  EXPECT_EQ(tags,
            "loss_metrics/global_avg_loss loss_metrics/global_max_loss grad_norm n_tokens_seen lr "
            "checkpoint/failed_saves ");
}

TEST(TensorBoard, FileHoldsVersionThenSteps) {
  const fs::path dump = fs::path(testing::TempDir()) / ("tokamak_tb_" + std::to_string(::getpid()));
  const auto now = WallClock::now();
  const fs::path folder = tensorboard_folder(dump, "tb", now);
  EXPECT_EQ(folder.parent_path(), dump / "tb");
  EXPECT_EQ(folder.filename().string().size(), std::string("20250203-0405").size());
  EventFile file(folder, now);
  EXPECT_EQ(file.path().filename().string().find("events.out.tfevents."), 0U);
  EXPECT_NE(EventFile(folder, now).path(), file.path());
  file.add(4, to_scalars(StepMetrics{.step = 4, .loss = 2.5, .mfu = 40.0}), now);
  file.add(5, to_scalars(ValidationMetrics{.step = 5, .loss = 0.0}), now);

  const auto events = read_events(read_file(file.path()));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 4);
  EXPECT_EQ(events[1].summary().value(0).tag(), "loss_metrics/global_avg_loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 2.5F);
  EXPECT_TRUE(events[2].summary().value(0).has_simple_value());
  fs::remove_all(dump);
}

}  // namespace
}  // namespace tokamak

#include "tokamak/train/report/wandb.h"

#include <cstring>

#include <gtest/gtest.h>
#include <wandb.pb.h>
#include <zlib.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// The records of a file, as wandb reads them: blocks of 32 KiB, CRC, length, type.
std::vector<wandb::Record> read_records(const fs::path& path) {
  const std::string bytes = read_file(path);
  EXPECT_EQ(bytes.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::vector<wandb::Record> records;
  std::string data;
  for (size_t at = 7; at < bytes.size();) {
    const size_t left = 32768 - at % 32768;
    if (left < 7) {
      at += left;
      continue;
    }
    uint32_t crc = 0;
    uint16_t size = 0;
    std::memcpy(&crc, bytes.data() + at, sizeof crc);
    std::memcpy(&size, bytes.data() + at + 4, sizeof size);
    const char type = bytes[at + 6];
    EXPECT_EQ(crc, ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data() + at + 6), size + 1U));
    data += bytes.substr(at + 7, size);
    at += 7 + size;
    if (type != 1 && type != 4) continue;
    records.emplace_back();
    EXPECT_TRUE(records.back().ParseFromString(data));
    data.clear();
  }
  return records;
}

TEST(Wandb, AnOfflineRunHasEveryStep) {
  const fs::path run = fs::temp_directory_path() / "tokamak_wandb_test";
  fs::remove_all(run);
  make_folders(run);
  EXPECT_THROW(write_wandb_run(run, run / "wandb", "p"), Error);
  std::string lines;
  constexpr int kSteps = 1500;  // beyond some blocks
  for (int i = 1; i <= kSteps; ++i)
    lines += fmt::format("{{\"step\": {}, \"loss\": {}, \"mfu\": null}}\n", 10 * i, 1.5 / i);
  FileWriter(run / "metrics.jsonl").write(lines);
  FileWriter(run / "validation.jsonl").write("{\"step\": 10, \"loss\": 2.5}\n");
  const WandbRun made = write_wandb_run(run, run / "wandb", "p");
  EXPECT_EQ(made.steps, kSteps);
  std::vector<wandb::Record> records;
  for (const auto& entry : fs::directory_iterator(made.folder))
    records = read_records(entry.path());
  ASSERT_EQ(records.size(), kSteps + 4U);
  EXPECT_TRUE(records[0].has_header());
  EXPECT_EQ(records[1].run().project(), "p");
  EXPECT_EQ(records[1].run().run_id().size(), 8U);
  const wandb::HistoryRecord& first = records[2].history();
  EXPECT_EQ(first.step().num(), 10);
  ASSERT_EQ(first.item_size(), 3);
  EXPECT_EQ(first.item(0).nested_key(0), "_step");
  EXPECT_EQ(first.item(1).nested_key(0), "loss");
  EXPECT_EQ(first.item(1).value_json(), "1.5");
  EXPECT_EQ(first.item(2).nested_key(0), "validation/loss");
  EXPECT_EQ(records[kSteps + 1].history().step().num(), 10 * kSteps);
  EXPECT_TRUE(records[kSteps + 2].has_summary());
  EXPECT_TRUE(records[kSteps + 3].has_exit());
  for (size_t i = 0; i < records.size(); ++i)
    EXPECT_EQ(records[i].num(), static_cast<int64_t>(i) + 1);
  EXPECT_EQ(write_wandb_run(run, run / "wandb", "p").folder, made.folder);
  fs::remove_all(run);
}

}  // namespace
}  // namespace tokamak

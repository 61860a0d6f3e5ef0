#include "tokamak/checkpoint/block_file.h"

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

// Writes a file of this many bytes in blocks, the last one first and on another thread.
void expect_written(int64_t bytes) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  const ScratchFolder folder;
  const BlockMemory memory(bytes);
  for (int64_t i = 0; i < bytes; ++i)
    memory.data()[i] = static_cast<std::byte>((i * 2654435761U) >> 16U);
  const auto path = folder.path() / "f";
  BlockFile file(path, bytes);
  const auto write = [&](int64_t at) {
    file.write(at, {memory.data() + at, static_cast<size_t>(std::min(kBlock, bytes - at))});
  };
  const int64_t last = (bytes - 1) / kBlock * kBlock;
  std::thread other([&] { write(last); });
  for (int64_t at = 0; at < last; at += kBlock) write(at);
  other.join();
  file.sync_and_close();
  const MappedFile read(path);
  ASSERT_EQ(std::ssize(read.bytes()), bytes);
  EXPECT_EQ(std::memcmp(read.bytes().data(), memory.data(), bytes), 0) << bytes;
}

TEST(BlockFile, every_byte_arrives_whatever_the_size) {
  const int64_t mib = int64_t{1} << 20;
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, int64_t{4097}, mib - 1, 3 * mib,
                              3 * mib + 4096, 3 * mib + 7, 4 * mib - 1})
    expect_written(bytes);
}

TEST(BlockFile, a_folder_that_is_not_there_is_the_users_fault) {
  EXPECT_THROW(BlockFile("/no/such/folder/f", 1), Error);
}

TEST(SyncPace, follows_the_disk) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  SyncPace pace;
  const auto bytes_until_sync = [&] {
    int64_t bytes = 16 * kMiB;
    while (!pace.wants_sync(16 * kMiB)) bytes += 16 * kMiB;
    return bytes;
  };
  EXPECT_EQ(bytes_until_sync(), 256 * kMiB);
  pace.has_synced(std::chrono::milliseconds(10));
  EXPECT_EQ(bytes_until_sync(), 512 * kMiB) << "a quick disk is asked rarely";
  pace.has_synced(std::chrono::seconds(20));
  pace.has_synced(std::chrono::seconds(20));
  EXPECT_EQ(bytes_until_sync(), 128 * kMiB);
  for (int i = 0; i < 9; ++i) pace.has_synced(std::chrono::seconds(50));
  EXPECT_EQ(bytes_until_sync(), 32 * kMiB);
}

TEST(BlockMemory, begins_as_zeros_and_keeps_its_bytes_when_pages_are_taken) {
  BlockMemory memory(10000);
  EXPECT_EQ(memory.bytes() % kBlockAlignment, 0);
  memory.data()[5000] = std::byte{7};
  memory.take_pages(0, memory.bytes());
  EXPECT_EQ(memory.data()[5000], std::byte{7});
  EXPECT_EQ(memory.data()[9999], std::byte{0});
  const BlockMemory taken = std::move(memory);
  EXPECT_EQ(taken.data()[5000], std::byte{7});
  EXPECT_THROW(BlockMemory(int64_t{1} << 60), SystemError);
}

}  // namespace
}  // namespace tokamak

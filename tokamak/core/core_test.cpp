#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tokamak/core/bus_error.h"
#include "tokamak/core/dtype.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/names.h"
#include "tokamak/core/tensor_type.h"
#include "tokamak/core/usable_cores.h"

namespace tokamak {
namespace {

TEST(DType, bf16_rounds_to_nearest_even) {
  EXPECT_EQ(static_cast<float>(BF16(1.0F)), 1.0F);
  EXPECT_EQ(BF16(std::bit_cast<float>(0x3F808000U)).bits, 0x3F80);
  EXPECT_EQ(BF16(std::bit_cast<float>(0x3F818000U)).bits, 0x3F82);
  EXPECT_TRUE(std::isnan(static_cast<float>(BF16(std::nanf("")))));
}

TEST(DType, every_half_survives_a_round_trip) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    F16 h;
    h.bits = static_cast<uint16_t>(bits);
    const auto x = static_cast<float>(h);
    if (std::isnan(x)) continue;
    EXPECT_EQ(F16(x).bits, h.bits) << bits;
  }
}

TEST(DType, names_round_trip) {
  EXPECT_EQ(dtype_from_name("bfloat16", "key"), DType::kBF16);
  EXPECT_THROW(dtype_from_name("float8", "training.dtype"), Error);
}

TEST(TensorType, strides_and_text) {
  EXPECT_EQ(row_major({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(to_string(TensorType{.dtype = DType::kBF16, .dims = {2, 3}}), "bfloat16[2, 3]");
}

TEST(File, an_atomic_write_leaves_no_aside_file) {
  const auto folder = std::filesystem::temp_directory_path() / "tokamak_core_test";
  make_folders(folder);
  write_file_atomic(folder / "a.txt", "hello");
  EXPECT_EQ(read_file(folder / "a.txt"), "hello");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.txt.tmp"));
  EXPECT_THROW(read_file(folder / "absent"), Error);
  EXPECT_THROW(make_folders(folder / "a.txt"), Error);
  std::filesystem::remove_all(folder);
}

TEST(File, an_atomic_write_keeps_links_and_refuses_what_is_no_file) {
  const auto folder = std::filesystem::temp_directory_path() / "tokamak_core_link_test";
  std::filesystem::remove_all(folder);
  make_folders(folder / "sub");
  write_file_atomic(folder / "sub/a.txt", "before");
  std::filesystem::create_symlink("sub/a.txt", folder / "link");
  write_file_atomic(folder / "link", "hello");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "sub/a.txt"), "hello");
  for (const std::filesystem::path& bad :
       {folder / "sub", folder / "no/a.txt", folder / "sub/a.txt/b", folder / "", {"/dev/null"}}) {
    EXPECT_THROW(check_can_write(bad), Error) << bad;
    EXPECT_THROW(write_file_atomic(bad, "x"), Error) << bad;
  }
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
  EXPECT_EQ(list_folder(folder), (std::vector{folder / "link", folder / "sub"}));
  std::filesystem::remove_all(folder);
}

TEST(File, what_is_no_regular_file_is_refused_at_once) {
  const auto folder = std::filesystem::temp_directory_path() / "tokamak_core_fifo_test";
  std::filesystem::remove_all(folder);
  make_folders(folder);
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const std::filesystem::path& path : {folder / "fifo", folder, {"/dev/zero"}}) {
    EXPECT_THROW(MappedFile{path}, Error) << path;
    EXPECT_THROW(read_file(path), Error) << path;
    EXPECT_THROW(read_front(path, 4), Error) << path;
  }
  FileWriter(folder / "a").write("hello");
  EXPECT_EQ(read_front(folder / "a", 4), "hell");
  EXPECT_EQ(read_front(folder / "a", 9), "hello");
  EXPECT_THROW(read_file(folder / "a", 4), Error);
  std::filesystem::remove_all(folder);
}

TEST(FileDeathTest, a_mapped_file_that_is_cut_gets_its_line) {
  const auto path = std::filesystem::temp_directory_path() / "tokamak_core_cut_test";
  FileWriter(path).write(std::string(20'000, 'x'));
  const auto read_cut_file = [&] {
    report_bus_errors();
    const MappedFile file(path);
    std::filesystem::resize_file(path, 100);
    volatile char last = file.text().back();
    static_cast<void>(last);
  };
  EXPECT_EXIT(read_cut_file(), ::testing::ExitedWithCode(75), "core_cut_test: the file was cut");
  std::filesystem::remove(path);
}

TEST(HostMemory, the_tightest_of_ram_and_control_groups_counts) {
  const auto root = std::filesystem::temp_directory_path() / "tokamak_core_memory_test";
  std::filesystem::remove_all(root);
  const auto put = [&](const std::string& name, const std::string& text) {
    make_folders((root / name).parent_path());
    FileWriter(root / name).write(text);
  };
  put("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 5 kB\nMemAvailable: 600 kB\n");
  EXPECT_EQ(host_memory(root).limit, 1000 * 1024);
  EXPECT_EQ(host_memory(root).free, 600 * 1024);
  EXPECT_EQ(host_memory(root).name, "RAM");
  put("proc/self/cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/memory.max", "500000\n");
  put("sys/fs/cgroup/job/memory.current", "400000\n");
  put("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(host_memory(root).limit, 500'000);
  EXPECT_EQ(host_memory(root).free, 200'000);
  EXPECT_EQ(host_memory(root).name, (root / "sys/fs/cgroup/job/memory.max").string());
  put("proc/self/cgroup", "12:cpu:/x\n4:memory:/job\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "300001\n");
  EXPECT_EQ(host_memory(root).limit, 300'000);
  EXPECT_EQ(host_memory(root).free, 0);
  std::filesystem::remove_all(root);
  EXPECT_THROW(require_host_memory(int64_t{1} << 60, 1, "plan"), Error);
  EXPECT_NO_THROW(require_host_memory(1, 1, "plan"));
}

TEST(File, a_full_disk_is_a_machine_fault) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  FileWriter file("/dev/full");
  EXPECT_THROW(file.write("x"), SystemError);
}

TEST(File, errno_says_whose_fault_a_path_is) {
  for (const int code : {EIO, EROFS, ESTALE, EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT}) {
    errno = code;
    EXPECT_THROW(throw_path_errno("cannot open x"), SystemError) << code;
  }
  for (const int code : {ENOENT, EACCES, EISDIR, ENOTDIR, ELOOP, ENAMETOOLONG}) {
    errno = code;
    EXPECT_THROW(throw_path_errno("cannot open x"), Error) << code;
  }
}

TEST(UsableCores, a_quota_of_control_groups_binds_those_inside) {
  const auto root = std::filesystem::temp_directory_path() / "tokamak_core_cores_test";
  std::filesystem::remove_all(root);
  const auto put = [&](const std::string& name, const std::string& text) {
    make_folders((root / name).parent_path());
    FileWriter(root / name).write(text);
  };
  const int all = usable_cores(root);
  EXPECT_GE(all, 1);
  put("proc/self/cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(root), all);
  put("sys/fs/cgroup/job/cpu.max", "190000 100000\n");
  EXPECT_EQ(usable_cores(root), 1);
  put("sys/fs/cgroup/job/cpu.max", "5000 100000\n");
  EXPECT_EQ(usable_cores(root), 1);
  put("proc/self/cgroup", "4:cpu,cpuacct:/other\n");
  EXPECT_EQ(usable_cores(root), all);
  put("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_cores(root), all);
  put("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(usable_cores(root), 1);
  std::filesystem::remove_all(root);
}

TEST(File, the_cache_folder_is_the_users_choice_first) {
  ASSERT_EQ(setenv("HOME", "/h", 1), 0);
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  ASSERT_EQ(setenv("TOKAMAK_CACHE", "", 1), 0);
  EXPECT_EQ(cache_folder(), "/h/.cache/tokamak");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/x", 1), 0);
  EXPECT_EQ(cache_folder(), "/x/tokamak");
  ASSERT_EQ(setenv("TOKAMAK_CACHE", "/t", 1), 0);
  EXPECT_EQ(cache_folder(), "/t");
}

TEST(Error, a_bug_names_file_and_condition) {
  try {
    TOK_CHECK(1 == 2, "value {}", 3);
    FAIL();
  } catch (const Bug& bug) {
    EXPECT_NE(std::string(bug.what()).find("core_test.cpp"), std::string::npos);
    EXPECT_NE(std::string(bug.what()).find("1 == 2: value 3"), std::string::npos);
  }
}

TEST(WithCommas, part_thousands) {
  EXPECT_EQ(with_commas(int64_t{0}), "0");
  EXPECT_EQ(with_commas(int64_t{999}), "999");
  EXPECT_EQ(with_commas(int64_t{-1'000}), "-1,000");
  EXPECT_EQ(with_commas(int64_t{6'163'712}), "6,163,712");
  EXPECT_EQ(with_commas("12345.678"), "12,345.678");
}

}  // namespace
}  // namespace tokamak

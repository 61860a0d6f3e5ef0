#include "tokamak/data/cache/cache_parts.h"

#include <csignal>
#include <fstream>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/file.h"
#include "tokamak/data/cache/megatron_files.h"
#include "tokamak/data/loader.h"
#include "tokamak/data/test_files.h"
#include "tokamak/data/token_formats.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Files of JSON lines that are a part each, and some small ones that are one.
std::string write_parts(const TestFolder& folder) {
  for (int file = 0; file < 5; ++file) {
    std::string text;
    for (int i = 0; text.size() < size_t{4} << 20; ++i)
      text += fmt::format("{{\"text\": \"document {} of {} with some words\"}}\n", i, file);
    folder.write(fmt::format("parts/{}.jsonl", file), text);
  }
  folder.write("parts/2a.jsonl", "{\"text\": \"\"}\n{\"text\": \"small\"}\n");
  folder.write("parts/2b.jsonl", "{\"text\": \"smaller\"}\n");
  return folder / "parts";
}

TEST(CacheParts, AreFilesOf4MiBOrMore) {
  const auto file = [](int64_t size) { return SourceFile{.size = size}; };
  const int64_t mib = 1 << 20;
  std::vector<std::pair<int64_t, int64_t>> got;
  for (const CachePart& part : parts_of({file(mib), file(2 * mib), file(2 * mib), file(9 * mib),
                                         file(1), file(9 * mib), file(1), file(1)}))
    got.emplace_back(part.first, part.end);
  EXPECT_EQ(got,
            (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 8}}));
}

class SharedCache : public testing::Test {
 protected:
  SharedCache()
      : data_{.dataset = "c4",
              .path = write_parts(folder_),
              .seq_len = 7,
              .global_batch_size = 2,
              .cache_folder = folder_ / "cache",
              .tokenizer = bytes_.get(),
              .vocab_size = 258} {
    DataOptions alone = data_;
    alone.cache_folder = folder_ / "alone";
    build(alone);
    const fs::path made = fs::directory_iterator(folder_ / "alone")->path();
    tokens_ = read_file(made / "tokens.u16");
    ends_ = read_file(made / "documents.u64");
    at_ = data_.cache_folder / made.filename();
  }

  void build(const DataOptions& data) const {
    build_token_cache(data, 1, [](const CacheProgress&) {});
  }

  void help() const {
    build_token_cache(
        data_, 1, [](const CacheProgress&) {}, true);
  }

  void expect_equal() const {
    EXPECT_EQ(read_file(at_ / "tokens.u16"), tokens_);
    EXPECT_EQ(read_file(at_ / "documents.u64"), ends_);
    EXPECT_FALSE(fs::exists(at_ / "parts"));
  }

  pid_t start() const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    help();
    ::_exit(0);
  }

  int64_t tokens_in(const char* part) const {
    const auto records = CacheFolder(at_ / "parts" / part, 2).synced_records(0);
    return records.empty() ? 0 : records.back().tokens;
  }

  void cut(const char* part, const char* file, int64_t bytes) const {
    const fs::path path = at_ / "parts" / part / file;
    fs::resize_file(path, fs::file_size(path) - bytes);
  }

  TestFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = byte_tokenizer();
  DataOptions data_;
  std::string tokens_;
  std::string ends_;
  fs::path at_;
};

// The process that helps is killed with two parts whole and a third begun, of which one loses bytes
// and one its last record.
TEST_F(SharedCache, KeepsWhatAKilledProcessHasMadeForTheWriter) {
  {
    const auto writes_elsewhere = CacheFolder(at_, 2).try_lock();
    ASSERT_TRUE(writes_elsewhere);
    const pid_t child = start();
    while (tokens_in("2-3") == 0) ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  ASSERT_GT(tokens_in("0-1"), 0);
  ASSERT_GT(tokens_in("1-2"), 0);
  cut("1-2", "journal", 64);
  cut("2-3", "tokens.u16", 2);
  const auto whole = CacheFolder(at_ / "parts" / "0-1", 2).synced_records(0);
  help();
  expect_equal();
  const auto records = CacheFolder(at_, 2).synced_records(0);
  ASSERT_GT(records.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(records[i].tokens, whole[i].tokens) << i;
}

TEST_F(SharedCache, IsMadeByProcessesOfWhichAnyMayBeKilled) {
  for (const int killed : {0, 1, 2}) {
    fs::remove_all(folder_ / "cache");
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) children.push_back(start());
    while (CacheFolder(at_, 2).synced_records(0).empty())
      ASSERT_EQ(::waitpid(children[0], nullptr, WNOHANG), 0);
    ::kill(children[killed], SIGKILL);
    for (int i = 0; i < 3; ++i) {
      int status = 0;
      ::waitpid(children[i], &status, 0);
      EXPECT_TRUE(i == killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << i;
    }
    expect_equal();
  }
}

TEST_F(SharedCache, LeavesWhatIsWrongInAPartToTheWriter) {
  folder_.write("parts/3.jsonl", "{\"text\": 7}\n");
  folder_.write("parts/4.jsonl", "{\"body\": 7}\n");
  EXPECT_ERROR(help(), "3.jsonl: line 1: wanted a string");
}

TEST_F(SharedCache, IsWrittenAsMegatronsFiles) {
  build(data_);
  const std::string prefix = folder_ / "out";
  const MegatronCounts counts = write_megatron(CacheFolder(at_, 2), prefix);
  EXPECT_EQ(counts.tokens, std::ssize(tokens_) / 2);
  EXPECT_EQ(counts.documents, std::ssize(ends_) / 8);
  EXPECT_EQ(read_file(prefix + ".bin"), tokens_);
  const std::string bytes = read_file(prefix + ".idx");
  const MegatronIndex index = parse_megatron_index(std::as_bytes(std::span(bytes)), "out.idx");
  EXPECT_EQ(index.type, TokenType::kU16);
  EXPECT_EQ(index.num_sequences, counts.documents);
  EXPECT_EQ(index.num_documents, counts.documents);
  ASSERT_EQ(index.runs.size(), 1U);
  EXPECT_EQ(index.runs[0].num_tokens, counts.tokens);
  DataOptions tokens = data_;
  tokens.dataset = "tokens";
  tokens.path = prefix;
  Loader from_files(tokens);
  Loader from_cache(data_);
  for (int batch = 0; batch < 100; ++batch)
    EXPECT_EQ(from_files.next().tokens, from_cache.next().tokens) << batch;

  std::fstream(at_ / "tokens.u16", std::ios::binary | std::ios::in | std::ios::out).put('!');
  EXPECT_ERROR(write_megatron(CacheFolder(at_, 2), prefix), "the token cache is damaged");
  EXPECT_EQ(read_file(prefix + ".bin"), tokens_);
}

}  // namespace
}  // namespace tokamak

#include "tokamak/data/loader.h"

#include <algorithm>

#include "tokamak/core/file.h"
#include "tokamak/data/parquet_lines.h"
#include "tokamak/data/test_files.h"
#include "tokamak/data/token_files.h"

namespace tokamak {
namespace {

DataOptions tokens_options(const std::string& path) {
  return {
      .dataset = "tokens", .path = path, .seq_len = 3, .global_batch_size = 2, .vocab_size = 1000};
}

std::vector<int32_t> first_tokens(const Batch& batch) {
  std::vector<int32_t> first;
  for (int64_t r = 0; r < batch.rows; ++r) {
    first.push_back(batch.tokens[r * batch.seq_len]);
  }
  return first;
}

std::vector<int32_t> take(Loader& loader, int batches) {
  std::vector<int32_t> all;
  for (int i = 0; i < batches; ++i) {
    for (const int32_t id : first_tokens(loader.next())) all.push_back(id);
  }
  return all;
}

TEST(Loader, CutsWindowsThatDoNotOverlap) {
  const TestFolder folder;
  Loader loader(tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(18)))));
  const Batch batch = loader.next();
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(batch.valid_rows, 2);
  EXPECT_EQ(take(loader, 2), (std::vector<int32_t>{8, 12, 0, 4}));
}

TEST(Loader, JoinsTheFilesOfAFolder) {
  const TestFolder folder;
  folder.write("data/b.u32", bytes_of(counting<uint32_t>(7, 5)));
  folder.write("data/a.u16", bytes_of(counting<uint16_t>(5)));
  folder.write("data/readme.txt", "no tokens");
  Loader loader(tokens_options(folder / "data"));
  EXPECT_EQ(loader.next().tokens, (std::vector<int32_t>{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(loader.next().tokens, (std::vector<int32_t>{8, 9, 10, 0, 1, 2}));
}

TEST(Loader, ReadsMegatronPairsByPrefix) {
  const TestFolder folder;
  folder.write("corpus.bin", bytes_of(counting<int32_t>(10)));
  folder.write("corpus.idx", std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + '\x04' +
                                 bytes_of<uint64_t>({2, 3}) + bytes_of<int32_t>({4, 4}) +
                                 bytes_of<int64_t>({24, 0}) + bytes_of<int64_t>({0, 1, 2}));
  Loader loader(tokens_options(folder / "corpus"));
  EXPECT_EQ(loader.next().tokens, (std::vector<int32_t>{6, 7, 8, 0, 1, 2}));
}

TEST(Loader, IsTheSameOnAnyMeshAndAccumulation) {
  DataOptions options{
      .dataset = "synthetic", .seq_len = 5, .global_batch_size = 8, .vocab_size = 50};
  Loader whole(options);
  options.first_row = 4;
  options.num_rows = 4;
  options.rows_per_batch = 2;
  Loader part(options);
  for (int step = 0; step < 3; ++step) {
    const Batch all = whole.next();
    std::vector<int32_t> mine;
    for (int micro = 0; micro < 2; ++micro) {
      const Batch batch = part.next();
      mine.insert(mine.end(), batch.tokens.begin(), batch.tokens.end());
    }
    EXPECT_EQ(mine, std::vector<int32_t>(all.tokens.begin() + 20, all.tokens.end()));
  }
}

TEST(Loader, ResumesExactlyAlsoWithAnotherBatchSize) {
  const TestFolder folder;
  DataOptions options = tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(100))));
  options.shuffle_seed = 11;
  Loader one(options);
  take(one, 7);
  const std::string saved = one.state().to_json();
  const std::vector<int32_t> after = take(one, 20);
  options.global_batch_size = 4;
  Loader other(options);
  take(other, 1);
  other.restore(LoaderState::from_json(saved, "checkpoint"));
  EXPECT_EQ(take(other, 10), after);
}

TEST(Loader, ShufflesEachEpochAnew) {
  const TestFolder folder;
  DataOptions options = tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(80))));
  options.global_batch_size = 20;
  options.shuffle_seed = 1;
  Loader loader(options);
  std::vector<int32_t> first = take(loader, 1);
  std::vector<int32_t> second = take(loader, 1);
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST(Loader, RefusesAStateOfOtherData) {
  const TestFolder folder;
  Loader one(tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(100)))));
  const LoaderState state = one.state();
  Loader two(tokens_options(folder.write("b.u16", bytes_of(counting<uint16_t>(100, 1)))));
  EXPECT_ERROR(two.restore(state), "a.u16");
  EXPECT_ERROR(two.restore(state), "b.u16");
  DataOptions longer = tokens_options(folder / "a.u16");
  longer.seq_len = 4;
  Loader three(longer);
  EXPECT_ERROR(three.restore(state), "seq_len 3, this run's is 4");
}

TEST(Loader, EndsAFinitePassOnAllRanksAlike) {
  const TestFolder folder;
  DataOptions options = tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(12))));
  options.infinite = false;
  options.first_row = 1;
  Loader loader(options);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(loader.next().tokens[0], 4);
    const Batch filled = loader.next();
    EXPECT_EQ(filled.valid_rows, 0);
    EXPECT_EQ(filled.labels, (std::vector<int32_t>(3, kIgnoreIndex)));
    EXPECT_TRUE(loader.next().empty());
    EXPECT_TRUE(loader.next().empty());
    loader.rewind();
  }
}

TEST(Loader, EndsAPassAfterTheMostWindows) {
  const TestFolder folder;
  DataOptions options = tokens_options(folder.write("a.u16", bytes_of(counting<uint16_t>(400))));
  options.infinite = false;
  options.most_windows = 5;
  for (const int64_t rows : {1, 2, 5, 8}) {
    options.global_batch_size = rows;
    Loader loader(options);
    for (int pass = 0; pass < 2; ++pass) {
      int64_t valid = 0;
      for (Batch batch = loader.next(); !batch.empty(); batch = loader.next())
        valid += batch.valid_rows;
      EXPECT_EQ(valid, 5) << rows;
      loader.rewind();
    }
  }
}

TEST(Loader, MixesByWeight) {
  const TestFolder folder;
  folder.write("a.u16", bytes_of(counting<uint16_t>(400)));
  folder.write("b.u16", bytes_of(counting<uint16_t>(40, 500)));
  DataOptions options =
      tokens_options("0.75 " + (folder / "a.u16") + " 0.25 " + (folder / "b.u16"));
  options.global_batch_size = 64;
  Loader loader(options);
  const std::vector<int32_t> first = take(loader, 4);
  EXPECT_EQ(std::count_if(first.begin(), first.end(), [](int32_t id) { return id < 500; }), 192);
  const LoaderState state = loader.state();
  EXPECT_EQ(state.sources[0].epoch, 1);
  EXPECT_EQ(state.sources[1].epoch, 6);
}

TEST(Loader, EndsAFiniteMixWithItsFirstSource) {
  const TestFolder folder;
  folder.write("a.u16", bytes_of(counting<uint16_t>(400)));
  folder.write("b.u16", bytes_of(counting<uint16_t>(40, 500)));
  DataOptions options = tokens_options("0.5 " + (folder / "a.u16") + " 0.5 " + (folder / "b.u16"));
  options.infinite = false;
  options.global_batch_size = 4;
  int64_t rows = 0;
  std::vector<int> batches;
  for (const int64_t rank : {0, 1}) {
    options.first_row = 2 * rank;
    options.num_rows = 2;
    Loader loader(options);
    batches.push_back(0);
    for (Batch batch = loader.next(); !batch.empty(); batch = loader.next()) {
      rows += batch.valid_rows;
      ++batches.back();
    }
  }
  EXPECT_EQ(batches[0], batches[1]);
  EXPECT_NEAR(static_cast<double>(rows), 20.0, 2.0);
}

TEST(TokenFiles, AFileThatChangesUnderTheRunIsRefused) {
  const TestFolder folder;
  const std::string path = folder.write("a.u16", bytes_of(counting<uint16_t>(1000)));
  std::vector<int32_t> ids(10);
  const auto source = open_token_files(path);
  source->read(500, ids);
  EXPECT_EQ(ids[9], 509);
  std::filesystem::rename(folder.write("b.u16", bytes_of(counting<uint16_t>(7))), path);
  source->read(990, ids);  // the file that was opened is still there
  EXPECT_EQ(ids[9], 999);
  const std::string second = folder.write("c.u16", bytes_of(counting<uint16_t>(1000)));
  const auto other = open_token_files(second);
  std::filesystem::resize_file(second, 1000);
  EXPECT_ERROR(other->read(900, ids), "it had 2000 when the run began");
  EXPECT_ERROR(other->read(0, ids), "it had 2000 when the run began");
  const auto third = open_token_files(second);
  std::filesystem::last_write_time(
      second, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(9));
  EXPECT_ERROR(third->read(0, ids), "has been written to");
}

TEST(TokenFiles, TheHashSeesTheMiddleOfALargeFile) {
  const TestFolder folder;
  std::string bytes(3 << 20, '\1');
  const uint64_t before = open_token_files(folder.write("a.u16", bytes))->hash();
  bytes.replace(1 << 20, 1 << 17, std::string(1 << 17, '\2'));
  EXPECT_NE(open_token_files(folder.write("a.u16", bytes))->hash(), before);
}

TEST(Loader, NamesBadInput) {
  const TestFolder folder;
  const auto open = [&](const std::string& path) { Loader loader(tokens_options(path)); };
  EXPECT_ERROR(open(folder / "none"), "no such file or folder");
  EXPECT_ERROR(open(folder.path()), "no *.u16, *.u32 or *.bin");
  EXPECT_ERROR(open(folder.write("odd.u16", "abc")), "wanted a multiple of 2 bytes, got 3");
  EXPECT_ERROR(open(folder.write("empty.u16", "")), "wanted tokens, got none");
  EXPECT_ERROR(open(folder.write("small.u16", "abcd")), "of 4 tokens (seq_len + 1), got 2");
  EXPECT_ERROR(open(folder.write("raw.bin", "abcdefgh")), "wants the extension .u16");
  DataOptions unknown = tokens_options("x");
  unknown.dataset = "alpaca";
  EXPECT_ERROR(Loader loader(unknown), "got \"alpaca\"");
}

TEST(Loader, NamesTheIdOutsideTheVocabulary) {
  const TestFolder folder;
  std::vector<uint32_t> ids = counting<uint32_t>(100);
  ids[9] = 4000000000U;
  Loader loader(tokens_options(folder.write("a.u32", bytes_of(ids))));
  take(loader, 1);
  EXPECT_ERROR(take(loader, 1),
               "a.u32: byte 36 (token 9 of the stream): id 4000000000 is outside "
               "the model's vocabulary of 1000");
  EXPECT_ERROR(take(loader, 1), "id 4000000000");
}

TEST(MissingData, ParquetWantsABuildWithArrow) {
  const auto file = std::filesystem::temp_directory_path() / "tokamak_loader_test.parquet";
  FileWriter(file).write("PAR1");
  const auto reason = missing_data({.dataset = "c4", .path = file.string()});
  EXPECT_EQ(reason.has_value(), !why_no_parquet().empty());
  EXPECT_TRUE(!reason || reason->find("TOK_PARQUET") != std::string::npos) << *reason;
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tokamak

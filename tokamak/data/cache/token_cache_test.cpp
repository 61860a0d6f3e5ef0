#include "tokamak/data/cache/token_cache.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

#include "tokamak/core/file.h"
#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/loader.h"
#include "tokamak/data/test_files.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class TokenCache : public testing::Test {
 protected:
  DataOptions options(const std::string& path) const {
    return {.dataset = "text",
            .path = path,
            .seq_len = 7,
            .global_batch_size = 2,
            .cache_folder = folder_ / "cache",
            .tokenizer = bytes_.get(),
            .vocab_size = 258};
  }

  void build(const DataOptions& options, int threads = 1) const {
    build_token_cache(options, threads, [](const CacheProgress&) {});
  }

  std::vector<int32_t> take(Loader& loader, int batches) const {
    std::vector<int32_t> all;
    for (int i = 0; i < batches; ++i) {
      const Batch batch = loader.next();
      for (int64_t r = 0; r < batch.rows; ++r) {
        const int64_t row = r * batch.seq_len;
        const int64_t end = row + batch.seq_len;
        all.insert(all.end(), batch.tokens.begin() + row, batch.tokens.begin() + end);
        all.push_back(batch.labels[static_cast<size_t>(end) - 1]);
      }
    }
    return all;
  }

  fs::path only_cache() const { return fs::directory_iterator(folder_ / "cache")->path(); }

  fs::path only_cache_or(const fs::path& other) const {
    std::error_code none;
    const fs::directory_iterator first(folder_ / "cache", none);
    return none || first == fs::directory_iterator() ? other : first->path();
  }

  std::string lines(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) text += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
    return text;
  }

  TestFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = byte_tokenizer();
};

TEST_F(TokenCache, CarriesTheTailIntoTheNextEpoch) {
  folder_.write("t/a.txt", "abcdefgh");
  folder_.write("t/b.txt", "i");
  Loader loader(options(folder_ / "t"));
  std::vector<int32_t> epoch{256, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 257, 256, 'i', 257};
  std::vector<int32_t> twice(64);
  for (size_t i = 0; i < twice.size(); ++i) twice[i] = epoch[i % epoch.size()];
  EXPECT_EQ(take(loader, 4), twice);
  EXPECT_EQ(loader.state().sources[0].epoch, 4);
}

TEST_F(TokenCache, GivesTheSameTokensHoweverItIsMade) {
  const std::string path = folder_.write("a.jsonl", lines(5000));
  DataOptions one = options(path);
  one.dataset = "c4";
  Loader behind(one);
  const std::vector<int32_t> expected = take(behind, 9000);
  for (const int threads : {1, 3}) {
    DataOptions other = one;
    other.cache_folder = folder_ / ("cache" + std::to_string(threads));
    build(other, threads);
    Loader ready(other);
    EXPECT_EQ(take(ready, 9000), expected);
  }
}

TEST_F(TokenCache, IsReusedAndKeyedByItsText) {
  const std::string path = folder_.write("a.txt", "some text that is long enough");
  build(options(path));
  const auto made = fs::last_write_time(only_cache() / "tokens.u16");
  build(options(path));
  EXPECT_EQ(fs::last_write_time(only_cache() / "tokens.u16"), made);
  Loader before(options(path));
  const LoaderState state = before.state();
  folder_.write("a.txt", "some text that is long enouGh");
  Loader after(options(path));
  EXPECT_ERROR(after.restore(state), "the checkpoint was saved over " + path);
}

TEST_F(TokenCache, ContinuesAfterAKill) {
  const std::string path = folder_.write("a.jsonl", lines(60000));
  DataOptions whole = options(path);
  whole.dataset = "c4";
  build(whole);
  const std::string expected = read_file(only_cache() / "tokens.u16");
  const std::string ends = read_file(only_cache() / "documents.u64");
  const std::string journal = read_file(only_cache() / "journal");
  ASSERT_GT(journal.size(), 64U * 3);
  for (const size_t records : {size_t{0}, size_t{1}, journal.size() / 64 - 1}) {
    fs::resize_file(only_cache() / "journal", records * 64 + 17);
    build(whole);
    EXPECT_EQ(read_file(only_cache() / "tokens.u16"), expected);
    EXPECT_EQ(read_file(only_cache() / "documents.u64"), ends);
  }
}

TEST_F(TokenCache, SurvivesKilledWriters) {
  DataOptions whole = options(folder_.write("a.jsonl", lines(40000)));
  whole.dataset = "c4";
  build(whole);
  const std::string expected = read_file(only_cache() / "tokens.u16");
  fs::remove_all(only_cache());
  for (int kill = 0; kill < 5; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      build(whole);
      ::_exit(0);
    }
    while (::waitpid(child, nullptr, WNOHANG) == 0) {
      const auto made = CacheFolder(only_cache_or(folder_ / "cache"), 2).synced_records(0);
      if (!made.empty() && made.back().tokens > kill * 100'000) ::kill(child, SIGKILL);
    }
  }
  build(whole);
  EXPECT_EQ(read_file(only_cache() / "tokens.u16"), expected);
}

TEST_F(TokenCache, DropsWhatAPowerFailureBroke) {
  const std::string path = folder_.write("a.jsonl", lines(60000));
  DataOptions whole = options(path);
  whole.dataset = "c4";
  build(whole);
  const std::string expected = read_file(only_cache() / "tokens.u16");
  std::string broken = expected;
  for (size_t i = broken.size() / 2; i < broken.size(); ++i) broken[i] = 0;
  std::ofstream(only_cache() / "tokens.u16", std::ios::binary) << broken;
  fs::resize_file(only_cache() / "journal", fs::file_size(only_cache() / "journal") - 64);
  build(whole);
  EXPECT_EQ(read_file(only_cache() / "tokens.u16"), expected);
}

TEST_F(TokenCache, ServesSeveralReadersWithOneWriter) {
  const std::string path = folder_.write("a.jsonl", lines(60000));
  DataOptions one = options(path);
  one.dataset = "c4";
  std::vector<std::vector<int32_t>> seen(4);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < seen.size(); ++r) {
    ranks.emplace_back([&, r] {
      Loader loader(one);
      seen[r] = take(loader, 2000);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& other : seen) EXPECT_EQ(other, seen[0]);
}

TEST_F(TokenCache, ShufflingWantsTheWholeCache) {
  DataOptions shuffled = options(folder_.write("a.txt", std::string(1000, 'x') + "\n"));
  shuffled.shuffle_seed = 1;
  EXPECT_ERROR(Loader loader(shuffled), "tokamak tokenizer cache");
  build(shuffled);
  Loader loader(shuffled);
  EXPECT_EQ(loader.next().rows, 2);
}

TEST_F(TokenCache, StartsAFinitePassAgain) {
  DataOptions finite = options(folder_.write("a.txt", "0123456789012345678901234567"));
  finite.infinite = false;
  Loader loader(finite);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(loader.next().tokens[1], '0');
    EXPECT_EQ(loader.next().valid_rows, 1);
    EXPECT_TRUE(loader.next().empty());
    loader.rewind();
  }
}

TEST_F(TokenCache, StopsWhileItWaits) {
  DataOptions small = options(folder_.write("a.jsonl", lines(10)));
  small.dataset = "c4";
  const auto held = CacheAppender::try_open(CacheFolder(folder_ / "cache", 2));
  Loader loader(small);
  loader.next();
}

TEST_F(TokenCache, TellsBadTextToTheReader) {
  DataOptions bad = options(folder_.write("a.jsonl", lines(3) + "{\"text\": 5}\n"));
  bad.dataset = "c4";
  Loader loader(bad);
  EXPECT_ERROR(take(loader, 1000), "a.jsonl: line 4: wanted a string");
  EXPECT_ERROR(build(bad), "a.jsonl: line 4: wanted a string");
}

TEST_F(TokenCache, NamesTextSmallerThanAWindow) {
  Loader loader(options(folder_.write("a.txt", "abc")));
  EXPECT_ERROR(loader.next(), "a.txt: wanted at least one window of 8 tokens (seq_len + 1), got 5");
}

TEST_F(TokenCache, NamesTheTokenizersIdOutsideTheVocabulary) {
  DataOptions small = options(folder_.write("a.txt", "0123456789012345678901234567"));
  small.vocab_size = 128;
  EXPECT_ERROR(
      Loader loader(small),
      "token 0 of the text: id 256 of the tokenizer (vocabulary 258) is outside the "
      "model's vocabulary of 128: wanted the model's own tokenizer, or --model.vocab above "
      "that id");
  EXPECT_FALSE(fs::exists(folder_ / "cache"));
  small.vocab_size = 258;
  Loader loader(small);
}

class DamagedCache : public TokenCache {
 protected:
  /// Returns the folder of a cache of `text_`, as a killed writer leaves it where it is not whole.
  fs::path make(bool is_whole) {
    text_.dataset = "c4";
    text_.path = folder_.write("a.jsonl", lines(60000));
    Loader loader(text_);
    expected_ = take(loader, kBatches);
    build(text_);
    if (!is_whole) fs::resize_file(only_cache() / "journal", 64 * 4);
    return only_cache();
  }

  void expect_same_tokens() {
    Loader loader(text_);
    EXPECT_EQ(take(loader, kBatches), expected_);
  }

  static constexpr int kBatches = 4000;
  DataOptions text_ = options("");
  std::vector<int32_t> expected_;
};

TEST_F(DamagedCache, IsMadeAnewWhereTokensAreLost) {
  for (const bool is_whole : {false, true}) {
    const fs::path cache = make(is_whole);
    std::fstream(cache / "tokens.u16", std::ios::binary | std::ios::in | std::ios::out)
        .seekp(3000)
        .write(std::string(20000, '\0').data(), 20000);
    expect_same_tokens();
    fs::resize_file(cache / "tokens.u16", 100);
    expect_same_tokens();
    fs::resize_file(cache / "documents.u64", 64);
    expect_same_tokens();
    std::ofstream(cache / "journal", std::ios::binary | std::ios::app) << std::string(100, 'x');
    expect_same_tokens();
    fs::remove_all(cache);
  }
}

TEST_F(DamagedCache, IsMadeAnewByOneOfSeveralReaders) {
  const fs::path cache = make(true);
  std::vector<std::vector<int32_t>> seen(4);
  std::vector<std::unique_ptr<Loader>> readers(4);
  for (auto& reader : readers) {
    reader = std::make_unique<Loader>(text_);
    reader->next();
  }
  fs::resize_file(cache / "tokens.u16", fs::file_size(cache / "tokens.u16") / 2);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < seen.size(); ++r) {
    ranks.emplace_back([&, r] {
      readers[r]->rewind();
      seen[r] = take(*readers[r], kBatches);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& tokens : seen) EXPECT_EQ(tokens, expected_);
}

TEST_F(DamagedCache, IsNamedWhereItsFolderCannotBeWritten) {
  const fs::path cache = make(true);
  fs::resize_file(cache / "tokens.u16", 10);
  fs::remove(cache / "lock");
  fs::create_directory(cache / "lock");
  EXPECT_ERROR(Loader loader(text_),
               "the token cache is damaged and cannot be mended: cannot write");
}

TEST_F(DamagedCache, IsNotBelievedBeyondWhatIsSynced) {
  const fs::path cache = make(true);
  const CacheFolder folder(cache, 2);
  for (const CacheRecord& record : folder.synced_records(0)) EXPECT_TRUE(record.synced);
  const auto before = folder.synced_records(0).size();
  ASSERT_GT(before, 3U);
  // A record that no sync vouches for, as earlier versions wrote them.
  std::string journal = read_file(cache / "journal").substr(0, 64 * 3);
  journal[2 * 64 + 40] = 0;
  const uint64_t hash = XXH3_64bits(journal.data() + 2 * 64, 56);
  std::memcpy(journal.data() + 2 * 64 + 56, &hash, sizeof hash);
  std::ofstream(cache / "journal", std::ios::binary | std::ios::trunc) << journal;
  EXPECT_EQ(folder.synced_records(0).size(), 2U);
  expect_same_tokens();
}

TEST_F(TokenCache, TellsOfItsWayToItsPlaceInAPackedFile) {
  const std::string line = lines(1).insert(10, std::string(1000, 'x'));
  std::string text;
  while (text.size() < size_t{9} << 20) text += line;
  const std::string path = folder_ / "a.jsonl.gz";
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  int parts = 0;
  TextReader reader(TextFormat::kJsonLines, list_text_files("c4", path).files, "text",
                    {.offset = std::ssize(text) - std::ssize(line)}, [&] { ++parts; });
  TextPiece piece;
  EXPECT_TRUE(reader.next(piece));
  EXPECT_FALSE(reader.next(piece));
  EXPECT_EQ(parts, 3);
}

TEST_F(TokenCache, TellsThatItsWriterIsAtWork) {
  const std::string path = folder_.write("a.jsonl", lines(60000));
  DataOptions one = options(path);
  one.dataset = "c4";
  const auto progress = [&] {
    Loader reader(one);
    return reader.progress();
  };
  const int64_t before = progress();
  build(one);
  EXPECT_GT(progress(), before);
  CacheFolder(only_cache(), 2).beat();
  EXPECT_GT(progress(), before + CacheFolder(only_cache(), 2).synced_records(0).back().tokens);
}

TEST_F(TokenCache, MendsEveryCut) {
  DataOptions whole = options(folder_.write("a.jsonl", lines(20)));
  whole.dataset = "c4";
  whole.infinite = false;
  build(whole);
  const fs::path cache = only_cache();
  const auto take_all = [&] {
    Loader loader(whole);
    return take(loader, 20);
  };
  const std::vector<int32_t> expected = take_all();
  const std::string journal = read_file(cache / "journal");
  const std::string tokens = read_file(cache / "tokens.u16");
  for (size_t cut = 0; cut < journal.size(); cut += 7) {
    std::ofstream(cache / "journal", std::ios::binary) << journal.substr(0, cut);
    EXPECT_EQ(take_all(), expected) << cut;
  }
  for (size_t bit = 0; bit < journal.size() * 8; bit += 31) {
    std::string damaged = journal;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    std::ofstream(cache / "journal", std::ios::binary) << damaged;
    EXPECT_EQ(take_all(), expected) << bit;
  }
  for (size_t cut = 0; cut < tokens.size(); cut += 13) {
    fs::resize_file(cache / "tokens.u16", cut);
    EXPECT_EQ(take_all(), expected) << cut;
    EXPECT_EQ(read_file(cache / "tokens.u16"), tokens) << cut;
  }
}

TEST_F(TokenCache, NamesAnUnwritableFolder) {
  DataOptions bad = options(folder_.write("a.txt", std::string(100, 'x')));
  bad.cache_folder = folder_.write("file", "in the way") + "/cache";
  Loader loader(bad);
  EXPECT_ERROR(loader.next(), "cannot create folder");
}

}  // namespace
}  // namespace tokamak

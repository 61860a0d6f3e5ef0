#include "tokamak/data/text_reader.h"

#include <sys/stat.h>

#include "tokamak/data/byte_stream.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/test_files.h"
#include "tokamak/data/test_texts.h"

namespace tokamak {
namespace {

const char* const kLines =
    "{\"text\": \"one\", \"url\": \"u\"}\n\n{\"n\": [1, 2], \"text\": \"t\\u0077o\"}";
const std::vector<std::string> kTexts{"one", "two"};

TEST(TextReader, ReadsJsonLinesPackedOrNot) {
  const TestFolder folder;
  EXPECT_EQ(read_all("c4", folder.write("a.jsonl", kLines)), kTexts);
  EXPECT_EQ(read_all("c4", folder.write("a.json.gz", gzip(kLines))), kTexts);
  EXPECT_EQ(read_all("c4", folder.write("b.json.gz", gzip("{\"text\": \"one\"}\n") +
                                                         gzip("{\"text\": \"two\"}\n"))),
            kTexts);
  EXPECT_EQ(read_all("c4", folder.write("a.jsonl.zst", zstd(kLines))), kTexts);
  folder.write("capitals/A.JSONL.GZ", gzip(kLines));
  EXPECT_EQ(read_all("c4", folder / "capitals"), kTexts);
}

TEST(TextReader, MendsWhatOtherProgramsWrite) {
  const TestFolder folder;
  EXPECT_EQ(read_all("c4", folder.write("bom.jsonl", std::string("\xEF\xBB\xBF") + kLines)),
            kTexts);
  const std::string halves =
      R"({"text": "a\ud83d \ude00\ud83d\ude00 \\ud83d\ud83d\u0041\n", "n": "\udc00"})";
  EXPECT_EQ(read_all("c4", folder.write("halves.jsonl", halves)),
            (std::vector<std::string>{"a\uFFFD \uFFFD\U0001F600 \\ud83d\uFFFDA\n"}));
  EXPECT_ERROR(read_all("c4", folder.write("bad.jsonl", R"({"text": "\ud83d\q"})")),
               "bad.jsonl: line 1");
  EXPECT_ERROR(read_all("c4", folder.write("cut.jsonl", R"({"text": "\ud8)")), "cut.jsonl: line 1");
}

TEST(TextReader, BombsAndPipesAreRefused) {
  const TestFolder folder;
  const std::string blank(70 << 20, '\n');
  for (const auto& [name, packed] :
       {std::pair{"a.jsonl.gz", gzip(blank)}, std::pair{"a.jsonl.zst", zstd(blank)}}) {
    const auto stream = open_bytes(folder.write(name, packed));
    EXPECT_ERROR(stream->skip(std::ssize(blank)), "wanted at most 200 times");
  }
  ASSERT_EQ(mkfifo((folder / "fifo.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(read_all("c4", folder / "fifo.jsonl"), Error);
  EXPECT_THROW(open_bytes(folder / "fifo.jsonl"), Error);
}

TEST(TextReader, PicksTheSplitOfAC4Folder) {
  const TestFolder folder;
  folder.write("c4/en/c4-train.00001-of-00002.json.gz", gzip("{\"text\": \"two\"}\n"));
  folder.write("c4/en/c4-train.00000-of-00002.json.gz", gzip("{\"text\": \"one\"}\n"));
  folder.write("c4/en/c4-validation.00000-of-00001.json.gz", gzip("{\"text\": \"val\"}\n"));
  folder.write("c4/README.md", "no data");
  EXPECT_EQ(read_all("c4", folder / "c4"), kTexts);
  EXPECT_EQ(read_all("c4_validation", folder / "c4"), std::vector<std::string>{"val"});
}

TEST(TextReader, SaysWhatAC4FolderHoldsThatIsNotRead) {
  const TestFolder folder;
  folder.write("d/a.jsonl", kLines);
  folder.write("d/b.jsonl.xz", "x");
  folder.write("d/c.json.bz2", "x");
  folder.write("d/LICENSE", "x");
  const TextSource source = text_source("c4", folder / "d");
  EXPECT_EQ(source.files.size(), 1U);
  ASSERT_EQ(source.remarks.size(), 1U);
  EXPECT_NE(source.remarks[0].find("left out 2 of 3 files, which are not text, such as b.jsonl.xz"),
            std::string::npos)
      << source.remarks[0];
  EXPECT_ERROR(read_all("c4", folder.write("e/a.jsonl.xz", "x")), "wanted one JSON object");
  EXPECT_ERROR(read_all("c4", folder / "e"), "no *.json, *.jsonl");
}

TEST(TextReader, GoesOnFromAnyPosition) {
  const TestFolder folder;
  folder.write("d/a.jsonl", kLines);
  folder.write("d/b.jsonl.zst", zstd(kLines));
  folder.write("d/c.json.gz", gzip(kLines));
  const std::vector<std::string> all = read_all("c4", folder / "d");
  ASSERT_EQ(all.size(), 6U);
  TextReader reader(TextFormat::kJsonLines, list_text_files("c4", folder / "d").files);
  TextPiece piece;
  for (auto rest = all.begin(); reader.next(piece);) {
    ++rest;
    EXPECT_EQ(read_all("c4", folder / "d", reader.position()),
              std::vector<std::string>(rest, all.end()));
  }
}

TEST(TextReader, CutsLongTextAfterLines) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i) text += "line " + std::to_string(i) + "\n\n  x\n";
  folder.write("t/a.txt", text);
  folder.write("t/b.md.gz", gzip("short"));
  folder.write("t/empty.py", "");
  folder.write("t/.hidden", "no");
  TextReader reader(TextFormat::kPlain, list_text_files("text", folder / "t").files);
  std::string joined;
  int documents = 0;
  for (TextPiece piece; reader.next(piece);) {
    EXPECT_EQ(piece.begins, joined.empty() || documents == 1);
    documents += piece.ends ? 1 : 0;
    EXPECT_TRUE(piece.ends || piece.text.back() == '\n');
    EXPECT_TRUE(piece.begins || piece.text.starts_with("line "));
    joined += piece.text;
  }
  EXPECT_EQ(joined, text + "short");
  EXPECT_EQ(documents, 2);
}

TEST(TextReader, SurvivesOneVeryLongLine) {
  const TestFolder folder;
  std::string text;
  while (text.size() < 20'000'000) text += "\xC3\xA4";
  size_t size = 0;
  TextReader reader(TextFormat::kPlain, list_text_files("text", folder.write("a.txt", text)).files);
  for (TextPiece piece; reader.next(piece);) {
    size += piece.text.size();
    EXPECT_EQ(piece.text.size() % 2, 0U);
  }
  EXPECT_EQ(size, text.size());
}

TEST(TextReader, LeavesOutWhatIsNoTextInAFolder) {
  const TestFolder folder;
  const std::string zero("\x89PNG\r\n\x1a\n\0\0", 10);
  folder.write("d/a.png", zero);
  folder.write("d/b.txt", "one");
  folder.write("d/c.txt.gz", gzip("two"));
  folder.write("d/p.parquet", "PAR1");
  folder.write("d/sub/late", std::string(65000, 'a') + zero);
  folder.write("d/y.bz2", "BZh91AY&SY packed");
  folder.write("d/z.zst", zstd(zero));
  EXPECT_EQ(read_all("text", folder / "d"), kTexts);
  const TextFiles list = list_text_files("text", folder / "d");
  ASSERT_EQ(list.others.size(), 5U);
  EXPECT_EQ(list.others[0].name, "a.png");
  EXPECT_EQ(list.others[2].name, "sub/late");

  folder.write("e/a.png", zero);
  EXPECT_ERROR(read_all("text", folder / "e"), "wanted text, got none in 1 files such as a.png");
  folder.write("e/b.txt", std::string(100000, 'a') + zero);
  EXPECT_ERROR(read_all("text", folder / "e"),
               "b.txt: wanted text in UTF-8, got a zero byte at 1000");
}

TEST(TextReader, SaysWhatIsReadAsPlainTextButHoldsJsonLines) {
  const TestFolder folder;
  folder.write("d/a.jsonl", kLines);
  folder.write("d/b.json.gz", gzip(kLines));
  folder.write("d/c.json", "{\n  \"name\": \"a package\"\n}\n");
  folder.write("d/d.json", kLines);
  folder.write("d/e.md", "plain");
  const auto remarks = text_source("text", folder / "d").remarks;
  ASSERT_EQ(remarks.size(), 1U);
  EXPECT_NE(remarks[0].find("3 of 5 files are JSON lines by their names, such as a.jsonl"),
            std::string::npos)
      << remarks[0];
  folder.write("code/package.json", "{\"name\": \"a package\"}\n");
  folder.write("code/a.py", "plain");
  EXPECT_TRUE(text_source("text", folder / "code").remarks.empty());
  EXPECT_EQ(text_source("text", folder / "d/a.jsonl").remarks.size(), 1U);
  EXPECT_TRUE(text_source("c4", folder / "d/a.jsonl").remarks.empty());
}

TEST(TextReader, ReadsFilesByTheirNames) {
  const TestFolder folder;
  folder.write("d/a.jsonl.zst", zstd(kLines));
  folder.write("d/b.json", "[1, 2]");
  folder.write("d/c.txt", "plain");
  folder.write("d/d.png", std::string("\0", 1));
  const auto texts_of = [](const std::string& path) {
    std::vector<std::string> all;
    for (const TextSource& source : text_sources_by_name(path)) {
      TextReader reader(source.format, source.files);
      for (TextPiece piece; reader.next(piece);) all.push_back(piece.text);
      for (const std::string& line : source.remarks) all.push_back(line.substr(line.find(": ")));
    }
    return all;
  };
  EXPECT_EQ(
      texts_of(folder / "d"),
      (std::vector<std::string>{"one", "two", "[1, 2]", "plain",
                                ": left out d.png, the only one of 3 files that is not text"}));
  EXPECT_EQ(texts_of(folder / "d/a.jsonl.zst"), kTexts);
  EXPECT_EQ(texts_of(folder / "d/c.txt"), std::vector<std::string>{"plain"});
  EXPECT_EQ(texts_of(folder.write("e/a.json", kLines)), kTexts);
  EXPECT_ERROR(texts_of(folder.write("f/a.png", std::string("\0", 1))), "zero byte at 0");
  EXPECT_ERROR(texts_of(folder / "f"), "wanted text, got none in 1 files such as a.png");
}

TEST(TextReader, FollowsLinksButNoLoops) {
  const TestFolder folder;
  folder.write("d/a/b.txt", "one");
  folder.write("e/c.txt", "two");
  std::filesystem::create_directory_symlink(folder / "d", folder / "d/a/up");
  std::filesystem::create_directory_symlink(".", folder / "d/self");
  std::filesystem::create_directory_symlink(folder / "e", folder / "d/e");
  EXPECT_EQ(read_all("text", folder / "d"), kTexts);
}

TEST(TextReader, NamesFileAndLineOfBadInput) {
  const TestFolder folder;
  const auto read = [&](const std::string& name, const std::string& bytes) {
    read_all("c4", folder.write(name, bytes));
  };
  EXPECT_ERROR(read("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"cut"),
               "a.jsonl: line 2: wanted one");
  EXPECT_ERROR(read("b.jsonl", "{\"txt\": \"x\"}\n"), "b.jsonl: line 1: no \"text\" field");
  EXPECT_ERROR(read("c.jsonl", "{\"text\": 3}\n"), "wanted a string in the \"text\" field");
  EXPECT_ERROR(read("d.jsonl", "[1]\n"), "wanted a JSON object");
  EXPECT_ERROR(read("e.jsonl", ""), "e.jsonl: empty file");
  const std::string long_text = std::string(kLines) + std::string(1000, '\n');
  EXPECT_ERROR(read("f.json.gz", gzip(kLines).substr(0, 40)),
               "f.json.gz: the gzip data end too early");
  EXPECT_ERROR(read("g.json.gz", "plain text"), "g.json.gz: wanted gzip data");
  EXPECT_ERROR(read("h.jsonl.zst", zstd(long_text).substr(0, 30)),
               "h.jsonl.zst: the zstd data end");
  EXPECT_ERROR(read("i.jsonl.zst", "plain text"), "i.jsonl.zst: broken zstd data");
  EXPECT_ERROR(read_all("c4", folder / "none"), "no such file or folder");
  EXPECT_ERROR(
      read_all("text", folder.write("z.txt", std::string("ab\0c", 4))),
      "z.txt: wanted text in UTF-8, got a zero byte at 2: convert the file, or leave it out");
  EXPECT_ERROR(read_all("text", folder.write("p.parquet", "PAR1")), "dataset c4 reads Parquet");
  EXPECT_ERROR(read_all("text", folder.write("y.txt", "")), "got empty files only");
  EXPECT_ERROR(read_all("text", folder.write("x.txt", "BZh91AY&SY")),
               "x.txt: wanted text in UTF-8, got bzip2 data: unpack the file");
  EXPECT_ERROR(read_all("c4", folder.write("w.jsonl", "\xFD\x37zXZ")), "got xz data: unpack");
  std::filesystem::create_directories(folder / "nothing");
  EXPECT_ERROR(read_all("text", folder / "nothing"), "wanted text, got an empty folder");
}

}  // namespace
}  // namespace tokamak

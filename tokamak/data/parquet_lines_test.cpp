#include "tokamak/data/parquet_lines.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/test_files.h"
#include "tokamak/data/text_reader.h"

namespace tokamak {
namespace {

using Texts = std::vector<std::optional<std::string>>;  // nothing: a null

Texts some_texts() {
  Texts texts;
  for (int i = 0; i < 3000; ++i) {
    if (i % 97 == 0) {
      texts.emplace_back(std::nullopt);
    } else {
      texts.emplace_back(
          fmt::format("line {}\nwith \"quotes\" and caf\xc3\xa9 {}", i, i * i % 1013));
    }
  }
  return texts;
}

template <class Builder>
std::shared_ptr<arrow::Array> array_of(const Texts& texts) {
  Builder builder;
  for (const auto& text : texts)
    EXPECT_TRUE((text ? builder.Append(*text) : builder.AppendNull()).ok());
  return builder.Finish().ValueOrDie();
}

void write(const std::string& path, const std::string& column,
           const std::shared_ptr<arrow::Array>& texts,
           arrow::Compression::type packing = arrow::Compression::SNAPPY) {
  arrow::Int32Builder numbers;
  for (int32_t i = 0; i < texts->length(); ++i) EXPECT_TRUE(numbers.Append(i).ok());
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("id", arrow::int32()), arrow::field(column, texts->type())}),
      {numbers.Finish().ValueOrDie(), texts});
  const auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto properties =
      parquet::WriterProperties::Builder().compression(packing)->enable_page_checksum()->build();
  const auto with_schema = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, 700,
                                         properties, with_schema)
                  .ok());
  ASSERT_TRUE(file->Close().ok());
}

Texts read(const std::string& path, const std::string& column = "text") {
  TextReader reader(
      TextFormat::kJsonLines,
      {{.path = path, .name = "a", .size = static_cast<int64_t>(std::filesystem::file_size(path))}},
      column);
  Texts texts;
  for (TextPiece piece; reader.next(piece);) texts.emplace_back(piece.text);
  return texts;
}

std::string refusal_of(const std::string& path, const std::string& column = "text") {
  try {
    read(path, column);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(ParquetLines, rows_of_all_groups_in_order_whatever_holds_them) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  const Texts texts = some_texts();
  Texts want;
  for (const auto& text : texts) want.emplace_back(text.value_or(""));
  for (const auto packing :
       {arrow::Compression::SNAPPY, arrow::Compression::ZSTD, arrow::Compression::UNCOMPRESSED}) {
    write(path, "text", array_of<arrow::StringBuilder>(texts), packing);
    EXPECT_EQ(read(path), want);
  }
  for (const auto& array :
       {array_of<arrow::LargeStringBuilder>(texts), array_of<arrow::BinaryBuilder>(texts),
        array_of<arrow::StringViewBuilder>(texts),
        array_of<arrow::StringDictionary32Builder>(texts)}) {
    write(path, "text", array);
    EXPECT_EQ(read(path), want) << array->type()->ToString();
  }
}

// Rows of {"role": ..., "content": ...}, of which the last has none, and of plain strings.
std::shared_ptr<arrow::Array> some_chats() {
  auto* pool = arrow::default_memory_pool();
  const auto role = std::make_shared<arrow::StringBuilder>();
  const auto content = std::make_shared<arrow::StringBuilder>();
  const auto message = std::make_shared<arrow::StructBuilder>(
      arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8())}),
      pool, std::vector<std::shared_ptr<arrow::ArrayBuilder>>{role, content});
  arrow::ListBuilder chats(pool, message);
  const auto add = [&](const char* who, const std::optional<std::string>& what) {
    EXPECT_TRUE(message->Append().ok() && role->Append(who).ok());
    EXPECT_TRUE((what ? content->Append(*what) : content->AppendNull()).ok());
  };
  EXPECT_TRUE(chats.Append().ok());
  add("user", "Why?");
  add("tool", std::nullopt);
  add("assistant", "Because.");
  EXPECT_TRUE(chats.Append().ok());
  add("user", "Hm");
  EXPECT_TRUE(chats.Append().ok() && chats.AppendNull().ok());
  return chats.Finish().ValueOrDie();
}

TEST(ParquetLines, members_of_structs_and_lists_by_their_names) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  write(path, "messages", some_chats());
  EXPECT_EQ(read(path, "messages.content"), (Texts{"Why?\nBecause.", "Hm", "", ""}));
  EXPECT_EQ(read(path, "messages.role"), (Texts{"user\ntool\nassistant", "user", "", ""}));
  EXPECT_EQ(refusal_of(path),
            path +
                ": wanted a column \"text\" of strings, there are id, messages.role, "
                "messages.content; text_column names the one to read");
  EXPECT_EQ(refusal_of(path, "messages"), path +
                                              ": column \"messages\": wanted strings, got "
                                              "members; name one of messages.role, "
                                              "messages.content");
  EXPECT_NE(refusal_of(path, "messages.contents"), "");

  arrow::ListBuilder sentences(arrow::default_memory_pool(),
                               std::make_shared<arrow::StringBuilder>());
  auto& sentence = static_cast<arrow::StringBuilder&>(*sentences.value_builder());
  ASSERT_TRUE(sentences.Append().ok() && sentence.AppendValues({"One.", "Two."}).ok());
  write(path, "a.b", sentences.Finish().ValueOrDie());
  EXPECT_EQ(read(path, "a.b"), (Texts{"One.\nTwo."}));
}

class CountedFile final : public RandomFile {
 public:
  explicit CountedFile(const std::string& path) : file_(open_local_file(path)) {}

  const std::string& name() const override { return file_->name(); }

  int64_t size() const override { return file_->size(); }

  void read_at(int64_t offset, std::span<std::byte> out) override {
    if (++reads_ > most_reads) throw SystemError("the store is gone");
    bytes_ += std::ssize(out);
    file_->read_at(offset, out);
  }

  int reads() const { return reads_; }

  int64_t bytes() const { return bytes_; }

  int most_reads = 1000;

 private:
  std::unique_ptr<RandomFile> file_;
  std::atomic<int> reads_{0};
  std::atomic<int64_t> bytes_{0};
};

// Row groups that are near each other come in one read, and columns that are not wanted are left
// out.
TEST(ParquetLines, reads_few_ranges_of_a_file_and_its_column_alone) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  Texts wide(8);
  for (size_t i = 0; i < wide.size(); ++i)
    wide[i] = std::string(size_t{3} << 20, static_cast<char>('a' + i));
  const auto other = array_of<arrow::StringBuilder>(wide);
  const auto texts = array_of<arrow::StringBuilder>({"a", "b", "c", "d", "e", "f", "g", "h"});
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("text", arrow::utf8()), arrow::field("other", arrow::utf8())}),
      {texts, other});
  const auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto properties = parquet::WriterProperties::Builder().disable_dictionary()->build();
  ASSERT_TRUE(
      parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, 4, properties).ok());
  ASSERT_TRUE(file->Close().ok());

  for (const auto& [column, most_reads, most_bytes] :
       {std::tuple{"text", 4, int64_t{1} << 20}, std::tuple{"other", 3, int64_t{26} << 20}}) {
    auto counted = std::make_unique<CountedFile>(path);
    const CountedFile& seen = *counted;
    const auto lines = open_parquet_lines(std::move(counted), column);
    std::vector<char> out(1 << 20);
    size_t size = 0;
    for (size_t got = 1; got > 0; size += got) got = lines->read(out);
    EXPECT_GT(size, column == std::string("text") ? 8U * 10 : 24U << 20U);
    EXPECT_LE(seen.reads(), most_reads) << column;
    EXPECT_LE(seen.bytes(), most_bytes) << column;
  }
}

TEST(ParquetLines, what_a_file_throws_arrives_whole) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  write(path, "text", array_of<arrow::StringBuilder>(some_texts()));
  for (const int most_reads : {0, 1}) {
    auto file = std::make_unique<CountedFile>(path);
    file->most_reads = most_reads;
    const auto read_all = [&] {
      const auto lines = open_parquet_lines(std::move(file), "text");
      std::vector<char> out(1 << 20);
      while (lines->read(out) > 0) {
      }
    };
    EXPECT_THROW(read_all(), SystemError) << most_reads;
  }
}

TEST(ParquetLines, says_what_is_wrong_in_a_line) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  write(path, "body", array_of<arrow::StringBuilder>({"a"}));
  EXPECT_NE(refusal_of(path).find("wanted a column \"text\" of strings, there are id, body"),
            std::string::npos)
      << refusal_of(path);
  arrow::Int64Builder numbers;
  ASSERT_TRUE(numbers.Append(3).ok());
  write(path, "text", numbers.Finish().ValueOrDie());
  EXPECT_NE(refusal_of(path).find("column \"text\": wanted strings, got int64"), std::string::npos);

  write(path, "text", array_of<arrow::StringBuilder>(some_texts()));
  const std::string whole = read_file(path);
  for (size_t cut = 0; cut < whole.size(); cut += whole.size() / 7) {
    FileWriter(path).write(whole.substr(0, cut));
    EXPECT_NE(refusal_of(path), "") << cut;
  }
}

// Pages have checksums here; a flip in what is not read, or in a statistic, changes no text.
TEST(ParquetLines, a_damaged_byte_changes_no_text_unseen) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  write(path, "text", array_of<arrow::StringBuilder>(some_texts()), arrow::Compression::ZSTD);
  const Texts want = read(path);
  const std::string whole = read_file(path);
  int refused = 0;
  for (size_t at = 5; at < whole.size(); at += whole.size() / 61) {
    std::string damaged = whole;
    damaged[at] ^= 0x5a;
    FileWriter(path).write(damaged);
    const std::string refusal = refusal_of(path);
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
    if (refusal.empty()) {
      EXPECT_EQ(read(path), want) << at;
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(ParquetLines, every_cut_and_flipped_bit_of_a_small_file_is_seen) {
  const TestFolder folder;
  const std::string path = folder / "a.parquet";
  write(path, "text", array_of<arrow::StringBuilder>({"one", "two", "three", "four", "five"}));
  const Texts want = read(path);
  const std::string whole = read_file(path);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    FileWriter(path).write(whole.substr(0, cut));
    EXPECT_NE(refusal_of(path), "") << cut;
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    FileWriter(path).write(damaged);
    EXPECT_TRUE(!refusal_of(path).empty() || read(path) == want) << bit;
  }
}

}  // namespace
}  // namespace tokamak

#include <string>
#include <vector>

#include "tokamak/data/test_files.h"
#include "tokamak/data/test_texts.h"

namespace tokamak {
namespace {

using Texts = std::vector<std::string>;

const std::string kBom = "\xEF\xBB\xBF";
const Texts kAB{"a", "b"};

// All of these are read alike by Python's datasets 5.2.0.
TEST(JsonLines, AreReadAsDatasetsReadsThem) {
  const TestFolder folder;
  const std::string pretty =
      "{\n  \"text\": \"a\",\n  \"n\": [1,\n 2]\n}\n{\n  \"text\": \"b\"\n}\n";
  const std::pair<const char*, std::string> cases[] = {
      {"nan", R"({"text":"a","s":NaN})"
              "\n"
              R"({"s":[-Infinity,Infinity, NaN,Inf,-Inf],"text":"b"})"},
      {"big", R"({"text":"a","h":18446744073709551616,"i":-9223372036854775809})"
              "\n"
              R"({"h":{"k":123456789012345678901234567890},"text":"b"})"},
      {"big_float", R"({"text":"a","f":1e999})"
                    "\n"
                    R"({"text":"b","f":-1.5E+0400})"},
      {"array", R"([{"text":"a"},{"text":"b"}])"
                "\n"},
      {"array_pretty", "[\n  {\n    \"text\": \"a\"\n  },\n  {\"text\": \"b\"}\n]\n"},
      {"array_after_blanks", kBom + " \n" + R"([{"text":"a"},{"text":"b"}])"},
      {"array_of_strings", R"(["a", "b"])"},
      {"array_nan", R"([{"text":"a","s":NaN},{"text":"b","s":1}])"},
      {"array_brackets", R"([{"s":"]},[{\"\\","text":"a"},{"text":"b"}])"},
      {"pretty", pretty},
      {"pretty_crlf", R"({)"
                      "\r\n"
                      R"("text":"a")"
                      "\r\n"
                      R"(})"
                      "\r\n"
                      R"({"text":"b"})"
                      "\r\n"},
      {"two_on_a_line", R"({"text":"a"} {"text":"b"})"
                        "\n"},
      {"touching", R"({"text":"a"}{"text":"b"})"},
      {"crlf", "{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n"},
      {"cr", "{\"text\":\"a\"}\r{\"text\":\"b\"}\r"},
      {"blanks", "\n\n{\"text\":\"a\"}\n \t \n\r\n{\"text\":\"b\"}\n\n"},
      {"bom", kBom + "{\"text\":\"a\"}\n" + kBom + "{\"text\":\"b\"}"},
      {"no_line_end", "{\"text\":\"a\"}\n{\"text\":\"b\"}"},
  };
  for (const auto& [name, bytes] : cases) {
    EXPECT_EQ(error_of([&, b = &bytes, n = name] {
                EXPECT_EQ(read_all("c4", folder.write(std::string(n) + ".jsonl", *b)), kAB) << n;
              }),
              "")
        << name;
  }
  const std::string words =
      R"({"text": "NaN, Infinity and 18446744073709551616 \ud83d", "s": NaN})";
  EXPECT_EQ(read_all("c4", folder.write("words.jsonl", words)),
            Texts{"NaN, Infinity and 18446744073709551616 \uFFFD"});
}

TEST(JsonLines, GoOnFromAnyPositionHoweverTheyAreWritten) {
  const TestFolder folder;
  std::string array = kBom + "[\n";
  std::string pretty;
  std::string on_a_line;
  Texts want;
  for (int i = 0; i < 9; ++i) {
    want.push_back(std::string(i * 40'000, 'x') + std::to_string(i));
    array += std::string(i > 0 ? ",\n" : "") + " {\"text\": \"" + want.back() + "\"}";
    pretty += "{\n  \"n\": NaN,\n  \"text\": \"" + want.back() + "\"\n}\n\n";
    on_a_line += "{\"text\": \"" + want.back() + "\"} ";
  }
  for (const std::string& bytes : {array + "\n]\n", pretty, on_a_line}) {
    for (const auto& [name, packed] :
         {std::pair{"a.json", bytes}, std::pair{"a.json.gz", gzip(bytes)}}) {
      const std::string path = folder.write(name, packed);
      EXPECT_EQ(read_all("c4", path), want);
      TextReader reader(TextFormat::kJsonLines, list_text_files("c4", path).files);
      size_t done = 0;
      for (TextPiece piece; reader.next(piece);)
        EXPECT_EQ(read_all("c4", path, reader.position()),
                  Texts(want.begin() + ++done, want.end()));
    }
  }
}

TEST(JsonLines, NameFileLineAndFieldOfWhatIsWrong) {
  const TestFolder folder;
  const std::string first = "{\"text\":\"a\"}\n";
  const std::string zeros(3, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {R"([{"text":"a"},)"
       "\n"
       R"({"text":"b"})",
       "line 2: the JSON array ends too early"},
      {R"([{"text":"a"},)", "line 1: the JSON array ends too early"},
      {R"([{"text":"a"},])", "line 1: wanted one JSON object"},
      {R"([{"text":"a"} {"text":"b"}])", "line 1: wanted a comma or the end"},
      {R"([{"text":"a"}])"
       "\n"
       R"([{"text":"b"}])",
       "line 2: wanted nothing after"},
      {R"([)", "line 1: the JSON array ends too early"},
      {R"([1])", "wanted a JSON object with a \"text\" field, got a number"},
      {"[]", "wanted JSON lines, got no text"},
      {"\n \n", "wanted JSON lines, got no text"},
      {first + R"({"text":null})", "line 2: wanted a string in the \"text\" field, got null"},
      {first + R"({"text":6})", "line 2: wanted a string in the \"text\" field, got a number"},
      {first + R"({"text":[1]})", "line 2: wanted a string in the \"text\" field, got a number"},
      {first + R"({"body":"a", "url":1})", "line 2: no \"text\" field, only body, url"},
      {R"({"a\nb":1})", "line 1: no \"text\" field, only a"},
      {R"({"data":[{"text":"a"}]})", "line 1: no \"text\" field, only data"},
      {first + R"({"text":"b","text":"z"})", "line 2: wanted one \"text\" field, got 2"},
      {first + "\"b\"\n", "line 2: wanted a JSON object with a \"text\" field, got a string"},
      {first + "{\"text\": \"b\n" + first, "line 2: wanted one JSON object per line, got invalid"},
      {first + "{\"text\": \"b\",\n" + first,
       "line 2: wanted one JSON object per line, got invalid"},
      {first + "{\"text\": \"b", "line 2: wanted one JSON object per line, got invalid JSON"},
      {first + zeros, "line 2: wanted one JSON object per line, got invalid JSON"},
      {first + R"({"text":"b","n":007})", "line 2: wanted one JSON object per line, got invalid"},
      {first + R"({"text":"b","n":nan})", "line 2: wanted one JSON object per line, got invalid"},
      {first + R"({"text":"b","n":1.e5})", "line 2: wanted one JSON object per line, got invalid"},
      {"{\"text\":\"\xFF\"}",
       "line 1: wanted one JSON object per line, got invalid JSON: The input is"},
      {std::string("\xFF\xFE{\0\"\0", 6), "in UTF-8, got UTF-16: convert the file, as by iconv"},
      {gzip(first), "got gzip data: let the name end in .gz"},
      {zstd(first), "got zstd data: let the name end in .zst"},
      {"PAR1\x15", "got a Parquet file: let the name end in .parquet"},
  };
  for (const auto& [bytes, part] : cases) {
    const std::string path = folder.write("bad.jsonl", bytes);
    EXPECT_ERROR(read_all("c4", path), part);
    EXPECT_NE(error_of([&] { read_all("c4", path); }).find("bad.jsonl"), std::string::npos);
  }
}

TEST(JsonLines, ChangeUnderARunIsNoticed) {
  const TestFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
  TextReader reader(TextFormat::kJsonLines, list_text_files("c4", path).files);
  folder.write("a.jsonl", "{\"text\":\"a\"}\n");
  TextPiece piece;
  EXPECT_TRUE(reader.next(piece));
  EXPECT_ERROR(reader.next(piece), "a.jsonl: the file has 13 bytes, it had 26 when the run began");
}

std::string text_of_column(const std::string& column, const std::string& value) {
  JsonTextParser parser(column);
  std::string padded = value;
  padded.resize(value.size() + JsonTextParser::kPadding);
  parser.parse(std::string_view(padded).substr(0, value.size()));
  return std::string(parser.text("a.jsonl"));
}

TEST(JsonLines, ReadsTheColumnThatIsNamed) {
  EXPECT_EQ(text_of_column("body", R"({"text": "no", "body": "yes"})"), "yes");
  EXPECT_EQ(text_of_column("a.b", R"({"a": {"b": "inner"}, "a.b": "itself"})"), "itself");
  EXPECT_EQ(text_of_column("a.b.c", R"({"a": {"b.c": "x"}})"), "x");
  EXPECT_EQ(text_of_column("m.content", R"({"m": [{"content": "Why?"}, {"content": null}, {"x": 1},
                                        {"content": ["Be", "cause."]}]})"),
            "Why?\nBe\ncause.");
  EXPECT_EQ(text_of_column("m.content", R"({"m": []})"), "");
  EXPECT_EQ(text_of_column("m", R"({"m": ["a", null, "b"]})"), "a\nb");
  EXPECT_ERROR(text_of_column("m.contents", R"({"m": [{"content": "Why?"}], "n": 1})"),
               "a.jsonl: no \"m.contents\" field, only m, n; text_column names the one to read");
  EXPECT_ERROR(text_of_column("m", R"({"m": [{"content": "Why?"}]})"),
               "wanted a string in the \"m\" field, got an object");
  EXPECT_ERROR(text_of_column("m", R"({"m": null})"),
               "wanted a string in the \"m\" field, got null");
}

}  // namespace
}  // namespace tokamak

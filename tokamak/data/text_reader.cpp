#include "tokamak/data/text_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 18;
constexpr int64_t kSkippedBytes = int64_t{4} << 20;
constexpr size_t kLookedAtBytes = size_t{1} << 16;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kLongestPiece = size_t{1} << 24;
constexpr size_t kLongestLine = size_t{1} << 28;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

// Contents that are no text, whatever the file's name says.
constexpr std::pair<std::string_view, const char*> kOtherContents[] = {
    {"\xFF\xFE", "UTF-16: convert the file, as by iconv -f UTF-16 -t UTF-8"},
    {"\xFE\xFF", "UTF-16: convert the file, as by iconv -f UTF-16 -t UTF-8"},
    {"\x1F\x8B", "gzip data: let the name end in .gz"},
    {"\x28\xB5\x2F\xFD", "zstd data: let the name end in .zst"},
    {"\xFD\x37zXZ", "xz data: unpack the file, or pack it as .gz or .zst"},
    {"BZh91AY&SY", "bzip2 data: unpack the file, or pack it as .gz or .zst"},
    {"PAR1\x15", "a Parquet file: let the name end in .parquet"},
};

const char* other_content(std::string_view front) {
  for (const auto& [magic, what] : kOtherContents)
    if (front.starts_with(magic)) return what;
  return nullptr;
}

// Whether the name is that of JSON lines, packed in a format that can be read or not.
bool is_named_json_lines(const std::string& name) {
  return is_json_lines(name) || is_json_lines(fs::path(name).stem().string());
}

bool is_validation(const SourceFile& file) {
  return file.path.filename().string().find("validation") != std::string::npos;
}

TextFiles list_c4(const std::string& dataset, const fs::path& path) {
  const fs::path english = path / "en";
  const bool has_english = is_folder(path) && is_folder(english);
  TextFiles list{.files = list_files(has_english ? english : path, is_named_json_lines),
                 .others = {}};
  std::vector<SourceFile>& files = list.files;
  if (is_source_folder(path)) {
    const auto others =
        std::stable_partition(files.begin(), files.end(),
                              [](const SourceFile& file) { return is_json_lines(file.name); });
    list.others.assign(others, files.end());
    files.erase(others, files.end());
  }
  const auto split = std::stable_partition(files.begin(), files.end(), [&](const SourceFile& file) {
    return is_validation(file) == (dataset == "c4_validation");
  });
  if (split != files.begin()) files.erase(split, files.end());
  TOK_REQUIRE(!files.empty(),
              "{}: no *.json, *.jsonl, *.json.gz, *.jsonl.zst or *.parquet files in this folder",
              path.string());
  for (const SourceFile& file : files) {
    TOK_REQUIRE(file.size > 0, "{}: empty file, wanted JSON lines", file.path.string());
  }
  return list;
}

// Formats of pictures, archives and programs have a zero byte early, and UTF-8 has none.
bool is_plain_text(const SourceFile& file) {
  if (is_parquet(file.path)) return false;
  const auto stream = open_bytes(open_source_file(file));
  std::vector<char> bytes(kLookedAtBytes);
  for (size_t left = bytes.size(), got = 1; left > 0 && got > 0; left -= got) {
    got = stream->read(std::span(bytes).first(left));
    const bool is_front = left == bytes.size();
    if (std::memchr(bytes.data(), 0, got) != nullptr) return false;
    if (is_front && other_content({bytes.data(), got}) != nullptr) return false;
  }
  return true;
}

std::vector<SourceFile> list_all(const fs::path& path) {
  std::vector<SourceFile> files = list_files(path, [](const std::string&) { return true; });
  TOK_REQUIRE(!files.empty(), "{}: wanted text, got an empty folder", path.string());
  std::erase_if(files, [](const SourceFile& file) { return file.size == 0; });
  TOK_REQUIRE(!files.empty(), "{}: wanted text, got empty files only", path.string());
  return files;
}

TextFiles without_others(std::vector<SourceFile> files) {
  const auto others = std::stable_partition(files.begin(), files.end(), is_plain_text);
  TextFiles list{.files = {}, .others = {others, files.end()}};
  files.erase(others, files.end());
  list.files = std::move(files);
  return list;
}

// The only file that was named is not left out: reading it says what is wrong with it.
TextFiles list_plain_text(const fs::path& path) {
  std::vector<SourceFile> files = list_all(path);
  if (!is_source_folder(path)) {
    TOK_REQUIRE(!is_parquet(path), "{}: wanted plain text; dataset c4 reads Parquet files",
                path.string());
    return {.files = std::move(files), .others = {}};
  }
  TextFiles list = without_others(std::move(files));
  TOK_REQUIRE(!list.files.empty(), "{}: wanted text, got none in {} files such as {}",
              path.string(), list.others.size(), list.others.front().name);
  return list;
}

bool begins_with_a_text(const SourceFile& file, const std::string& column) {
  try {
    TextPiece piece;
    return TextReader(TextFormat::kJsonLines, {file}, column).next(piece);
  } catch (const Error&) {
    return false;
  }
}

size_t cut_after_line(std::string_view text) {
  for (size_t i = text.size() - 1; i > 0; --i) {
    if (text[i - 1] == '\n' && !is_space(text[i])) return i;
  }
  return 0;
}

size_t cut_between_characters(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > text.size() - 4 && (static_cast<uint8_t>(text[i]) & 0xC0U) == 0x80U) --i;
  return i;
}

}  // namespace

bool is_json_lines(const std::string& name) {
  fs::path path(name);
  if (is_parquet(path)) return true;
  if (is_packed(path)) path = path.stem();
  const std::string extension = lower_case(path.extension().string());
  return extension == ".json" || extension == ".jsonl" || extension == ".ndjson";
}

TextFiles list_text_files(const std::string& dataset, const fs::path& path) {
  return dataset == "text" ? list_plain_text(path) : list_c4(dataset, path);
}

std::vector<SourceFile>::iterator part_json_lines(std::vector<SourceFile>& files,
                                                  const std::string& column) {
  const auto by_name = [](const SourceFile& file) { return is_json_lines(file.name); };
  const bool all = std::ranges::all_of(files, by_name);
  return std::stable_partition(files.begin(), files.end(), [&](const SourceFile& file) {
    if (!by_name(file)) return true;
    return !all && file.path.extension() == ".json" && !begins_with_a_text(file, column);
  });
}

FilesByName list_by_name(const fs::path& path, const std::string& column) {
  std::vector<SourceFile> files = list_all(path);
  const auto lines = part_json_lines(files, column);
  FilesByName list{.json_lines = {lines, files.end()}, .plain = {}};
  files.erase(lines, files.end());
  list.plain = is_source_folder(path) ? without_others(std::move(files))
                                      : TextFiles{.files = std::move(files), .others = {}};
  TOK_REQUIRE(!list.json_lines.empty() || !list.plain.files.empty(),
              "{}: wanted text, got none in {} files such as {}", path.string(),
              list.plain.others.size(), list.plain.others.front().name);
  return list;
}

TextReader::TextReader(TextFormat format, std::vector<SourceFile> files, const std::string& column,
                       TextPosition start, std::function<void()> skipped)
    : format_(format),
      files_(std::move(files)),
      column_(column),
      at_(start),
      skipped_(std::move(skipped)),
      parser_(column) {}

bool TextReader::next(TextPiece& piece) {
  while (at_.file < static_cast<int64_t>(files_.size())) {
    if (!stream_) open();
    if (format_ == TextFormat::kPlain ? next_plain(piece) : next_json(piece)) return true;
    close();
  }
  return false;
}

void TextReader::open() {
  const SourceFile& file = files_[at_.file];
  stream_ = open_bytes(open_source_file(file), column_, file.is_far());
  begin_ = end_ = 0;
  at_end_ = false;
  look_at_front();
  const auto seen = std::min(at_.offset, static_cast<int64_t>(held().size()));
  begin_ += static_cast<size_t>(seen);
  for (int64_t left = at_.offset - seen; left > 0;) {
    const int64_t part = std::min(left, kSkippedBytes);
    stream_->skip(part);
    left -= part;
    if (skipped_) skipped_();
  }
}

void TextReader::close() {
  const SourceFile& file = files_[at_.file];
  TOK_REQUIRE(
      is_packed(file.path) || at_.offset == file.size,
      "{}: the file has {} bytes, it had {} when the run began; data must not change during a "
      "run",
      file.path.string(), at_.offset, file.size);
  stream_.reset();
  at_ = {.file = at_.file + 1, .offset = 0, .line = 0};
}

bool TextReader::fill() {
  if (at_end_) return false;
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const size_t wanted = end_ + kReadBytes + JsonTextParser::kPadding;
  if (buffer_.size() < wanted) buffer_.resize(std::max(wanted, buffer_.size() * 3 / 2));
  const size_t room = buffer_.size() - end_ - JsonTextParser::kPadding;
  const size_t got = stream_->read(std::span(buffer_).subspan(end_, room));
  end_ += got;
  at_end_ = got == 0;
  return got > 0;
}

void TextReader::take(size_t count) {
  begin_ += count;
  at_.offset += static_cast<int64_t>(count);
}

std::string TextReader::where() const {
  return fmt::format("{}: line {}", files_[at_.file].path.string(), at_.line + 1);
}

// Sees whether the file is an array, also where reading goes on in its middle.
void TextReader::look_at_front() {
  while (held().size() < kReadBytes && fill()) {
  }
  std::string_view front = held();
  const char* const other = other_content(front);
  TOK_REQUIRE(other == nullptr, "{}: wanted text in UTF-8, got {}", files_[at_.file].path.string(),
              other);
  if (front.starts_with(kByteOrderMark)) front.remove_prefix(kByteOrderMark.size());
  const auto first = std::ranges::find_if_not(front, is_space);
  is_array_ = first != front.end() && *first == '[';
}

void TextReader::skip_blanks() {
  for (bool more = true; more;) {
    const std::string_view text = held();
    const auto blanks = std::ranges::find_if_not(text, is_space) - text.begin();
    at_.line += std::count(text.begin(), text.begin() + blanks, '\n');
    take(static_cast<size_t>(blanks));
    const bool has_mark = held().starts_with(kByteOrderMark);
    if (has_mark) take(kByteOrderMark.size());
    more = has_mark || (held().size() < kByteOrderMark.size() && fill());
  }
}

// Goes to the next element of an array; returns false after its end.
bool TextReader::next_element() {
  const bool is_first = at_.offset == 0;
  const auto look = [&] {
    skip_blanks();
    TOK_REQUIRE(!held().empty(), "{}: the JSON array ends too early (a cut file?)", where());
    return held().front();
  };
  char found = look();
  TOK_REQUIRE(is_first || found == ',' || found == ']',
              "{}: wanted a comma or the end of the JSON array, got other bytes", where());
  if (is_first || found == ',') {
    take(1);
    found = look();
    if (!is_first || found != ']') return true;
  }
  take(1);
  skip_blanks();
  TOK_REQUIRE(held().empty(), "{}: wanted nothing after the JSON array", where());
  return false;
}

// Parses what is held up to the end of the line, if that is one object, as it nearly always is.
bool TextReader::parse_line() {
  size_t stop = held().find('\n');
  while (stop == std::string_view::npos && held().size() < kPieceBytes && fill())
    stop = held().find('\n');
  if (stop == std::string_view::npos && !at_end_) return false;
  const std::string_view line = held().substr(0, stop);
  if (!parser_.parse(line)) return false;
  take(line.size());
  return true;
}

size_t TextReader::value_size() {
  JsonEnd end;
  size_t size = 0;
  do {
    size += end.add(held().substr(size));
    TOK_REQUIRE(size < kLongestLine, "{}: the JSON value is longer than {} bytes", where(),
                kLongestLine);
  } while (!end.found() && fill());
  return size;
}

bool TextReader::next_json(TextPiece& piece) {
  const bool is_first = at_.offset == 0;
  const bool has_more = !is_array_ || next_element();
  if (!is_array_) skip_blanks();
  if (!has_more || held().empty()) {
    const fs::path& path = files_[at_.file].path;
    TOK_REQUIRE(!is_first || is_parquet(path), "{}: wanted JSON lines, got no text", path.string());
    return false;
  }
  const std::string begin = where();
  if (is_array_ || !parse_line()) {
    const size_t size = value_size();
    const std::string_view value = held().substr(0, size);
    parser_.parse(value);
    at_.line += std::ranges::count(value, '\n');
    take(value.size());
  }
  piece.text = parser_.text(begin, is_array_);
  piece.begins = piece.ends = true;
  return true;
}

bool TextReader::next_plain(TextPiece& piece) {
  while (held().size() < kPieceBytes && fill()) {
  }
  size_t cut = held().size();
  if (cut == 0) return false;
  if (!at_end_) {
    cut = cut_after_line(held());
    while (cut == 0 && held().size() < kLongestPiece && fill()) cut = cut_after_line(held());
    if (cut == 0) cut = at_end_ ? held().size() : cut_between_characters(held());
  }
  const std::string_view text = held().substr(0, cut);
  const size_t zero = text.find('\0');
  TOK_REQUIRE(zero == std::string_view::npos,
              "{}: wanted text in UTF-8, got a zero byte at {}: convert the file, or leave it out",
              files_[at_.file].path.string(), at_.offset + static_cast<int64_t>(zero));
  piece.begins = at_.offset == 0;
  piece.ends = at_end_ && cut == held().size();
  piece.text = text;
  take(cut);
  return true;
}

}  // namespace tokamak

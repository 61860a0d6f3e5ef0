#include "tokamak/data/text_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 18;
constexpr size_t kLookedAtBytes = size_t{1} << 16;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kLongestPiece = size_t{1} << 24;
constexpr size_t kLongestLine = size_t{1} << 28;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

bool is_validation(const SourceFile& file) {
  return file.path.filename().string().find("validation") != std::string::npos;
}

std::vector<SourceFile> list_c4(const std::string& dataset, const fs::path& path) {
  const fs::path english = path / "en";
  const bool has_english = is_folder(path) && is_folder(english);
  std::vector<SourceFile> files = list_files(has_english ? english : path, is_json_lines);
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
  return files;
}

// Formats of pictures, archives and programs have a zero byte early, and UTF-8 has none.
bool is_plain_text(const fs::path& path) {
  if (is_parquet(path)) return false;
  const auto stream = open_bytes(path);
  std::vector<char> bytes(kLookedAtBytes);
  for (size_t left = bytes.size(), got = 1; left > 0 && got > 0; left -= got) {
    got = stream->read(std::span(bytes).first(left));
    if (std::memchr(bytes.data(), 0, got) != nullptr) return false;
  }
  return true;
}

// The only file that was named is not left out: reading it says what is wrong with it.
TextFiles list_plain_text(const fs::path& path) {
  TextFiles list{.files = list_files(path, [](const std::string&) { return true; }), .others = {}};
  std::erase_if(list.files, [](const SourceFile& file) { return file.size == 0; });
  TOK_REQUIRE(!list.files.empty(), "{}: wanted text, got empty files only", path.string());
  if (!is_folder(path)) {
    TOK_REQUIRE(!is_parquet(path), "{}: wanted plain text; dataset c4 reads Parquet files",
                path.string());
    return list;
  }
  const auto others =
      std::stable_partition(list.files.begin(), list.files.end(),
                            [](const SourceFile& file) { return is_plain_text(file.path); });
  list.others.assign(others, list.files.end());
  list.files.erase(others, list.files.end());
  TOK_REQUIRE(!list.files.empty(), "{}: wanted text, got none in {} files such as {}",
              path.string(), list.others.size(), list.others.front().name);
  return list;
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
  const std::string packed = path.extension().string();
  if (packed == ".gz" || packed == ".zst" || packed == ".zstd") path = path.stem();
  const std::string extension = path.extension().string();
  return extension == ".json" || extension == ".jsonl" || extension == ".ndjson";
}

TextFiles list_text_files(const std::string& dataset, const fs::path& path) {
  if (dataset == "text") return list_plain_text(path);
  return {.files = list_c4(dataset, path), .others = {}};
}

TextReader::TextReader(TextFormat format, std::vector<SourceFile> files, TextPosition start)
    : format_(format), files_(std::move(files)), at_(start) {}

bool TextReader::next(TextPiece& piece) {
  while (at_.file < static_cast<int64_t>(files_.size())) {
    if (!stream_) open();
    if (format_ == TextFormat::kPlain ? next_plain(piece) : next_line(piece)) return true;
    close();
  }
  return false;
}

void TextReader::open() {
  stream_ = open_bytes(files_[at_.file].path);
  if (at_.offset > 0) stream_->skip(at_.offset);
  begin_ = end_ = 0;
  at_end_ = false;
}

void TextReader::close() {
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

bool TextReader::next_line(TextPiece& piece) {
  const std::string& name = files_[at_.file].path.string();
  size_t searched = 0;
  for (;;) {
    const size_t stop = held().find('\n', searched);
    if (stop == std::string_view::npos) {
      searched = held().size();
      TOK_REQUIRE(searched < kLongestLine, "{}: line {} is longer than {} bytes", name,
                  at_.line + 1, kLongestLine);
      if (fill()) continue;
      if (searched == 0) return false;
    }
    const std::string_view line = held().substr(0, stop);
    const bool blank = std::all_of(line.begin(), line.end(), is_space);
    if (!blank) {
      piece.text = parser_.text_of(line, fmt::format("{}: line {}", name, at_.line + 1));
      piece.begins = piece.ends = true;
    }
    ++at_.line;
    take(std::min(line.size() + 1, held().size()));
    searched = 0;
    if (!blank) return true;
  }
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

// Reads documents of text files and of JSON lines in order, from any earlier position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/data/byte_stream.h"
#include "tokamak/data/file_list.h"
#include "tokamak/data/json_text.h"

namespace tokamak {

/// JSON lines may also be objects that are written in any other way one after another, or one array
/// of objects or of strings.
enum class TextFormat : uint8_t { kPlain, kJsonLines };

/// Whether files of this name hold JSON lines, or Parquet's rows, which are read as such; they may
/// be packed (.gz, .zst, .zstd).
bool is_json_lines(const std::string& name);

struct TextFiles {
  std::vector<SourceFile> files;
  /// Files of a folder that cannot be read: for plain text such as pictures, for JSON lines those
  /// that are packed in another way.
  std::vector<SourceFile> others;
};

/// Lists the files under `path` of dataset c4, c4_test, c4_validation or text. Throws Error.
TextFiles list_text_files(const std::string& dataset, const std::filesystem::path& path);

/// Moves the files that hold JSON lines by their names behind the others, and returns the first. A
/// bare *.json among files of other kinds counts if it begins with an object that has a text.
std::vector<SourceFile>::iterator part_json_lines(std::vector<SourceFile>& files,
                                                  const std::string& column);

struct FilesByName {
  std::vector<SourceFile> json_lines;
  TextFiles plain;
};

/// Lists all files under `path` by what their names say. Throws Error.
FilesByName list_by_name(const std::filesystem::path& path, const std::string& column);

/// Where the next piece begins: the file, the byte of its unpacked content, the lines before it.
struct TextPosition {
  int64_t file = 0;
  int64_t offset = 0;
  int64_t line = 0;

  bool operator==(const TextPosition&) const = default;
};

/// A document, or a part of a long plain file that was cut where no tokenizer joins text, which is
/// after a line end that no white space follows.
struct TextPiece {
  std::string text;
  bool begins = true;
  bool ends = true;
};

/// Holds about a megabyte, whatever the size of a file. Not thread-safe.
class TextReader {
 public:
  /// `column` names the field of JSON lines, or the column of Parquet files, that is read. Calls
  /// `skipped` after each part of what it unpacks on its way to `start`.
  TextReader(TextFormat format, std::vector<SourceFile> files, const std::string& column = "text",
             TextPosition start = {}, std::function<void()> skipped = {});

  /// Reads the next piece; returns false after the last. Throws Error naming file and line.
  bool next(TextPiece& piece);

  TextPosition position() const { return at_; }

 private:
  void open();
  void close();
  bool fill();
  bool next_json(TextPiece& piece);
  void look_at_front();
  void skip_blanks();
  bool next_element();
  bool parse_line();
  size_t value_size();
  bool next_plain(TextPiece& piece);
  void take(size_t count);

  std::string where() const;

  std::string_view held() const { return {buffer_.data() + begin_, end_ - begin_}; }

  TextFormat format_;
  std::vector<SourceFile> files_;
  std::string column_;
  TextPosition at_;
  std::function<void()> skipped_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool at_end_ = false;
  bool is_array_ = false;
  JsonTextParser parser_;
};

}  // namespace tokamak

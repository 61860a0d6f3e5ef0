// Documents of text files and of JSON lines, one after another, from any earlier position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/data/byte_stream.h"
#include "tokamak/data/file_list.h"
#include "tokamak/data/json_text.h"

namespace tokamak {

enum class TextFormat : uint8_t { kPlain, kJsonLines };

/// The files of the datasets c4, c4_test, c4_validation and text under `path`. Throws Error.
std::vector<SourceFile> list_text_files(const std::string& dataset,
                                        const std::filesystem::path& path);

/// Where the next piece begins: file, byte of its unpacked content, lines before it.
struct TextPosition {
  int64_t file = 0;
  int64_t offset = 0;
  int64_t line = 0;
};

/// A document, or a part of a long plain file that was cut where no tokenizer joins text: after a
/// line end that no white space follows.
struct TextPiece {
  std::string text;
  bool begins = true;
  bool ends = true;
};

/// Holds about a megabyte, whatever the size of a file. One thread.
class TextReader {
 public:
  TextReader(TextFormat format, std::vector<SourceFile> files, TextPosition start = {});

  /// False after the last document. Throws Error naming file and line.
  bool next(TextPiece& piece);

  TextPosition position() const { return at_; }

 private:
  void open();
  void close();
  bool fill();
  bool next_line(TextPiece& piece);
  bool next_plain(TextPiece& piece);
  void take(size_t count);

  std::string_view held() const { return {buffer_.data() + begin_, end_ - begin_}; }

  TextFormat format_;
  std::vector<SourceFile> files_;
  TextPosition at_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool at_end_ = false;
  JsonTextParser parser_;
};

}  // namespace tokamak

// Packs and reads texts for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "tokamak/data/text_reader.h"

namespace tokamak {

/// One gzip member with a file's name in its header.
inline std::string gzip(const std::string& text) {
  std::string packed(text.size() + 100, '\0');
  std::string name = "a.jsonl";
  gz_header header{};
  header.name = reinterpret_cast<Bytef*>(name.data());
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  deflateSetHeader(&stream, &header);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<unsigned>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<unsigned>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// One zstd frame, whose checksum is optional.
inline std::string zstd(const std::string& text, bool with_checksum = false) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, with_checksum ? 1 : 0);
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return packed;
}

inline std::vector<std::string> read_all(const std::string& dataset, const std::string& path,
                                         TextPosition start = {}) {
  const auto format = dataset == "text" ? TextFormat::kPlain : TextFormat::kJsonLines;
  TextReader reader(format, list_text_files(dataset, path).files, "text", start);
  std::vector<std::string> all;
  for (TextPiece piece; reader.next(piece);) all.push_back(piece.text);
  return all;
}

}  // namespace tokamak

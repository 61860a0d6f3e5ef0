// The interface between the program and libtokamak_parquet.so. It uses C types only, and neither a
// C++ object nor an exception crosses it, since Arrow's libraries are built elsewhere.
#pragma once

#include <cstdint>

extern "C" {

/// A file that the program reads.
struct TokamakParquetFile {
  void* file;
  int64_t size;
  /// Fills `out` and returns 1, or 0 where that failed. Any thread may call it.
  int (*read_at)(void* file, int64_t offset, int64_t count, void* out);
};

struct TokamakParquetFunctions {
  /// Returns a reader of the texts of a column; close() frees it, also where error() is set.
  void* (*open)(const TokamakParquetFile* file, const char* column);
  /// Sets the next row's text, which stays valid until the next call, and returns 1. Returns 0
  /// after the last row, and where error() is set.
  int (*next)(void* reader, const char** text, int64_t* size);
  /// Returns a line that says what went wrong, or null.
  const char* (*error)(void* reader);
  void (*close)(void* reader);
};

__attribute__((visibility("default"))) const TokamakParquetFunctions* tokamak_parquet_functions();
}

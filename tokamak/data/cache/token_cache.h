// Text as a source of tokens. It is tokenized once into a cache folder and read behind the writer.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/loader.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/data/token_source.h"

namespace tokamak {

struct TextSource {
  /// The name the user wrote.
  std::string name;
  TextFormat format = TextFormat::kPlain;
  std::vector<SourceFile> files;
  /// The field of JSON lines, or the column of Parquet files, that is read.
  std::string column = "text";
  /// Lines for the user about files that are left out, or not read as their names say.
  std::vector<std::string> remarks = {};
};

/// Returns the text of one path of dataset c4, c4_test, c4_validation or text; the files of a store
/// are in an order drawn by `order_seed`, if there is one. Throws Error.
TextSource text_source(const std::string& dataset, const std::string& path,
                       const std::string& column = "text",
                       std::optional<uint64_t> order_seed = std::nullopt);

/// Returns the text of a path with each file in the format that its name says: JSON lines, plain
/// text or both. Throws Error.
std::vector<TextSource> text_sources_by_name(const std::string& path,
                                             const std::string& column = "text");

/// Opens the cache of `text` in its own folder under `cache_folder`. While tokens are missing, a
/// thread of the source writes them unless another process does. The writer keeps a few million
/// tokens ahead of the readers. While another process writes, the wait of a source that `helps`
/// goes into tokenizing a later part of the text. Throws Error.
std::unique_ptr<TokenSource> open_token_cache(TextSource text, const Tokenizer& tokenizer,
                                              const std::filesystem::path& cache_folder,
                                              int threads = 1, bool helps = false);

/// Returns the folder of a text's cache, as open_token_cache() has it.
CacheFolder token_cache_of(const TextSource& text, const Tokenizer& tokenizer,
                           const std::filesystem::path& cache_folder);

/// Returns the folder that runs of this user share for token caches: "tokens" in cache_folder(), or
/// `otherwise` where that cannot be written.
std::filesystem::path token_cache_folder(const std::filesystem::path& otherwise);

struct CacheProgress {
  /// The path of the mix that is being tokenized.
  std::string source;
  int64_t tokens = 0;
  /// Grows while the process that makes the tokens makes progress.
  int64_t progress = 0;
  /// The share of the text, 0 to 1, whose tokens are there.
  double share = 0.0;
  bool complete = false;
};

/// Completes the token caches of all text in `options` with `threads` threads (0 means one per
/// core). Where another process is writing one, it waits for that or, if it `helps`, tokenizes
/// parts of the text for it. Sources in stores are left out unless `stored_too`. Calls `progress`
/// about ten times per second; it may throw to stop. Finished work stays. Returns the remarks of
/// the sources.
std::vector<std::string> build_token_cache(
    const DataOptions& options, int threads,
    const std::function<void(const CacheProgress&)>& progress, bool helps = false,
    bool stored_too = true);

/// Throws Error where `training.epochs` has no meaning for the data.
void check_epochs(const DataOptions& options);

/// Returns the windows of seq_len + 1 tokens in one epoch of the data; text is tokenized as by
/// build_token_cache(). Throws Error where there is no such number: for synthetic tokens and mixes.
int64_t count_windows(const DataOptions& options, int threads,
                      const std::function<void(const CacheProgress&)>& progress);

}  // namespace tokamak

#include "tokamak/data/open_source.h"

#include <algorithm>
#include <array>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/parquet_lines.h"
#include "tokamak/data/shakespeare.h"
#include "tokamak/data/synthetic.h"
#include "tokamak/data/token_files.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kDatasets{"c4",     "c4_test",   "c4_validation", "text",
                                                    "tokens", "synthetic", "shakespeare"};

bool is_dataset(std::string_view name) {
  return std::find(kDatasets.begin(), kDatasets.end(), name) != kDatasets.end();
}

bool exists(const DataOptions& options, const std::string& path) {
  return path_exists(path) || (options.dataset == "tokens" && path_exists(path + ".bin"));
}

// Whether a file, or the first file of a folder, is in Parquet's format.
bool has_parquet(const fs::path& path) {
  if (!is_folder(path)) return is_parquet(path);
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(path, code)) {
    if (is_parquet(entry.path())) return true;
  }
  return false;
}

}  // namespace

bool needs_path(const std::string& dataset) {
  return dataset != "synthetic" && dataset != "shakespeare";
}

std::unique_ptr<TokenSource> open_source(const DataOptions& options, const std::string& path) {
  if (options.dataset == "tokens") return open_token_files(path);
  if (options.dataset == "synthetic") return synthetic_tokens(options.seed, options.vocab_size);
  if (options.dataset == "shakespeare") return shakespeare_tokens();
  TOK_REQUIRE(options.tokenizer != nullptr, "dataset \"{}\" wants a tokenizer", options.dataset);
  TOK_REQUIRE(!options.cache_folder.empty(), "dataset \"{}\" wants a token cache folder",
              options.dataset);
  return open_token_cache(text_source(options.dataset, path), *options.tokenizer,
                          options.cache_folder);
}

std::optional<std::string> missing_data(const DataOptions& options) {
  if (!is_dataset(options.dataset)) {
    return fmt::format("wanted one of {}, got \"{}\"", fmt::join(kDatasets, ", "), options.dataset);
  }
  if (!needs_path(options.dataset)) return std::nullopt;
  if (options.path.empty()) {
    return fmt::format("dataset \"{}\" wants a dataset_path: a local file or folder",
                       options.dataset);
  }
  const std::vector<WeightedPath> parts = parse_mix(options.path);
  for (const WeightedPath& part : parts) {
    if (!exists(options, part.path)) {
      return fmt::format("no such file or folder: {}{}", part.path,
                         part.path == options.path
                             ? ""
                             : fmt::format(", in the weighted mix \"{}\"", options.path));
    }
    if (options.dataset.starts_with("c4") && !why_no_parquet().empty() && has_parquet(part.path))
      return (parts.size() > 1 ? part.path + ": " : "") + why_no_parquet();
  }
  return std::nullopt;
}

}  // namespace tokamak

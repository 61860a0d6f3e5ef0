#include "tokamak/data/open_source.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/random.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/parquet_lines.h"
#include "tokamak/data/shakespeare.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/data/token_files.h"
#include "tokamak/data/token_source.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {
namespace {

class SyntheticTokens final : public TokenSource {
 public:
  SyntheticTokens(uint64_t seed, int64_t vocab_size)
      : seed_(seed), vocab_size_(static_cast<uint64_t>(vocab_size)) {}

  int64_t wait_for(int64_t, const std::stop_token&) override { return kEndless; }

  std::optional<int64_t> size() override { return kEndless; }

  void read(int64_t first, std::span<int32_t> out) override {
    auto element = static_cast<uint64_t>(first);
    std::array<uint32_t, 4> words = philox(seed_, element / 4, kStream);
    for (int32_t& id : out) {
      if (element % 4 == 0) words = philox(seed_, element / 4, kStream);
      id = static_cast<int32_t>(words[element % 4] * vocab_size_ >> 32U);
      ++element;
    }
  }

  std::string describe(int64_t index, int32_t) override {
    return "synthetic: token " + std::to_string(index);
  }

  bool carries_tail() const override { return false; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override { return random_u64(seed_, kStream, vocab_size_); }

 private:
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 2;
  static constexpr uint64_t kStream = stream_of("data.synthetic");

  std::string name_ = "synthetic";
  uint64_t seed_;
  uint64_t vocab_size_;
};

// An endless source of ids below `vocab_size`.
std::unique_ptr<TokenSource> synthetic_tokens(uint64_t seed, int64_t vocab_size) {
  return std::make_unique<SyntheticTokens>(seed, vocab_size);
}

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kDatasets{"c4",     "c4_test",   "c4_validation", "text",
                                                    "tokens", "synthetic", "shakespeare"};

const ExtraDataset* find_extra(std::string_view name) {
  const auto found = std::ranges::find(extra_datasets(), name, &ExtraDataset::name);
  return found == extra_datasets().end() ? nullptr : *found;
}

bool is_dataset(std::string_view name) {
  return std::ranges::find(kDatasets, name) != kDatasets.end() || find_extra(name) != nullptr;
}

// Returns why an address cannot be read, or "".
std::string why_not_stored(const DataOptions& options, const std::string& address) {
  if (options.dataset == "tokens")
    return address + ": dataset \"tokens\" wants a local path; copy the files to this machine";
  try {
    const TextFiles files = list_text_files(options.dataset, address);
    const bool has_parquet = std::ranges::any_of(
        files.files, [](const SourceFile& file) { return is_parquet(file.path); });
    return has_parquet ? why_no_parquet() : "";
  } catch (const Error& error) {
    return error.what();
  } catch (const SystemError& error) {
    return error.what();
  }
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
  if (const ExtraDataset* extra = find_extra(options.dataset)) return extra->open(options, path);
  TOK_REQUIRE(options.tokenizer != nullptr, "dataset \"{}\" wants a tokenizer", options.dataset);
  TOK_REQUIRE(!options.cache_folder.empty(), "dataset \"{}\" wants a token cache folder",
              options.dataset);
  return open_token_cache(
      text_source(options.dataset, path, options.text_column, options.shuffle_seed),
      *options.tokenizer, options.cache_folder);
}

std::optional<std::string> missing_data(const DataOptions& options) {
  if (!is_dataset(options.dataset)) {
    return fmt::format("wanted one of {}, got \"{}\"", fmt::join(kDatasets, ", "), options.dataset);
  }
  if (!needs_path(options.dataset)) return std::nullopt;
  if (options.path.empty()) {
    return fmt::format("dataset \"{}\" wants a dataset_path: a file or folder", options.dataset);
  }
  const std::vector<WeightedPath> parts = parse_mix(options.path);
  for (const WeightedPath& part : parts) {
    if (is_stored(part.path)) {
      if (std::string reason = why_not_stored(options, part.path); !reason.empty()) return reason;
      continue;
    }
    if (!exists(options, part.path)) {
      return fmt::format("no such file or folder: {}{}", part.path,
                         part.path == options.path
                             ? ""
                             : fmt::format(", in the weighted mix \"{}\"", options.path));
    }
    if (!options.dataset.starts_with("c4") || !has_parquet(part.path)) continue;
    if (const std::string reason = why_no_parquet(); !reason.empty())
      return (parts.size() > 1 ? part.path + ": " : "") + reason;
  }
  return std::nullopt;
}

}  // namespace tokamak

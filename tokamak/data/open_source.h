// Opens the sources that a config names.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tokamak/data/loader.h"
#include "tokamak/data/token_source.h"

namespace tokamak {

/// A value of `training.dataset` from the folder TOK_EXTRA. `open` gets the options of the run,
/// with its tokenizer where there is one, and one path; it throws Error.
struct ExtraDataset {
  std::string_view name;
  std::unique_ptr<TokenSource> (*open)(const DataOptions& options, const std::string& path);
};

/// The datasets of the folder TOK_EXTRA (cmake/extra.cmake writes the function).
std::span<const ExtraDataset* const> extra_datasets();

/// Opens the source of one path of `options.dataset`; throws Error.
std::unique_ptr<TokenSource> open_source(const DataOptions& options, const std::string& path);

/// Whether the dataset needs a path, as all but synthetic and shakespeare do.
bool needs_path(const std::string& dataset);

}  // namespace tokamak

// Opens the sources that a config names.
#pragma once

#include <memory>
#include <string>

#include "tokamak/data/loader.h"
#include "tokamak/data/token_source.h"

namespace tokamak {

/// Opens the source of one path of `options.dataset`; throws Error.
std::unique_ptr<TokenSource> open_source(const DataOptions& options, const std::string& path);

/// Whether the dataset needs a path, as all but synthetic and shakespeare do.
bool needs_path(const std::string& dataset);

}  // namespace tokamak

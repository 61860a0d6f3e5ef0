// From the names in a config to sources.
#pragma once

#include <memory>
#include <string>

#include "tokamak/data/loader.h"
#include "tokamak/data/token_source.h"

namespace tokamak {

/// The source of one path of `options.dataset`; throws Error.
std::unique_ptr<TokenSource> open_source(const DataOptions& options, const std::string& path);

/// False for synthetic and self.
bool needs_path(const std::string& dataset);

}  // namespace tokamak

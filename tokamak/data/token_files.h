// The `tokens` dataset: flat .u16/.u32 streams, Megatron .bin/.idx, llm.c .bin, folders of such.
#pragma once

#include <memory>
#include <string>

#include "tokamak/data/token_source.h"

namespace tokamak {

/// Whether the `tokens` dataset takes files of this name.
bool is_token_file(const std::string& name);

/// Opens all token files under `path` in the order of their names as one stream. A Megatron pair
/// may be named without its extension. Throws Error naming the file.
std::unique_ptr<TokenSource> open_token_files(const std::string& path);

}  // namespace tokamak

// Checks a manifest's pieces against the header of the shard that holds them.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "tokamak/checkpoint/manifest.h"

namespace tokamak {

/// Throws Error, which begins with `what`, unless each piece of the shard, whose content is
/// `bytes`, lies where the shard's own header has an entry of its name, element type and length.
/// The seal does not show that: whoever writes a manifest can seal it.
void check_pieces(const ShardSummary& shard, std::span<const std::byte> bytes,
                  const std::map<std::string, TensorType>& tensors, const std::string& what);

}  // namespace tokamak

// Recognises, but never opens, checkpoints of other programs that hold Python pickles.
#pragma once

#include <filesystem>

namespace tokamak {

/// Throws Error with the remedy if `path` is a PyTorch distributed checkpoint folder, a pickled
/// file (.pth, .pt, .bin, .ckpt), or a folder whose only weights are pickled; returns otherwise.
void refuse_foreign_checkpoint(const std::filesystem::path& path);

}  // namespace tokamak

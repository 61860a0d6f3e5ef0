// Recognises, but never opens, checkpoints of other programs that are not read.
#pragma once

#include <filesystem>

namespace tokamak {

/// Throws Error with the remedy if `path` is a PyTorch distributed checkpoint folder, a pickled
/// file (.pth, .pt, .bin, .ckpt), a GGUF file, or a folder with only such weights; returns
/// otherwise.
void refuse_foreign_checkpoint(const std::filesystem::path& path);

}  // namespace tokamak

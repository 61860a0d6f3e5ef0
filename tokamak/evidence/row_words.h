// How sources of measurements spell what ran: GPUs, precisions, recompute, sharding. Case, spaces
// and signs do not matter; what is unknown is said, never guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokamak/parallel/distribute.h"
#include "tokamak/price/step/step_price.h"

namespace tokamak {

/// Letters and digits of `text`, in lower case.
std::string plain_word(std::string_view text);

/// Machine file of a GPU: "H100", "NVIDIA H100 SXM5 80GB HBM3", "A100-SXM4-40GB", "GB200 NVL72",
/// "MI300X OAM", "8xH100"; an A100 has 80 GB unless it says 40. Empty: no file, as of PCIe boards
/// of A100 and H100, of Grace Hopper, and of names that hold another: "H1000".
std::string machine_of_gpu(std::string_view gpu);

/// What products of blocks compute in: "bf16", "fp16", "mixed", "fp8-cs", "MXFP8", "float8",
/// "nvfp4". None: fp32 and TF32 alone, which no plan here trains in, and what is unknown.
std::optional<price::Precision> precision_named(std::string_view text);

/// What is said of a row whose precision precision_named() does not know.
std::string unpriced_precision(std::string_view text);

enum class RecomputeWord : uint8_t { kNone, kFull, kSelective, kSelectiveLayers };

/// "full", "none", "selective...", "selective-layer", "core_attn" as selective; yes and no, on and
/// off, "No recompute"; empty = none. None: anything else, as "2 layers".
std::optional<RecomputeWord> recompute_named(std::string_view text);

/// Whether a model's name says that it is a mixture of experts: "MoE", "Mixtral", "8x7B",
/// "Qwen3-30B-A3B", "DeepSeek-V3".
bool names_experts(std::string_view model);

/// Whether notes say so: "MoE", "EP=8".
bool notes_experts(std::string_view notes);

struct ShardingWords {
  std::optional<Sharding> sharding;  ///< none: not stated
  int64_t ranks = 0;                 ///< that share a copy: "HSDP shard32"; 0 = all of dp
};

/// "FSDP2", "ZeRO-3", "zero_stage=3", "FULL_SHARD", "HSDP shard32 x rep26", "FSDP64"; "dist-opt
/// (ZeRO-1)", "distributed optimizer"; "ZeRO-2"; "DDP", "ZeRO-0".
ShardingWords sharding_named(std::string_view text);

}  // namespace tokamak

#include "tokamak/train/row_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

namespace tokamak {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <size_t N>
bool has_any(std::string_view text, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return has(text, part); });
}

// The digits right after the first `part`; 0 = none.
int64_t number_after(std::string_view text, std::string_view part) {
  const size_t at = text.find(part);
  if (at == std::string_view::npos) return 0;
  const char* const begin = text.data() + at + part.size();
  int64_t number = 0;
  std::from_chars(begin, text.data() + text.size(), number);
  return number;
}

// The stage of ZeRO; -1 = not stated.
int zero_stage(std::string_view word) {
  if (word.size() == 1 && word[0] >= '0' && word[0] <= '3') return word[0] - '0';
  for (const std::string_view name : {"zerostage", "zero", "stage"}) {
    const size_t at = word.find(name);
    if (at == std::string_view::npos || at + name.size() >= word.size()) continue;
    const char digit = word[at + name.size()];
    if (digit >= '0' && digit <= '3') return digit - '0';
  }
  return -1;
}

}  // namespace

std::string plain_word(std::string_view text) {
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) word += static_cast<char>(std::tolower(byte));
  }
  return word;
}

std::string machine_of_gpu(std::string_view gpu) {
  const std::string word = plain_word(gpu);
  // Boards of other links and clocks than those of the files.
  constexpr std::array<std::string_view, 6> kWithout = {"gh200",   "a100pcie", "h100pcie",
                                                        "h100nvl", "h200nvl",  "mi300a"};
  if (has_any(word, kWithout) && !has(word, "h100nvlink") && !has(word, "h200nvlink")) return "";
  if (has(word, "a100")) return has(word, "40g") ? "a100-40" : "a100-80";
  constexpr std::array<std::string_view, 4> kLargerH100 = {"hbm2e", "96g", "95g", "94g"};
  if (has(word, "h100") && has_any(word, kLargerH100)) return "h100-96";
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kMachines = {{
      {"gb300", "gb300"},
      {"gb200", "gb200"},
      {"b300", "b300"},
      {"b200", "b200"},
      {"h200", "h200"},
      {"h100", "h100"},
      {"mi355x", "mi355x"},
      {"mi350x", "mi350x"},
      {"mi325x", "mi325x"},
      {"mi300x", "mi300x"},
      {"mi250x", "frontier"},
      {"l40s", "l40s"},
      {"rtxpro6000", "rtx-pro-6000"},
      {"rtx4090", "rtx4090"},
      {"geforce4090", "rtx4090"},
  }};
  for (const auto& [name, machine] : kMachines) {
    if (has(word, name)) return std::string(machine);
  }
  return "";
}

std::optional<price::Precision> precision_named(std::string_view text) {
  const std::string word = plain_word(text);
  constexpr std::array<std::string_view, 2> kFp4 = {"fp4", "float4"};
  constexpr std::array<std::string_view, 4> kFp8 = {"fp8", "float8", "e4m3", "e5m2"};
  if (has_any(word, kFp4)) return price::Precision::kFp4;
  if (has_any(word, kFp8)) return price::Precision::kFp8;
  constexpr std::array<std::string_view, 5> kHalf = {"16", "mixed", "amp", "half", "bf"};
  constexpr std::array<std::string_view, 4> kOther = {"32", "float", "full", "int8"};
  if (!has_any(word, kHalf) && has_any(word, kOther)) return std::nullopt;
  return price::Precision::kBf16;
}

RecomputeWord recompute_named(std::string_view text) {
  const std::string word = plain_word(text);
  constexpr std::array<std::string_view, 8> kNone = {"",      "none", "no", "off",
                                                     "false", "0",    "na", "null"};
  if (std::find(kNone.begin(), kNone.end(), word) != kNone.end()) return RecomputeWord::kNone;
  if (word.starts_with("none") || word.starts_with("without")) return RecomputeWord::kNone;
  if (has(word, "select")) {
    return has(word, "layer") || has(word, "every") ? RecomputeWord::kSelectiveLayers
                                                    : RecomputeWord::kSelective;
  }
  return RecomputeWord::kFull;
}

ShardingWords sharding_named(std::string_view text) {
  const std::string word = plain_word(text);
  ShardingWords out;
  constexpr std::array<std::string_view, 4> kFsdp = {"fsdp", "hsdp", "fullshard", "fullysharded"};
  constexpr std::array<std::string_view, 4> kOwners = {"distopt", "distributedopt", "shardedopt",
                                                       "optimizersharding"};
  constexpr std::array<std::string_view, 2> kCopies = {"ddp", "replicated"};
  const int stage = zero_stage(word);
  if (has_any(word, kFsdp) || stage == 3 || has(word, "shardgradop")) {
    out.sharding = Sharding::kFsdp;
  } else if (stage == 2) {
    out.sharding = Sharding::kZero2;
  } else if (stage == 1 || has_any(word, kOwners)) {
    out.sharding = Sharding::kZero1;
  } else if (stage == 0 || has_any(word, kCopies)) {
    out.sharding = Sharding::kDdp;
  }
  out.ranks = number_after(word, "shard");
  // "FSDP64"; FSDP1 and FSDP2 are versions.
  constexpr int64_t kLastVersion = 3;
  if (out.ranks == 0) out.ranks = number_after(word, "sdp");
  if (out.ranks <= kLastVersion) out.ranks = 0;
  return out;
}

}  // namespace tokamak

#include "tokamak/evidence/row_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tokamak/core/names.h"
#include "tokamak/price/machine/device_names.h"

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

// The words of `text`, in lower case: runs of letters, digits and `others`.
std::vector<std::string> words_of(std::string_view text, std::string_view others = "") {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || has(others, {&c, 1})) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

using Words = std::span<const std::string_view>;

bool is_one_of(std::string_view word, Words known) {
  return std::find(known.begin(), known.end(), word) != known.end();
}

bool any_of(const std::vector<std::string>& words, Words known) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return is_one_of(word, known); });
}

bool all_of(const std::vector<std::string>& words, Words known, Words also) {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    return is_one_of(word, known) || is_one_of(word, also);
  });
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool are_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

bool is_number(std::string_view text, double& number) {
  text = trimmed(text);
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size();
}

// "7b", "1.5b", "300m".
bool is_size(std::string_view text) {
  double number = 0.0;
  return text.size() > 1 && is_digit(text[0]) && (text.ends_with('b') || text.ends_with('m')) &&
         is_number(text.substr(0, text.size() - 1), number);
}

// "8x7b".
bool counts_experts(std::string_view word) {
  const size_t times = word.find('x');
  return times != std::string_view::npos && are_digits(word.substr(0, times)) &&
         is_size(word.substr(times + 1));
}

// "a3b", of parameters that a token uses.
bool counts_active(std::string_view word) {
  return word.starts_with('a') && is_size(word.substr(1)) && word.ends_with('b');
}

// A device's name: "8xH100-SXM5" holds h100, "GH100" and "H1000" do not.
class Spelling {
 public:
  explicit Spelling(std::string_view text) {
    constexpr std::string_view kLink = "nvlink";  // no board of another form, as NVL is
    for (std::string& word : words_of(text)) {
      if (const size_t at = word.find(kLink); at != std::string::npos) word.erase(at, kLink.size());
      begins_.push_back(plain_.size());
      plain_ += word;
    }
    begins_.push_back(plain_.size());
  }

  /// Holds the first word of an alias, and has the others anywhere.
  bool is(std::string_view alias) const {
    const std::vector<std::string> words = words_of(alias);
    return holds(words[0]) &&
           std::all_of(words.begin() + 1, words.end(), [&](const std::string& word) {
             return plain_.find(word) != std::string::npos;
           });
  }

 private:
  // As words of its own, or with a form, a memory or a count written together with it.
  bool holds(std::string_view name) const {
    for (size_t at = plain_.find(name); at != std::string::npos; at = plain_.find(name, at + 1)) {
      const size_t end = at + name.size();
      const size_t begin = *std::prev(std::upper_bound(begins_.begin(), begins_.end() - 1, at));
      const size_t next = *std::lower_bound(begins_.begin(), begins_.end(), end);
      const std::string_view word = plain_;
      if (may_precede(word.substr(begin, at - begin)) && may_follow(word.substr(end, next - end)))
        return true;
    }
    return false;
  }

  static bool may_precede(std::string_view text) {
    constexpr std::array<std::string_view, 7> kMakers = {"",    "nvidia", "amd",     "dgx",
                                                         "hgx", "tesla",  "instinct"};
    return is_one_of(text, kMakers) ||
           (text.ends_with('x') && are_digits(text.substr(0, text.size() - 1)));
  }

  static bool may_follow(std::string_view text) {
    constexpr std::array<std::string_view, 6> kForms = {"sxm", "pcie", "nvl", "oam", "hbm", "gcd"};
    const bool is_form = std::any_of(kForms.begin(), kForms.end(),
                                     [&](std::string_view form) { return text.starts_with(form); });
    const bool is_count = text.starts_with('x') && are_digits(text.substr(1));
    const size_t unit = text.find('g');
    const bool is_memory = unit != std::string_view::npos && are_digits(text.substr(0, unit));
    return text.empty() || text == "s" || is_form || is_count || is_memory;
  }

  std::string plain_;
  std::vector<size_t> begins_;  // of words; then the end
};

// The digits after the first `part`, with blanks and signs but for a comma between; 0 = none.
int64_t number_after(std::string_view text, std::string_view part) {
  const size_t at = text.find(part);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + part.size());
  text.remove_prefix(std::min(text.find_first_not_of(" =:_-("), text.size()));
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// "llama 4 17b", "llama4scout"; "llama405b", "llama 4b" and "llama4b" are sizes.
bool is_llama4(const std::vector<std::string>& words) {
  constexpr std::string_view kName = "llama4";
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "llama" && i + 1 < words.size() && words[i + 1] == "4") return true;
    if (!words[i].starts_with(kName)) continue;
    const std::string_view rest = std::string_view(words[i]).substr(kName.size());
    if (rest.empty() || (!is_digit(rest[0]) && rest != "b" && rest != "m")) return true;
  }
  return false;
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
  const Spelling name(gpu);
  size_t longest = 0;
  std::string machine;
  for (const price::DeviceNames& device : price::device_names()) {
    for (const std::string& alias : device.aliases) {
      if (!name.is(alias)) continue;
      if (device.machine.empty()) return "";
      if (alias.size() > longest) machine = device.machine;
      longest = std::max(longest, alias.size());
    }
  }
  return machine;
}

std::optional<price::Precision> precision_named(std::string_view text) {
  const std::string word = plain_word(text);
  constexpr std::array<std::string_view, 2> kFp4 = {"fp4", "float4"};
  constexpr std::array<std::string_view, 4> kFp8 = {"fp8", "float8", "e4m3", "e5m2"};
  if (has_any(word, kFp4)) return price::Precision::kFp4;
  if (has_any(word, kFp8)) return price::Precision::kFp8;
  constexpr std::array<std::string_view, 2> kIntegers = {"int4", "int8"};
  constexpr std::array<std::string_view, 6> kHalf = {"bf16", "fp16", "float16",
                                                     "f16",  "half", "mixed"};
  constexpr std::array<std::string_view, 3> kHalfAlone = {"16", "amp", "bf"};
  if (has_any(word, kIntegers)) return std::nullopt;
  if (has_any(word, kHalf) || any_of(words_of(text), kHalfAlone)) return price::Precision::kBf16;
  return std::nullopt;
}

std::string unpriced_precision(std::string_view text) {
  return fmt::format("precision = {}: wanted bf16, fp16, fp8 or fp4, which are priced",
                     printable(text));
}

std::optional<RecomputeWord> recompute_named(std::string_view text) {
  constexpr std::array<std::string_view, 15> kNegative = {
      "none",  "no",  "n",  "off", "0",    "false", "disable", "disabled",
      "never", "not", "na", "nan", "null", "used",  "without"};
  constexpr std::array<std::string_view, 12> kPositive = {"full",   "yes",    "y",       "true",
                                                          "on",     "1",      "all",     "uniform",
                                                          "always", "enable", "enabled", "every"};
  constexpr std::array<std::string_view, 5> kAttention = {"core", "self", "attn", "attention",
                                                          "only"};
  // What the column is about, and what is told beside it.
  constexpr std::array<std::string_view, 13> kBeside = {
      "recompute",   "recomputation", "recomputing", "activation", "activations", "checkpoint",
      "checkpoints", "checkpointing", "gradient",    "ac",         "sequence",    "parallel",
      "sp"};
  const std::string word = plain_word(text);
  if (word.empty() || word == "na") return RecomputeWord::kNone;
  if (word.starts_with("none") || word.starts_with("without")) return RecomputeWord::kNone;
  if (double number = 0.0; is_number(text, number)) {
    if (number == 0.0) return RecomputeWord::kNone;
    return number == 1.0 ? std::optional(RecomputeWord::kFull) : std::nullopt;
  }
  const std::vector<std::string> words = words_of(text);
  const bool is_no = any_of(words, kNegative);
  if (is_no && all_of(words, kNegative, kBeside)) return RecomputeWord::kNone;
  if (is_no) return std::nullopt;
  if (has(word, "select")) {
    return has(word, "layer") || has(word, "every") ? RecomputeWord::kSelectiveLayers
                                                    : RecomputeWord::kSelective;
  }
  if (all_of(words, kPositive, kBeside) && (any_of(words, kPositive) || has(word, "checkpoint")))
    return RecomputeWord::kFull;
  if (any_of(words, kAttention) && has(word, "att") && all_of(words, kAttention, kBeside))
    return RecomputeWord::kSelective;
  return std::nullopt;
}

bool names_experts(std::string_view model) {
  constexpr std::array<std::string_view, 8> kMixtures = {
      "mixtral", "deepseekv2", "deepseekv3", "deepseekv4", "gptoss", "dbrx", "grok1", "kimik2"};
  if (has_any(plain_word(model), kMixtures) || is_llama4(words_of(model))) return true;
  const std::vector<std::string> words = words_of(model, ".");
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("moe") || word.ends_with("moe") || counts_experts(word) ||
           counts_active(word);
  });
}

bool notes_experts(std::string_view notes) {
  if (has(notes, "MoE")) return true;
  constexpr std::string_view kDegree = "EP=";
  for (size_t at = notes.find(kDegree); at != std::string_view::npos;
       at = notes.find(kDegree, at + 1)) {
    const bool begins = at == 0 || std::isalnum(static_cast<unsigned char>(notes[at - 1])) == 0;
    if (begins && number_after(notes.substr(at), "EP") > 1) return true;
  }
  return false;
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
  const std::string lower = lower_case(text);
  out.ranks = number_after(lower, "shard");
  // "FSDP64"; FSDP1 and FSDP2 are versions.
  constexpr int64_t kLastVersion = 3;
  if (out.ranks == 0) out.ranks = number_after(lower, "sdp");
  if (out.ranks <= kLastVersion) out.ranks = 0;
  return out;
}

}  // namespace tokamak

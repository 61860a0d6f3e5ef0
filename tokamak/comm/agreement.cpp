#include "tokamak/comm/agreement.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr size_t kMaxKeysShown = 10;

/// Joins keys and values, each ended by a zero byte.
std::string pack(std::span<const AgreementItem> items) {
  std::string text;
  for (const AgreementItem& item : items) {
    text += item.key + '\0' + item.value + '\0';
  }
  return text;
}

std::vector<AgreementItem> unpack(const std::string& text) {
  std::vector<std::string> words;
  for (size_t first = 0; first < text.size();) {
    const size_t end = text.find('\0', first);
    words.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  std::vector<AgreementItem> items;
  for (size_t i = 0; i + 1 < words.size(); i += 2) items.push_back({words[i], words[i + 1]});
  return items;
}

/// Returns the FNV-1a hash.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211U;
  return hash;
}

/// Returns "rank 3" or "ranks 0-2, 5".
std::string to_string(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? fmt::format("{}", ranks[i])
                                : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(runs, ", "));
}

/// A key's values, each with the ranks that give it, in order of their first rank.
using Opinions = std::vector<std::pair<std::string, std::vector<int>>>;

std::string describe(const std::string& key, const Opinions& opinions) {
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : opinions) {
    parts.push_back(fmt::format("{} on {}", value, to_string(ranks)));
  }
  return fmt::format("{} is {}", key, fmt::join(parts, " and "));
}

std::vector<std::string> find_differences(const std::vector<std::string>& texts) {
  std::vector<std::string> keys;
  std::vector<std::map<std::string, std::string>> said;
  for (const std::string& text : texts) {
    auto& values = said.emplace_back();
    for (const AgreementItem& item : unpack(text)) {
      values[item.key] = item.value;
      if (std::ranges::find(keys, item.key) == keys.end()) keys.push_back(item.key);
    }
  }
  std::vector<std::string> differences;
  for (const std::string& key : keys) {
    Opinions opinions;
    for (size_t rank = 0; rank < said.size(); ++rank) {
      const auto at = said[rank].find(key);
      const std::string value = at == said[rank].end() ? "absent" : at->second;
      auto same = std::ranges::find_if(opinions,
                                       [&](const auto& opinion) { return opinion.first == value; });
      if (same == opinions.end()) same = opinions.insert(same, {value, {}});
      same->second.push_back(static_cast<int>(rank));
    }
    if (opinions.size() > 1) differences.push_back(describe(key, opinions));
  }
  return differences;
}

}  // namespace

void agree(World& world, std::span<const AgreementItem> items) {
  const std::string mine = pack(items);
  const auto hashes = world.all_gather_text(fmt::format("{:016x}", hash_of(mine)));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;

  auto differences = find_differences(world.all_gather_text(mine));
  if (differences.empty()) differences.emplace_back("the order of what they compare");
  if (differences.size() > kMaxKeysShown) {
    const size_t more = differences.size() - kMaxKeysShown;
    differences.resize(kMaxKeysShown);
    differences.push_back(fmt::format("and {} more keys", more));
  }
  fail("ranks disagree: {}", fmt::join(differences, "; "));
}

}  // namespace tokamak

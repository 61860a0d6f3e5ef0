#include "tokamak/core/names.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

namespace tokamak {

namespace {

constexpr size_t kMaxName = 100;

// Letters that are inserted, deleted, changed or swapped with the next one.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> above(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

size_t name_distance(std::string_view wanted, std::string_view known) {
  wanted = wanted.substr(0, kMaxName);
  const size_t whole = edit_distance(wanted, known);
  const size_t last = edit_distance(last_part(wanted), last_part(known));
  return 2 * last + std::min(whole, last + size_t{6});
}

bool is_near(std::string_view wanted, std::string_view known) {
  const std::string lower = lower_case(wanted.substr(0, kMaxName));
  const std::string lower_known = lower_case(known);
  const std::string_view last = last_part(lower);
  const size_t distance = edit_distance(last, last_part(lower_known));
  if (distance == 0) return !last.empty();
  return distance <= last.size() / 3 && edit_distance(lower, lower_known) <= lower.size() / 3;
}

std::optional<std::string> nearest_name(std::string_view wanted,
                                        std::span<const std::string> known) {
  std::optional<std::string> best;
  size_t best_distance = ~size_t{0};
  for (const std::string& name : known) {
    const size_t distance = name_distance(wanted, name);
    if (distance >= best_distance || !is_near(wanted, name)) continue;
    best_distance = distance;
    best = name;
  }
  return best;
}

std::string nearest_hint(std::string_view wanted, std::span<const std::string> known) {
  const auto best = nearest_name(wanted, known);
  return best ? fmt::format("; the nearest is {}", *best) : "";
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string without_controls(std::string_view text, std::string_view kept) {
  std::string plain;
  unsigned char before = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_c1 = before == 0xC2 && byte >= 0x80 && byte < 0xA0;  // U+0080 to U+009F
    const bool is_control = byte < 0x20 || byte == 0x7F || is_c1;
    plain += is_control && kept.find(c) == kept.npos ? fmt::format("\\x{:02x}", byte)
                                                     : std::string(1, c);
    before = byte;
  }
  return plain;
}

std::string printable(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, kMaxName)) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code >= 0x7f ? fmt::format("\\x{:02x}", code) : std::string(1, c);
  }
  return name.size() > kMaxName ? out + "..." : out;
}

std::string with_commas(std::string digits) {
  const size_t first = digits.find_first_of("0123456789");
  if (first == std::string::npos) return digits;
  const size_t point = std::min(digits.find('.'), digits.size());
  for (size_t at = point; at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string with_commas(int64_t number) {
  return with_commas(std::to_string(number));
}

}  // namespace tokamak

#include "tokamak/data/mix.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <tuple>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

constexpr int64_t kUnit = 1'000'000;
constexpr int64_t kMaxWeight = 1'000'000;
constexpr int64_t kSmallestBlock = 256;
constexpr int64_t kMaxSum = 3'000'000'000;

bool is_number(std::string_view word) {
  return word.find_first_not_of("0123456789.") == std::string_view::npos &&
         word.find_first_of("0123456789") != std::string_view::npos &&
         std::ranges::count(word, '.') <= 1;
}

int64_t parse_weight(std::string_view word) {
  const size_t point = std::min(word.find('.'), word.size());
  const std::string_view whole = word.substr(0, point);
  std::string digits(word.substr(std::min(point + 1, word.size())));
  TOK_REQUIRE(whole.size() <= 7 && digits.size() <= 6,
              "data mix: weight {}: wanted up to {} with six digits after the point", word,
              kMaxWeight);
  digits.resize(6, '0');
  const int64_t weight =
      (whole.empty() ? 0 : std::stoll(std::string(whole))) * kUnit + std::stoll(digits);
  TOK_REQUIRE(weight > 0 && weight <= kMaxWeight * kUnit,
              "data mix: weight {}: wanted more than 0 and at most {}", word, kMaxWeight);
  return weight;
}

}  // namespace

std::vector<WeightedPath> parse_mix(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const bool is_path = path_exists(text) || path_exists(text + ".bin");
  if (is_path || !is_number(word) || words.peek() == std::istringstream::traits_type::eof()) {
    return {{.path = text, .weight = 1}};
  }
  std::vector<WeightedPath> mix;
  do {
    if (is_number(word)) {
      TOK_REQUIRE(mix.empty() || !mix.back().path.empty(),
                  "data mix: \"{}\": wanted a path after each weight, as in \"0.7 A 0.3 B\"", text);
      mix.push_back({.path = "", .weight = parse_weight(word)});
    } else {
      mix.back().path += (mix.back().path.empty() ? "" : " ") + word;
    }
  } while (words >> word);
  TOK_REQUIRE(!mix.back().path.empty(),
              "data mix: \"{}\": wanted a path after each weight, as in \"0.7 A 0.3 B\"", text);
  return mix;
}

Mix::Mix(std::vector<int64_t> weights, uint64_t seed) : seed_(seed) {
  TOK_CHECK(!weights.empty());
  int64_t divisor = 0;
  for (const int64_t weight : weights) divisor = std::gcd(divisor, weight);
  TOK_CHECK(divisor > 0);
  int64_t sum = 0;
  for (const int64_t weight : weights) bounds_.push_back(sum += weight / divisor);
  TOK_REQUIRE(sum <= kMaxSum,
              "data mix: the weights have too many digits: as whole numbers they "
              "add up to {}, wanted at most {}",
              sum, kMaxSum);
  const int64_t least = *std::ranges::min_element(weights) / divisor;
  block_size_ = std::max(kSmallestBlock, (sum + least - 1) / least);
  TOK_REQUIRE(block_size_ <= kUnit, "data mix: the smallest weight is under a millionth of all");
}

Mix::Place Mix::at(int64_t window) {
  if (bounds_.size() == 1) return {.source = 0, .index = window};
  const int64_t block = window / block_size_;
  if (block != block_) dealt_ = deal(block);
  block_ = block;
  return dealt_[window % block_size_];
}

int64_t Mix::served_before(size_t source, int64_t window) const {
  if (bounds_.size() == 1) return window;
  const int64_t block = window / block_size_;
  const std::vector<Place> dealt = deal(block);
  const auto stop = dealt.begin() + window % block_size_;
  return share_before(source, block * block_size_) +
         std::count_if(dealt.begin(), stop, [&](const Place& p) { return p.source == source; });
}

int64_t Mix::window_of(size_t source, int64_t index) const {
  int64_t before = 0;
  int64_t after = 1;
  while (served_before(source, after) <= index) after *= 2;
  while (after - before > 1) {
    const int64_t middle = before + (after - before) / 2;
    (served_before(source, middle) <= index ? before : after) = middle;
  }
  return before;
}

int64_t Mix::share_before(size_t source, int64_t window) const {
  const int64_t sum = bounds_.back();
  const auto bound = [&](int64_t weight) {
    return window / sum * weight + window % sum * weight / sum;
  };
  return bound(bounds_[source]) - (source == 0 ? 0 : bound(bounds_[source - 1]));
}

std::vector<Mix::Place> Mix::deal(int64_t block) const {
  struct Ticket {
    double when;
    size_t source;
    int64_t index;
  };

  std::vector<Ticket> tickets;
  tickets.reserve(block_size_);
  for (size_t k = 0; k < bounds_.size(); ++k) {
    const int64_t first = share_before(k, block * block_size_);
    const int64_t count = share_before(k, (block + 1) * block_size_) - first;
    const uint64_t stream = stream_of("data.mix") + k;
    const double phase = to_uniform(random_u32(seed_, stream, static_cast<uint64_t>(block)));
    for (int64_t j = 0; j < count; ++j) {
      const double when = (static_cast<double>(j) + phase) / static_cast<double>(count);
      tickets.push_back({.when = when, .source = k, .index = first + j});
    }
  }
  TOK_CHECK(static_cast<int64_t>(tickets.size()) == block_size_);
  std::ranges::sort(tickets, [](const Ticket& a, const Ticket& b) {
    return std::tie(a.when, a.source) < std::tie(b.when, b.source);
  });
  std::vector<Place> dealt;
  dealt.reserve(tickets.size());
  for (const Ticket& ticket : tickets) {
    dealt.push_back({.source = ticket.source, .index = ticket.index});
  }
  return dealt;
}

}  // namespace tokamak

#include "tokamak/train/sampling.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

// The upper half of a float's bits, turned so that larger floats have larger keys.
uint32_t key_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return ((bits & 0x8000'0000U) != 0 ? ~bits : bits | 0x8000'0000U) >> 16U;
}

// Returns the `count` most likely ids, the most likely first; of equal ones the smaller first. It
// counts keys, since selecting from a whole vocabulary takes longer than a step of a model.
std::vector<int32_t> most_likely(std::span<const float> logits, int64_t count) {
  std::vector<uint32_t> having(1U << 16U, 0);
  for (const float x : logits) ++having[key_of(x)];
  auto least = static_cast<uint32_t>(having.size());
  for (int64_t above = 0; above < count && least > 0;) above += having[--least];
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (key_of(logits[i]) >= least) ids.push_back(static_cast<int32_t>(i));
  }
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  ids.resize(std::min<size_t>(ids.size(), count));
  return ids;
}

// Returns where the largest lies, by two loops that compilers vectorize as they do not max_element.
int32_t first_largest(std::span<const float> logits) {
  constexpr size_t kAtOnce = 16;
  float most[kAtOnce];
  std::ranges::fill(most, -std::numeric_limits<float>::infinity());
  const size_t whole = logits.size() / kAtOnce * kAtOnce;
  for (size_t i = 0; i < whole; i += kAtOnce) {
    for (size_t k = 0; k < kAtOnce; ++k)
      most[k] = logits[i + k] > most[k] ? logits[i + k] : most[k];
  }
  float best = *std::ranges::max_element(most);
  for (size_t i = whole; i < logits.size(); ++i) best = std::max(best, logits[i]);
  const auto at = std::ranges::find(logits, best);
  return at == logits.end() ? 0 : static_cast<int32_t>(at - logits.begin());
}

// e^x for x <= 0 within 4e-6 of it, in a form that compilers vectorize: 2^n times a polynomial.
float exp_of(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kRound = 12582912.0F;  // 1.5 2^23: adding it rounds to an integer
  const float y = std::max(x, -87.0F) * kLog2E;
  const float shifted = y + kRound;
  const float f = (y - (shifted - kRound)) * 0.693147181F;
  const float p =
      1.0F +
      f * (1.0F + f * (0.5F + f * (1.0F / 6 + f * (1.0F / 24 + f * (1.0F / 120 + f / 720)))));
  const uint32_t n = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  return p * std::bit_cast<float>((n + 127U) << 23U);
}

// What may be drawn: ids, and their probabilities by a common factor.
struct Candidates {
  std::vector<int32_t> ids;  // empty = all, in order
  std::vector<float> weights;
  double total = 0.0;
};

class Sampler {
 public:
  Sampler(std::span<const float> logits, const SamplingOptions& o)
      : logits_(logits),
        o_(o),
        best_(*std::ranges::max_element(logits)),
        scale_(static_cast<float>(1.0 / o.temperature)) {}

  Candidates candidates() const {
    const auto vocab = static_cast<int64_t>(logits_.size());
    const bool is_cut = o_.top_k > 0 && o_.top_k < vocab;
    if (o_.top_p >= 1.0) return is_cut ? weighed(most_likely(logits_, o_.top_k)) : all();
    if (is_cut) return nucleus(weighed(most_likely(logits_, o_.top_k)));
    const double total = all().total;
    for (int64_t count = 256; count < vocab; count *= 8) {
      Candidates some = weighed(most_likely(logits_, count));
      if (some.total >= o_.top_p * total) {
        some.total = total;
        return nucleus(std::move(some));
      }
    }
    return nucleus(weighed(most_likely(logits_, vocab)));
  }

 private:
  float weight(float logit) const { return exp_of((logit - best_) * scale_); }

  Candidates all() const {
    Candidates c;
    c.weights.resize(logits_.size());
    const float best = best_;  // a member might alias what the loop writes
    const float scale = scale_;
    for (size_t i = 0; i < logits_.size(); ++i) c.weights[i] = exp_of((logits_[i] - best) * scale);
    c.total = sum_of(c.weights);
    return c;
  }

  // Eight sums at once, which compilers vectorize.
  static double sum_of(const std::vector<float>& weights) {
    constexpr size_t kSums = 8;
    double sums[kSums] = {};
    const size_t whole = weights.size() / kSums * kSums;
    for (size_t i = 0; i < whole; i += kSums) {
      for (size_t k = 0; k < kSums; ++k) sums[k] += static_cast<double>(weights[i + k]);
    }
    return std::accumulate(
        std::begin(sums), std::end(sums),
        std::accumulate(weights.begin() + static_cast<ptrdiff_t>(whole), weights.end(), 0.0));
  }

  Candidates weighed(std::vector<int32_t> ids) const {
    Candidates c;
    c.ids = std::move(ids);
    for (const int32_t id : c.ids) c.weights.push_back(weight(logits_[id]));
    c.total = sum_of(c.weights);
    return c;
  }

  // Keeps candidates, which are sorted, up to top_p of their total.
  Candidates nucleus(Candidates c) const {
    const double wanted = o_.top_p * c.total;
    double sum = 0.0;
    size_t kept = 0;
    while (kept < c.ids.size() && (kept == 0 || sum < wanted)) sum += c.weights[kept++];
    c.ids.resize(kept);
    c.weights.resize(kept);
    c.total = sum;
    return c;
  }

  std::span<const float> logits_;
  const SamplingOptions& o_;
  float best_;
  float scale_;
};

}  // namespace

int32_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t index) {
  if (options.temperature <= 0.0) return first_largest(logits);
  const Candidates from = Sampler(logits, options).candidates();
  double left = from.total * to_uniform(random_u32(options.seed, stream_of("sampling"),
                                                   static_cast<uint64_t>(index)));
  const auto id_at = [&](size_t i) {
    return from.ids.empty() ? static_cast<int32_t>(i) : from.ids[i];
  };
  for (size_t i = 0; i < from.weights.size(); ++i) {
    left -= static_cast<double>(from.weights[i]);
    if (left <= 0.0) return id_at(i);
  }
  return id_at(from.weights.size() - 1);
}

}  // namespace tokamak

#include "tokamak/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

// Returns the `count` most likely ids, the most likely first; of equal ones the smaller first.
std::vector<int32_t> most_likely(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  if (count < static_cast<int64_t>(ids.size())) {
    std::nth_element(ids.begin(), ids.begin() + count, ids.end(), before);
    ids.resize(count);
  }
  std::sort(ids.begin(), ids.end(), before);
  return ids;
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
        best_(*std::max_element(logits.begin(), logits.end())),
        scale_(static_cast<float>(1.0 / o.temperature)) {}

  Candidates candidates() const {
    const auto vocab = static_cast<int64_t>(logits_.size());
    const bool is_cut = o_.top_k > 0 && o_.top_k < vocab;
    if (o_.top_p >= 1.0) return is_cut ? weighed(most_likely(logits_, o_.top_k)) : all();
    if (is_cut) return nucleus(weighed(most_likely(logits_, o_.top_k)));
    // Sorting a whole vocabulary takes longer than a step of the model.
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
  float weight(float logit) const { return std::exp((logit - best_) * scale_); }

  Candidates all() const {
    Candidates c;
    c.weights.resize(logits_.size());
    for (size_t i = 0; i < logits_.size(); ++i) c.weights[i] = weight(logits_[i]);
    c.total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
    return c;
  }

  Candidates weighed(std::vector<int32_t> ids) const {
    Candidates c{.ids = std::move(ids)};
    for (const int32_t id : c.ids) c.weights.push_back(weight(logits_[id]));
    c.total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
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
  if (options.temperature <= 0.0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
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

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/train/options.h"
#include "tokamak/train/search.h"

namespace tokamak {
namespace {

std::string recompute_text(RecomputeChoice choice) {
  constexpr const char* kNames[] = {"none", "selective op", "full"};
  return kNames[static_cast<size_t>(choice)];
}

}  // namespace

std::string reason_text(const FoundPlan& better, const FoundPlan& other) {
  size_t most = 0;
  std::array<double, price::kNumCategories> saved{};
  for (size_t c = 0; c < price::kNumCategories; ++c) {
    saved[c] = other.step.by_category[c] - better.step.by_category[c];
    if (saved[c] > saved[most]) most = c;
  }
  const double gain = other.step.seconds / better.step.seconds - 1.0;
  const size_t worst =
      static_cast<size_t>(std::min_element(saved.begin(), saved.end()) - saved.begin());
  std::string text = fmt::format("{:.2f} % faster than the next: {} {:.3f} s less", 100.0 * gain,
                                 name_of(static_cast<price::Category>(most)), saved[most]);
  if (saved[worst] < -0.25 * saved[most])
    text += fmt::format(", {} {:.3f} s more", name_of(static_cast<price::Category>(worst)),
                        -saved[worst]);
  return text;
}

std::string search_text(const SearchRequest& request, const SearchResult& result) {
  std::string text = fmt::format(
      "{} plans for {} x {}; {} that may be among the best fit in {:.1f} GiB by closed form ({} "
      "probes), {} priced by their "
      "plans; MFU as torchtitan counts\n",
      result.num_points, request.num_gpus, request.machine.name, result.num_fitting,
      result.memory_limit_bytes / kGiB, result.num_probes, result.num_priced);
  const int num_layers = static_cast<int>(spec_of(request.config).num_layers);
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    const double rate =
        result.tokens_per_step / f.step.seconds / static_cast<double>(request.num_gpus);
    const double peak = request.machine.device.peak_flops[static_cast<size_t>(f.point.linear)];
    text += fmt::format(
        "{:>2}  {:9.3f} s  {:8.0f} tokens/s/GPU  MFU {:5.2f} %  {:6.1f} GiB  {}; {}; recompute {}, "
        "{}, {}\n",
        i + 1, f.step.seconds, rate, 100.0 * rate * result.flops_per_token / peak,
        static_cast<double>(f.peak_bytes) / kGiB, mesh_text(f.point.degrees),
        schedule_text(f.point, num_layers), recompute_text(f.point.recompute),
        sharding_text(f.point), name_of(f.point.linear));
    if (i + 1 < result.best.size())
      text += fmt::format("      {}\n", reason_text(f, result.best[i + 1]));
  }
  return text;
}

}  // namespace tokamak

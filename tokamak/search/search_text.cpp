#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/price/report/report_json.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/search.h"

namespace tokamak {
namespace {

std::string recompute_text(RecomputeChoice choice) {
  constexpr const char* kNames[] = {"none", "selective op", "full"};
  return kNames[static_cast<size_t>(choice)];
}

// Returns text such as " by allgather", which follows the mesh, or nothing without cp.
std::string context_text(const SearchPoint& point) {
  return point.degrees.cp > 1 ? fmt::format(" by {}", point.context) : "";
}

int num_layers(const SearchRequest& request) {
  return static_cast<int>(spec_of(request.config).num_layers);
}

double device_tokens_per_s(const SearchRequest& request, const SearchResult& result,
                           const FoundPlan& found) {
  return result.tokens_per_step / found.step.seconds / static_cast<double>(request.num_gpus);
}

price::Precision precision_of(const FoundPlan& found) {
  return matmul_precision(found.config, found.point.linear);
}

double peak_flops(const SearchRequest& request, const FoundPlan& found) {
  return request.machine.device.peak_flops[precision_of(found)];
}

OrderedJson degrees_json(const Degrees& degrees) {
  const Mesh mesh = mesh_of(degrees);
  OrderedJson json;
  for (size_t a = 0; a < kNumMeshAxes; ++a)
    json[std::string(name_of(static_cast<MeshAxis>(a)))] = mesh.degrees[a];
  return json;
}

OrderedJson plan_json(const SearchRequest& request, const SearchResult& result, size_t i) {
  const FoundPlan& f = result.best[i];
  const double rate = device_tokens_per_s(request, result, f);
  const price::FlopsCount count{.name = "torchtitan", .per_token = result.flops_per_token};
  OrderedJson json = {
      {"mesh", mesh_text(f.point.degrees)},
      {"degrees", degrees_json(f.point.degrees)},
      {"context_parallel", f.point.degrees.cp > 1 ? OrderedJson(f.point.context) : OrderedJson()},
      {"schedule", schedule_text(f.point, num_layers(request))},
      {"microbatch", f.point.microbatch},
      {"num_microbatches", f.point.num_microbatches},
      {"recompute", recompute_text(f.point.recompute)},
      {"gather_again", f.config.activation_checkpoint.gather_again},
      {"gather_again_with_head", f.config.activation_checkpoint.gather_again_with_head},
      {"join_forwards", f.config.parallelism.pipeline_parallel_join_forwards},
      {"keep_transposed_weights", trades_of(f.config).keeps_transposed},
      {"long_loss_chunks", trades_of(f.config).long_loss_chunks},
      {"sharding", sharding_text(f.point)},
      {"precision", std::string(name_of(precision_of(f)))},
      {"step_time_s", f.step.seconds},
      {"tokens_per_s", result.tokens_per_step / f.step.seconds},
      {"tokens_per_s_per_gpu", rate},
      {"peak_flops", peak_flops(request, f)},
      {"flops", OrderedJson::array({price::flops_json(count, rate, peak_flops(request, f))})},
      {"time_s", price::time_json(f.step)},
      {"memory", {{"peak_bytes", f.peak_bytes}, {"limit_bytes", result.memory_limit_bytes}}}};
  if (i + 1 < result.best.size()) json["reason"] = reason_text(f, result.best[i + 1]);
  return json;
}

// Returns text such as ", gathers kept", of what is not as configured.
std::string memory_text(const SearchPoint& point) {
  std::string text;
  if (point.gather_again) {
    text += *point.gather_again == GatherAgain::kAll    ? ", gathers made again"
            : *point.gather_again == GatherAgain::kNone ? ", gathers kept"
                                                        : ", gathers kept during the head";
  }
  if (point.joins_forwards)
    text += *point.joins_forwards ? ", forwards during weight gradients" : ", forwards alone";
  if (point.keeps_transposed)
    text += *point.keeps_transposed ? ", weights in both layouts" : ", weights in one layout";
  if (point.long_loss_chunks)
    text += *point.long_loss_chunks ? ", long chunks of the loss" : ", short chunks of the loss";
  return text;
}

}  // namespace

std::string reason_text(const FoundPlan& better, const FoundPlan& other) {
  size_t most = 0;
  EnumArray<price::Category, double, price::kNumCategories> saved{};
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
      "{} plans for {} x {}, {} sequences a step; {} may fit in {:.1f} GiB by the prices of {} "
      "small relatives, {} priced by their plans; MFU as torchtitan counts\n",
      result.points.size(), request.num_gpus, request.machine.name,
      request.config.training.global_batch_size, result.estimated.size(),
      result.memory_limit_bytes / kGiB, result.num_relatives, result.num_priced);
  for (const std::string& said :
       {price::unverified_text(request.machine), price::taken_text(request.machine)})
    text += said.empty() ? "" : said + "\n";
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    const double rate = device_tokens_per_s(request, result, f);
    text += fmt::format(
        "{:>2}  {:9.3f} s  {:8.0f} tokens/s/GPU  MFU {:5.2f} %  {:6.1f} GiB  {}{}; {}; recompute "
        "{}{}, {}, {}\n",
        i + 1, f.step.seconds, rate, 100.0 * rate * result.flops_per_token / peak_flops(request, f),
        static_cast<double>(f.peak_bytes) / kGiB, mesh_text(f.point.degrees), context_text(f.point),
        schedule_text(f.point, num_layers(request)), recompute_text(f.point.recompute),
        memory_text(f.point), sharding_text(f.point), name_of(precision_of(f)));
    if (i + 1 < result.best.size())
      text += fmt::format("      {}\n", reason_text(f, result.best[i + 1]));
  }
  return text;
}

std::string search_json(const SearchRequest& request, const SearchResult& result) {
  OrderedJson best = OrderedJson::array();
  for (size_t i = 0; i < result.best.size(); ++i) best.push_back(plan_json(request, result, i));
  const ModelSpec model = spec_of(request.config);
  const auto said = [](const std::string& text) {
    return text.empty() ? OrderedJson() : OrderedJson(text);
  };
  const OrderedJson json = {{"model", fmt::format("{} {}", model.name, model.flavor)},
                            {"machine", request.machine.name},
                            {"unverified", said(price::unverified_text(request.machine))},
                            {"domains_taken", said(price::taken_text(request.machine))},
                            {"gpus", request.num_gpus},
                            {"global_batch_size", request.config.training.global_batch_size},
                            {"tokens_per_step", result.tokens_per_step},
                            {"points", result.points.size()},
                            {"fitting", result.estimated.size()},
                            {"relatives", result.num_relatives},
                            {"priced", result.num_priced},
                            {"best", best}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace tokamak

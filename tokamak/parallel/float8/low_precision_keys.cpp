// Keys of a configuration that choose matmuls in 8-bit floats.

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/checkpoint/formats/weight_names.h"
#include "tokamak/config/converters.h"
#include "tokamak/core/error.h"
#include "tokamak/parallel/float8/low_precision_choice.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {
namespace {

constexpr std::string_view kAutoFilter = "auto_filter_small_kn";

// Returns the first of `filters` that is a part of a weight's name, in Hugging Face's spelling or
// torchtitan's.
std::string matching_filter(const Strings& filters, const std::string& name) {
  const std::string meta = meta_name_of_hf(name);
  for (const std::string& filter : filters) {
    if (filter != kAutoFilter &&
        (name.find(filter) != std::string::npos || meta.find(filter) != std::string::npos))
      return filter;
  }
  return {};
}

Float8Filter filter_of(const Strings& filters, const Float8Recipe& recipe) {
  const bool is_auto = std::ranges::find(filters, kAutoFilter) != filters.end();
  return [=](const std::string& name, const Dims& dims) -> std::string {
    if (const std::string filter = matching_filter(filters, name); !filter.empty())
      return fmt::format("{}.filter_fqns has \"{}\"", recipe.section(), filter);
    const int64_t multiple = recipe.multiple();
    if (dims[0] % multiple != 0 || dims[1] % multiple != 0)
      return fmt::format("{} x {} are no multiples of {}", dims[0], dims[1], multiple);
    return is_auto ? why_too_small(recipe, dims[0], dims[1]) : "";
  };
}

// Sets what the recipe leaves for the run to choose.
void choose_matmuls(const Float8LinearConfig& f, Float8Recipe& recipe) {
  const auto is_fast = [&](std::string_view matmul) {
    return std::ranges::find(f.fast_accum, matmul) != f.fast_accum.end();
  };
  const bool is_default = f.fast_accum == Float8LinearConfig().fast_accum;
  TOK_REQUIRE(is_default || recipe.fast_y,
              "quantize.linear.float8.fast_accum: recipe {} adds in fp32; leave it out",
              recipe.name);
  TOK_REQUIRE(recipe.has_dw || !is_fast("grad_weight"),
              "quantize.linear.float8.fast_accum: recipe {} computes grad_weight in the compute "
              "dtype; leave it out",
              recipe.name);
  if (recipe.fast_y) {
    recipe.fast_y = is_fast("output");
    recipe.fast_dx = is_fast("grad_input");
    recipe.fast_dw = is_fast("grad_weight");
  }
  if (f.grad_dtype) recipe.gradient = *f.grad_dtype == "float8_e5m2" ? DType::kE5M2 : DType::kE4M3;
  recipe.shares_scales = f.scales_per == "product";
}

LowPrecisionChoice mx_of(const Config& c) {
  TOK_REQUIRE(!has_float8(c),
              "model.converters: quantize.linear.float8 and quantize.linear.mx convert the same "
              "layers; name one of them");
  const MxLinearConfig& mx = c.quantize.linear.mx;
  TOK_REQUIRE(std::ranges::find(mx.filter_fqns, kAutoFilter) == mx.filter_fqns.end(),
              "quantize.linear.mx.filter_fqns: {} knows no sizes for mxfp8; name the layers",
              kAutoFilter);
  auto recipe = find_float8_recipe(mx.recipe_name == "mxfp8" ? "mxfp8_cublas" : mx.recipe_name);
  TOK_REQUIRE(recipe && recipe->is_mx(),
              "quantize.linear.mx.recipe_name = {}: there is no such recipe", mx.recipe_name);
  recipe->emulate = recipe->emulate || mx.emulate;
  return {.recipe = *recipe, .layers = {.filter = filter_of(mx.filter_fqns, *recipe)}};
}

// Sets how delayed scales follow from maxima.
void choose_history(const Float8LinearConfig& f, Float8Recipe& recipe) {
  const Float8LinearConfig defaults;
  const bool is_delayed = recipe.history_len > 0;
  const auto require_delayed = [&](std::string_view key, bool is_default) {
    TOK_REQUIRE(is_delayed || is_default,
                "quantize.linear.float8.{}: recipe {} keeps no history; leave it out, or set "
                "quantize.linear.float8.recipe_name = delayed",
                key, recipe.name);
  };
  require_delayed("amax_history_len", f.amax_history_len == defaults.amax_history_len);
  require_delayed("amax_compute_algo", f.amax_compute_algo == defaults.amax_compute_algo);
  require_delayed("margin", f.margin == defaults.margin);
  if (!is_delayed) return;
  constexpr int64_t kMostMargin = 16;
  TOK_REQUIRE(f.margin <= kMostMargin,
              "quantize.linear.float8.margin = {}: wanted at most {} powers of two", f.margin,
              kMostMargin);
  recipe.history_len = f.amax_history_len;
  recipe.most_recent = f.amax_compute_algo == "most_recent";
  recipe.margin = static_cast<int>(f.margin);
}

}  // namespace

std::optional<LowPrecisionChoice> float8_of(const Config& c) {
  if (has_mx(c)) return mx_of(c);
  if (!has_float8(c)) return std::nullopt;
  const Float8LinearConfig& f = c.quantize.linear.float8;
  const std::string name = f.recipe_name.value_or("tensorwise");
  auto recipe = find_float8_recipe(name);
  TOK_REQUIRE(recipe && !recipe->is_mx(),
              "quantize.linear.float8.recipe_name = {}: wanted tensorwise, delayed, rowwise, "
              "rowwise_with_gw_hp or blockwise",
              name);
  const bool is_tensorwise = name == "tensorwise" || name == "delayed";
  TOK_REQUIRE(is_tensorwise || !f.enable_fsdp_float8_all_gather,
              "quantize.linear.float8.enable_fsdp_float8_all_gather: recipe {} quantizes rows and "
              "columns, which are gathered in the compute dtype; leave it out",
              name);
  const bool is_auto = std::ranges::find(f.filter_fqns, kAutoFilter) != f.filter_fqns.end();
  TOK_REQUIRE(!is_auto || is_tensorwise || name == "rowwise",
              "quantize.linear.float8.filter_fqns: auto_filter_small_kn knows no sizes for recipe "
              "{}; name the layers",
              name);
  if (f.round_scales_to_power_of_2 != "auto")
    recipe->power_of_two = f.round_scales_to_power_of_2 == "always";
  choose_matmuls(f, *recipe);
  choose_history(f, *recipe);
  recipe->from_master = f.enable_fsdp_float8_all_gather;
  recipe->emulate = f.emulate;
  recipe->keeps_transposed = f.keep_transposed_weights;
  return LowPrecisionChoice{.recipe = *recipe,
                            .layers = {.filter = filter_of(f.filter_fqns, *recipe),
                                       .bf16_at_start = f.bf16_layers_at_start,
                                       .bf16_at_end = f.bf16_layers_at_end,
                                       .long_loss_chunks = f.long_loss_chunks}};
}

LowPrecision low_precision_of(const Config& config) {
  const auto choice = float8_of(config);
  return choice ? LowPrecision(*choice) : LowPrecision();
}

LowPrecisionTrades trades_of(const Config& config) {
  const Float8LinearConfig& f = config.quantize.linear.float8;
  return {.keeps_transposed = f.keep_transposed_weights, .long_loss_chunks = f.long_loss_chunks};
}

void set_trades(Config& config, const LowPrecisionTrades& trades) {
  Float8LinearConfig& f = config.quantize.linear.float8;
  f.keep_transposed_weights = trades.keeps_transposed;
  f.long_loss_chunks = trades.long_loss_chunks;
}

bool lowers_head(const Config& config) {
  const Strings& filters = config.quantize.linear.float8.filter_fqns;
  return std::find(filters.begin(), filters.end(), "output") == filters.end();
}

std::string why_no_float8(const Float8Recipe& recipe, const Target& target) {
  if (recipe.emulate || target.backend != "gpu") return "";
  const int first_arch = recipe.is_mx() ? 100 : 89;
  if (target.arch >= first_arch) return "";
  return fmt::format(
      "{} matmuls want sm_{} or newer, this is sm_{}; {}.emulate = true computes "
      "them in fp32",
      recipe.is_mx() ? "mxfp8" : "fp8", first_arch, target.arch, recipe.section());
}

std::string why_too_small(const Float8Recipe& recipe, int64_t n, int64_t k) {
  const bool is_small = recipe.name == "tensorwise" || recipe.name == "delayed"
                            ? k <= 4096 && n <= 1024
                            : n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
  return is_small ? fmt::format("auto_filter_small_kn: {} x {} gain nothing", n, k) : "";
}

}  // namespace tokamak

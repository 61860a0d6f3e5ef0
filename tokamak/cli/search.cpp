#include "tokamak/search/search.h"

#include <algorithm>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/price.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/usable_cores.h"

namespace tokamak::cli {
namespace {

std::optional<RunConfig> load(const PriceWords& words, std::vector<std::string> more) {
  std::vector<std::string> args = words.rest;
  args.insert(args.end(), more.begin(), more.end());
  return load_run_config(args, "plan", {.source = "none"});
}

// Reports words of the command line for keys that the search chooses itself. If the global batch is
// not given, it follows from some of them.
void say_chosen(const PriceWords& words, bool is_batch_given, int64_t global_batch) {
  const std::span<const std::string_view> chosen = chosen_keys();
  for (const std::string& word : words.rest) {
    const std::string key = key_of(word);
    if (std::ranges::find(chosen, key) == chosen.end()) continue;
    const bool makes_batch = key == "training.local_batch_size" || key.ends_with("_degree");
    if (is_batch_given || !makes_batch) {
      fmt::print(stderr, "not used: {}: the search chooses it\n", word);
    } else {
      fmt::print(stderr,
                 "used for training.global_batch_size = {} alone: {}: the search chooses it\n",
                 global_batch, word);
    }
  }
}

// Returns the configuration without its mesh, which the search chooses.
std::optional<Config> base_config(const PriceWords& words) {
  auto alone =
      load(words,
           {"--world-size=1", "--parallelism.pipeline_parallel_degree=1",
            "--parallelism.data_parallel_replicate_degree=1",
            "--parallelism.data_parallel_shard_degree=1", "--parallelism.context_parallel_degree=1",
            "--parallelism.tensor_parallel_degree=1", "--training.local_batch_size=1"});
  if (!alone) return std::nullopt;
  Config config = std::move(alone->config);
  const bool is_batch_given = config.training.global_batch_size > 0;
  if (!is_batch_given) {
    const auto run = load(words, {fmt::format("--world-size={}", *words.num_gpus)});
    config.training.global_batch_size = global_batch_size(run->config, run->place.degrees);
  }
  say_chosen(words, is_batch_given, config.training.global_batch_size);
  return config;
}

}  // namespace

int print_search(const PriceWords& words, const price::Machine& machine) {
  const auto config = base_config(words);
  if (!config) return 0;
  for (const std::string& line : unpriced_lines(*config, machine)) fmt::print(stderr, "{}\n", line);
  SearchRequest request{.config = *config,
                        .num_gpus = *words.num_gpus,
                        .machine = price::with_equal_domains(machine, *words.num_gpus),
                        .num_threads = usable_cores()};
  if (words.precision) require_low_products(*config, *words.precision);
  const price::Precision precision = words.precision.value_or(linear_precision(*config));
  const bool is_low = matmul_precision(*config, precision) == precision;
  if (is_low && precision != price::Precision::kBf16) request.precisions.push_back(precision);
  const SearchResult result = [&] {
    const Waiting waiting("searching");
    return search_plans(request);
  }();
  if (words.html) write_file_atomic(*words.html, search_page(request, result));
  if (words.write) write_file_atomic(*words.write, config_toml(result.best[0].config));
  fmt::print("{}", words.json ? search_json(request, result) : search_text(request, result));
  if (words.write && !words.json) fmt::print("wrote the first to {}\n", *words.write);
  return 0;
}

}  // namespace tokamak::cli

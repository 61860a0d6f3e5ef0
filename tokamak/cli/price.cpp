#include "tokamak/cli/price.h"

#include <fmt/format.h>

#include "tokamak/cli/run_config.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/report.h"
#include "tokamak/train/priced_run.h"
#include "tokamak/train/report_of.h"

namespace tokamak::cli {

int run_price(const PriceWords& words) {
  price::Machine machine = price::load_machine(words.cluster);
  for (const std::string& set : words.sets) price::set_number(machine, set);
  std::vector<std::string> args = words.rest;
  args.push_back(fmt::format("--world-size={}", *words.num_gpus));
  const auto run = load_run_config(args, "plan", {.source = "none"});
  if (!run) return 0;
  const PriceRequest request{.config = run->config,
                             .degrees = run->place.degrees,
                             .machine = machine,
                             .linear = words.precision,
                             .all_ranks = words.all_ranks};
  const PricedRun priced = price_run(request);
  const price::Report report = report_of(request, priced, words.tokens);
  fmt::print("{}", words.json ? to_json(report) : to_text(report));
  return 0;
}

}  // namespace tokamak::cli

// Price requests from words of the command line, for tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/config/check.h"
#include "tokamak/config/load.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {

inline PriceRequest request_of(std::vector<std::string> words, int64_t num_gpus,
                               const std::string& machine = "h100") {
  words.insert(words.begin(), {"--training.dataset=synthetic", "--job.device=cuda"});
  PriceRequest request{.config = load_config(std::nullopt, words).config,
                       .machine = price::load_machine(machine)};
  validate(request.config, num_gpus);
  request.degrees = resolve_degrees(request.config.parallelism, num_gpus);
  return request;
}

inline double seconds_of(const PriceRequest& request) {
  return price_run(request).step.seconds;
}

}  // namespace tokamak

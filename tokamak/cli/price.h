// `tokamak plan CONFIG --cluster NAME --gpus N`: what the plans would cost on machines that are not
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/cli/verbs.h"
#include "tokamak/price/machine.h"

namespace tokamak::cli {

/// Points that differ in one thing: a number of the machine, a key of the configuration, or "gpus".
struct Sweep {
  std::string key;
  std::vector<std::string> values;
  std::vector<int64_t> gpus;  ///< the same, where the key is "gpus"
  bool is_weak = true;        ///< of gpus: the batch grows with them
};

/// The words that ask for a price.
struct PriceWords {
  std::string cluster;
  std::optional<int64_t> num_gpus;
  std::vector<std::string> sets;              ///< "key=value" of the machine
  std::optional<price::Precision> precision;  ///< else what the configuration converts to
  double tokens = 1e12;
  bool json = false;
  bool all_ranks = false;
  bool numbers = false;  ///< print the machine's instead
  std::optional<std::string> trace;
  std::optional<std::string> html;
  std::optional<std::string> csv;
  std::optional<Sweep> sweep;
  std::optional<std::string> preset;  ///< also among `rest`; gives what is not said of the above
  bool search = false;
  std::optional<std::string> write;  ///< where the configuration goes
  std::vector<std::string> rest;     ///< configuration and overrides
};

/// Nothing where neither --cluster nor --preset is among `args`. Throws Error naming the word.
std::optional<PriceWords> find_price_words(Args args);

int run_price(const PriceWords& words);

/// The part of run_price() for --search.
int run_search(const PriceWords& words, const price::Machine& machine);

/// For the help of `plan`.
std::string price_help();

}  // namespace tokamak::cli

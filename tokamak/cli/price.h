// `tokamak price CONFIG --cluster NAME --gpus N`, `search` and `sweep`: what plans would cost on
// machines that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/cli/verbs.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/price/run/priced_run.h"

namespace tokamak::cli {

/// Values of one thing in which plans differ: a number of the machine, a key of the configuration,
/// "cluster", "precision" or "gpus".
struct Sweep {
  std::string key;
  std::vector<std::string> values;
  std::vector<price::Precision> precisions;  ///< the values, if the key is "precision"
  std::vector<int64_t> gpus;                 ///< the values, if the key is "gpus"
  bool is_weak = true;                       ///< for gpus: the batch grows with them
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
  bool numbers = false;  ///< print the machine's numbers instead
  std::optional<std::string> trace;
  std::optional<std::string> html;
  std::optional<std::string> csv;
  std::vector<Sweep> sweeps;  ///< of different keys; every value of one meets all of the other
  std::optional<std::string> preset;  ///< also among `rest`; supplies what the words leave open
  bool search = false;
  std::optional<std::string> write;  ///< where the configuration goes
  std::vector<std::string> rest;     ///< configuration and overrides
};

/// Prints the presets and returns true if `args` have --preset list.
bool prints_presets(Args args);

/// Returns nothing if neither --cluster nor --preset is among `args`. Throws Error naming the word.
std::optional<PriceWords> find_price_words(Args args);

/// Prices and prints what the words ask for: a step, a sweep, a search, the machines or their
/// numbers.
int print_price(const PriceWords& words);

/// A request for one price.
struct PricePoint {
  price::Machine machine;
  int64_t num_gpus = 1;
  std::string gpus_word;                      ///< "--gpus 8", for messages
  std::optional<price::Precision> precision;  ///< else that of the words
  std::vector<std::string> overrides;         ///< apply after those of the command line
};

/// Returns nothing if help was asked for and printed.
std::optional<PriceRequest> request_of(const PriceWords& words, const PricePoint& point);

/// Throws Error if `precision` is below 16 bits and all matmuls are in fp32.
void require_low_products(const Config& config, price::Precision precision);

/// Returns this machine with the numbers that --set gives.
price::Machine machine_of(const PriceWords& words, const std::string& cluster);

/// Returns a line for everything that the price of `config` on `machine` leaves out.
std::vector<std::string> unpriced_lines(const Config& config, const price::Machine& machine);

/// Returns the key of a word "--a.b-c=value" or of a sweep of "a.b_c": "a.b_c".
std::string key_of(std::string_view word);

/// These are the parts of print_price() for sweeps and for searches.
int print_sweep(const PriceWords& words);
int print_search(const PriceWords& words, const price::Machine& machine);

}  // namespace tokamak::cli

// The verbs price, search and sweep: each has short words for one task. They read a run from
// the same file and keys as `train`.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tokamak/cli/price.h"
#include "tokamak/core/error.h"

namespace tokamak::cli {
namespace {

constexpr std::string_view kMachineHelp =
    "  --cluster NAME   a machine that is built in (list shows them) or a TOML file\n"
    "  --gpus N         how many ranks\n"
    "  --preset NAME    a published run with its cluster and GPUs (list shows them)\n"
    "  --set KEY=VALUE  another value for a number of the machine\n"
    "  --precision P    of the matmuls inside blocks: bf16, fp8 or fp4\n"
    "  --json           print JSON\n";

constexpr std::string_view kKeysHelp =
    "`tokamak train --help` lists the keys of a run, `tokamak help section.key` explains one.\n";

bool asks_for_help(Args args) {
  return has_word(args, "--help") || has_word(args, "-h");
}

bool is_flag(std::string_view word) {
  constexpr std::string_view kFlags[] = {"--json", "--all-ranks", "--numbers", "--search"};
  return std::ranges::find(kFlags, word) != std::end(kFlags);
}

// Whether args[i] is the value of the word before it.
bool is_value(Args args, size_t i) {
  if (i == 0 || args[i].starts_with("--")) return false;
  const std::string& before = args[i - 1];
  return before.starts_with("--") && before.find('=') == std::string::npos && !is_flag(before);
}

PriceWords price_words_of(std::string_view verb, Args args) {
  auto words = find_price_words(args);
  TOK_REQUIRE(words, "{}: wanted --cluster NAME or --preset NAME; `tokamak {} --help` says more",
              verb, verb);
  return std::move(*words);
}

int print_help(std::string_view usage, std::string_view own) {
  fmt::print("usage: tokamak {}\n\n{}{}{}", usage, kMachineHelp, own, kKeysHelp);
  return 0;
}

}  // namespace

int run_price(Args args) {
  if (asks_for_help(args)) {
    return print_help(
        "price [FILE.toml] --cluster NAME --gpus N [--section.key=value ...]",
        "  --tokens N       how many tokens to train for (1e12)\n"
        "  --all-ranks      price every rank, not the slowest of each pipeline stage\n"
        "  --numbers        print the machine's numbers with their sources, price nothing\n"
        "  --trace FILE     write the predicted step as a Chrome trace\n"
        "  --html FILE      write a page with pictures\n"
        "  --write FILE     write the configuration, for train\n");
  }
  if (prints_presets(args)) return 0;
  const PriceWords words = price_words_of("price", args);
  TOK_REQUIRE(!words.search, "price: --search: wanted `tokamak search`");
  TOK_REQUIRE(words.sweeps.empty(), "price: --sweep: wanted `tokamak sweep`");
  return print_price(words);
}

int run_search(Args args) {
  if (asks_for_help(args)) {
    return print_help(
        "search [FILE.toml] --cluster NAME --gpus N [--section.key=value ...]",
        "  --write FILE     write the configuration of the fastest, for train\n"
        "  --html FILE      write a page with time over memory of the plans\n"
        "The search prints the ten fastest meshes, schedules, microbatches, recompute modes and\n"
        "shardings for training.global_batch_size; --precision fp8 tries bf16 and fp8.\n");
  }
  if (prints_presets(args)) return 0;
  std::vector<std::string> with_search(args.begin(), args.end());
  if (!has_word(args, "--search")) with_search.emplace_back("--search");
  return print_price(price_words_of("search", with_search));
}

int run_sweep(Args args) {
  if (asks_for_help(args)) {
    return print_help(
        "sweep [FILE.toml] KEY=A,B,... [KEY=A,B,...] --cluster NAME [--gpus N] "
        "[--section.key=value ...]",
        "  --csv FILE       write the lines as CSV\n"
        "  --html FILE      write a page with pictures\n"
        "  --tokens N       how many tokens to train for (1e12)\n"
        "KEY is a key of the machine or of the run, cluster, precision, or gpus; "
        "gpus=A,B,...,strong\n"
        "keeps the global batch, which else grows with the GPUs. A second KEY crosses the "
        "first.\n");
  }
  if (prints_presets(args)) return 0;
  std::vector<std::string> with_sweeps;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool is_sweep = !args[i].starts_with("--") && args[i].find('=') != std::string::npos;
    if (is_sweep && !is_value(args, i)) with_sweeps.emplace_back("--sweep");
    with_sweeps.push_back(args[i]);
  }
  const bool is_any = std::ranges::any_of(with_sweeps, [](const std::string& w) {
    return w == "--sweep" || w.starts_with("--sweep=");
  });
  TOK_REQUIRE(is_any, "sweep: wanted KEY=A,B,..., as gpus=8,16,32");
  return print_price(price_words_of("sweep", with_sweeps));
}

}  // namespace tokamak::cli

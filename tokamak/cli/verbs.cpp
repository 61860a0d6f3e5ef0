#include "tokamak/cli/verbs.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/launch/job/launch_rank.h"
#include "tokamak/launch/network/probe_network.h"

namespace tokamak::cli {
namespace {

constexpr std::array kVerbs{
    Verb{"train", run_train,
         "train a model: tokamak train [FILE.toml] [--section.key=value ...] [--dry-run]"},
    Verb{"plan", run_plan, "print the plan of a run: memory, tasks, kernel choices"},
    Verb{"price", run_price, "predict the step of a run on another machine"},
    Verb{"search", run_search, "find the fastest mesh, schedule and recompute mode for N GPUs"},
    Verb{"sweep", run_sweep, "price a run for each value of a key, of GPUs or of machines"},
    Verb{"bench", run_bench, "measure a model's step or single kernels on this machine"},
    Verb{"generate", run_generate, "continue a text with a trained model"},
    Verb{"eval", run_eval, "loss, perplexity and bits per byte of a model on a text"},
    Verb{"report", run_report, "a page of one or several runs: loss, speed, memory, what happened",
         true},
    Verb{"convert", run_convert, "weights between Hugging Face folders, checkpoints and Meta files",
         true},
    Verb{"download", run_download, "fetch config, tokenizer and weights from a model hub", true},
    Verb{"tokenizer", run_tokenizer, "encode, decode, train or cache", true},
    Verb{"doctor", run_doctor, "check this machine and measure its peaks"},
    Verb{"launch", run_launch, "start ranks: tokamak launch -n 4 -- train ..."},
    Verb{"launch-rank", launch::run_launch_rank, ""},
    Verb{"launch-probe", [](Args) { return launch::run_launch_probe(); }, ""},
    Verb{"help", run_help, "explain a key: tokamak help section.key"},
};

}  // namespace

std::span<const Verb> verbs() {
  return kVerbs;
}

bool is_verb(std::string_view name) {
  return std::ranges::any_of(
      kVerbs, [&](const Verb& verb) { return verb.name == name && !verb.what.empty(); });
}

bool is_verb_alone(std::string_view name) {
  return std::ranges::any_of(kVerbs,
                             [&](const Verb& verb) { return verb.name == name && verb.is_alone; });
}

int run_verb(Args args) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (verb.name == args[0]) return verb.run(args.subspan(1));
    if (!verb.what.empty()) names.emplace_back(verb.name);
  }
  fail("no verb \"{}\"{}; `tokamak --help` lists them", printable(args[0]),
       nearest_hint(args[0], names));
}

}  // namespace tokamak::cli

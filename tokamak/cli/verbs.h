// The verbs of the program, one file each. A verb gets the words after its name and returns an exit
// code.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace tokamak::cli {

using Args = std::span<const std::string>;

int run_train(Args args);
int run_plan(Args args);
int run_price(Args args);
int run_search(Args args);
int run_sweep(Args args);
int run_bench(Args args);
int run_generate(Args args);
int run_eval(Args args);
int run_report(Args args);
int run_convert(Args args);
int run_download(Args args);
int run_tokenizer(Args args);
int run_doctor(Args args);
int run_help(Args args);
int run_launch(Args args);

// Parts of `bench` and `launch`.
int run_bench_op(Args args);
int run_bench_comm(Args args);
int run_bench_matrix(Args args);
int run_launch_slurm(Args args);

/// Whether one of `args` is `word`.
inline bool has_word(Args args, std::string_view word) {
  return std::ranges::find(args, word) != args.end();
}

struct Verb {
  std::string_view name;
  int (*run)(Args);
  std::string_view what;  ///< empty: not for users
  bool is_alone = false;  ///< writes files that several processes would write at once
};

/// Returns all verbs, in the order of the usage.
std::span<const Verb> verbs();

/// Whether `name` is a verb that users may give.
bool is_verb(std::string_view name);

/// Whether `name` is a verb that runs in one process alone.
bool is_verb_alone(std::string_view name);

/// Runs the verb that `args` begin with. REQUIRES: !args.empty()
int run_verb(Args args);

}  // namespace tokamak::cli

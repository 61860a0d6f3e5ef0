#include <algorithm>

#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"

namespace tokamak::cli {

int run_launch(Args args) {
  const auto dashes = std::find(args.begin(), args.end(), "--");
  CLI::App app("Starts ranks of a command on this machine: tokamak launch -n N -- train ...",
               "tokamak launch");
  int64_t num_ranks = 1;
  app.add_option("-n", num_ranks, "ranks")->capture_default_str();
  if (!parse(app, Args(args.begin(), dashes))) return 0;
  TOK_REQUIRE(num_ranks == 1, "tokamak launch: -n {}: this build runs one rank", num_ranks);
  TOK_REQUIRE(
      dashes != args.end() && dashes + 1 != args.end(),
      "tokamak launch: wanted a command after --, as: tokamak launch -n 1 -- train my.toml");
  return run_verb(Args(dashes + 1, args.end()));
}

}  // namespace tokamak::cli

#include <fmt/format.h>

#include "tokamak/cli/verbs.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"

namespace tokamak::cli {

int run_help(Args args) {
  TOK_REQUIRE(args.size() == 1,
              "tokamak help: wanted one key, as training.seq_len, or a section, as training");
  fmt::print("{}", key_help(args[0]));
  return 0;
}

}  // namespace tokamak::cli

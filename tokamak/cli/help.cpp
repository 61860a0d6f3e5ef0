#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/verbs.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/models/model_spec.h"

namespace tokamak::cli {

int run_help(Args args) {
  TOK_REQUIRE(args.size() == 1,
              "tokamak help: wanted one key, as training.seq_len, or a section, as training");
  fmt::print("{}", key_help(args[0]));
  if (args[0] == "model.flavor") {
    for (const std::string& name : model_names())
      fmt::print("  {}: {}, hf\n", name, fmt::join(flavors_of(name), ", "));
  }
  return 0;
}

}  // namespace tokamak::cli

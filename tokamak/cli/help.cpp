#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/verbs.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/models/model_spec.h"

namespace tokamak::cli {

int run_help(Args args) {
  TOK_REQUIRE(args.size() == 1,
              "tokamak help: wanted one key, as training.seq_len, a section, as training, or a "
              "verb, as train");
  if (args[0] == "--help" || args[0] == "-h") {
    fmt::print(
        "usage: tokamak help KEY|SECTION|VERB, as training.seq_len, training or train\n"
        "       tokamak help --schema: a JSON schema of configuration files, for editors\n");
    return 0;
  }
  if (args[0] == "--schema") {
    fmt::print("{}", config_schema());
    return 0;
  }
  if (is_verb(args[0])) {
    const std::string words[] = {args[0], "--help"};
    return run_verb(words);
  }
  fmt::print("{}", key_help(args[0]));
  if (args[0] == "model.flavor") {
    for (const std::string& name : model_names())
      fmt::print("  {}: {}, hf\n", name, fmt::join(flavors_of(name), ", "));
  }
  return 0;
}

}  // namespace tokamak::cli

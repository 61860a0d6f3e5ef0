#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "tokamak/cli/best_build.h"
#include "tokamak/cli/network/launch_probe.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/cli/version.h"
#include "tokamak/cli/waiting.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/bus_error.h"
#include "tokamak/core/error.h"
#include "tokamak/core/machine_fault.h"
#include "tokamak/core/names.h"

namespace tokamak::cli {
namespace {

struct Verb {
  std::string_view name;
  int (*run)(Args);
  std::string_view what;  ///< empty: not for users
};

constexpr std::array kVerbs{
    Verb{"train", run_train,
         "train a model: tokamak train [FILE.toml] [--section.key=value ...] [--dry-run]"},
    Verb{"plan", run_plan, "print the plan of a run: memory, tasks, kernel choices"},
    Verb{"price", run_price, "predict the step of a run on machines that are not here"},
    Verb{"search", run_search,
         "find the fastest mesh, schedule and recompute mode for so many GPUs"},
    Verb{"sweep", run_sweep, "price a run for each value of a key, of GPUs or of machines"},
    Verb{"rows", run_rows, "price published measurements beside what was measured"},
    Verb{"bench", run_bench, "measure a model's step or single kernels on this machine"},
    Verb{"generate", run_generate, "continue a text with a trained model"},
    Verb{"eval", run_eval, "loss, perplexity and bits per byte of a model on a text"},
    Verb{"report", run_report, "a page of one or several runs: loss, speed, memory, what happened"},
    Verb{"convert", run_convert,
         "weights between Hugging Face folders, checkpoints, llm.c and Meta files"},
    Verb{"download", run_download, "fetch config, tokenizer and weights from a model hub"},
    Verb{"tokenizer", run_tokenizer, "encode, decode, train or cache"},
    Verb{"doctor", run_doctor, "check this machine and measure its peaks"},
    Verb{"launch", run_launch, "start ranks: tokamak launch -n 4 -- train ..."},
    Verb{"launch-rank", run_launch_rank, ""},
    Verb{"launch-probe", run_launch_probe, ""},
    Verb{"help", run_help, "explain a key: tokamak help section.key"},
};

int usage(std::FILE* to) {
  fmt::print(to, "{}: pretrains Llama and GPT class language models\n\nusage: tokamak VERB ...\n\n",
             version_line());
  for (const Verb& verb : kVerbs) {
    if (!verb.what.empty()) fmt::print(to, "  {:<10} {}\n", verb.name, verb.what);
  }
  fmt::print(
      to,
      "\n`tokamak VERB --help` says more, `tokamak help training.seq_len` explains a key, -V "
      "prints the version.\n");
  return to == stdout ? 0 : static_cast<int>(ExitCode::kUserError);
}

}  // namespace

bool is_verb(std::string_view name) {
  return std::any_of(kVerbs.begin(), kVerbs.end(),
                     [&](const Verb& verb) { return verb.name == name && !verb.what.empty(); });
}

int run_verb(Args args) {
  if (args.empty()) return usage(stderr);
  if (args[0] == "--help" || args[0] == "-h" || (args[0] == "help" && args.size() == 1))
    return usage(stdout);
  if (args[0] == "--version" || args[0] == "-V") {
    fmt::print("{}", version_text());
    return 0;
  }
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (verb.name == args[0]) return verb.run(args.subspan(1));
    if (!verb.what.empty()) names.emplace_back(verb.name);
  }
  fail("no verb \"{}\"{}; `tokamak --help` lists them", printable(args[0]),
       nearest_hint(args[0], names));
}

namespace {

// Opens /dev/null where a standard stream is closed: the next file would get its number, and log
// lines would be written into it.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

int report(ExitCode code, std::string_view kind, std::string_view text) {
  std::fflush(stdout);
  fmt::print(stderr, "tokamak: {}{}{}\n", connected_rank(), kind, text);
  abort_ranks(static_cast<int>(code));
  return static_cast<int>(code);
}

}  // namespace
}  // namespace tokamak::cli

int main(int argc, char** argv) {
#ifdef TOK_PORTABLE
  tokamak::cli::run_best_build(argv);
#endif
  using namespace tokamak;  // NOLINT(google-build-using-namespace): main lies outside
  cli::open_standard_streams();
  report_bus_errors();
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // beyond ulimit -f a write fails with a reason
  if (argc > 1) cli::bound_waiting(argv[1], argv);
  try {
    const int code = cli::run_verb(std::vector<std::string>(argv + 1, argv + argc));
    const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    TOK_REQUIRE(is_written || code != 0, "standard output: not all of it could be written");
    return code;
  } catch (const Error& error) {
    return cli::report(ExitCode::kUserError, "", error.what());
  } catch (const Diverged& error) {
    return cli::report(ExitCode::kDiverged, "", error.what());
  } catch (const SystemError& error) {
    return cli::report(ExitCode::kTryAgain, "machine: ", error.what());
  } catch (const std::system_error& error) {  // from a path, or from an output that is full
    const bool is_path = dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr;
    if (is_path && is_machine_fault(error.code().value()))
      return cli::report(ExitCode::kTryAgain, "machine: ", error.what());
    return cli::report(ExitCode::kUserError, "", error.what());
  } catch (const std::bad_alloc&) {
    return cli::report(ExitCode::kTryAgain, "machine: ", "out of host memory");
  } catch (const std::exception& error) {
    return cli::report(
        ExitCode::kBug, "",
        fmt::format("{}; please report this line, with the command and its config", error.what()));
  }
}

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/best_build.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/bus_error.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

#include "tokamak_commit.h"  // the build writes it

namespace tokamak::cli {
namespace {

// Returns "tokamak 0.2.0 (0123abcd)": the version and the commit, or its tag where it has one; "+"
// says that the tree had changes. Without git, only the version.
std::string version_line() {
  const std::string commit = TOK_COMMIT;
  return fmt::format("tokamak {}{}", TOK_VERSION, commit.empty() ? "" : " (" + commit + ")");
}

std::string version_text() {
  std::vector<std::string> parts;
  for (const char* part : {TOK_PARTS}) parts.emplace_back(part);
  return fmt::format("{}\nbuilt with {}\n", version_line(), fmt::join(parts, ", "));
}

int usage(std::FILE* to) {
  fmt::print(to, "{}: pretrains Llama and GPT class language models\n\nusage: tokamak VERB ...\n\n",
             version_line());
  for (const Verb& verb : verbs()) {
    if (!verb.what.empty()) fmt::print(to, "  {:<10} {}\n", verb.name, verb.what);
  }
  fmt::print(
      to,
      "\n`tokamak VERB --help` says more, `tokamak help training.seq_len` explains a key, -V "
      "prints the version.\n");
  return to == stdout ? 0 : static_cast<int>(ExitCode::kUserError);
}

int run(Args args) {
  if (args.empty()) return usage(stderr);
  if (args[0] == "--help" || args[0] == "-h" || (args[0] == "help" && args.size() == 1))
    return usage(stdout);
  if (args[0] == "--version" || args[0] == "-V") {
    fmt::print("{}", version_text());
    return 0;
  }
  return run_verb(args);
}

// Opens /dev/null where a standard stream is closed: the next file would get its number, and log
// lines would be written into it.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

int report(ExitCode code, std::string_view kind, std::string_view text) {
  std::fflush(stdout);
  fmt::print(stderr, "tokamak: {}{}{}\n", connected_rank(), kind, without_controls(text, "\n\t"));
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
  try {
    const int code = cli::run(std::vector<std::string>(argv + 1, argv + argc));
    const bool is_written =
        std::cout.flush().good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
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

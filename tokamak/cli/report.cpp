#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/train/report/run_history.h"
#include "tokamak/train/report/run_page.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> runs_of(const std::vector<std::string>& folders) {
  std::vector<fs::path> runs;
  for (const std::string& folder : folders) {
    for (const fs::path& run : find_runs(folder)) {
      if (std::ranges::find(runs, run) == runs.end()) runs.push_back(run);
    }
  }
  TOK_REQUIRE(runs.size() <= kMostRunsOfPage, "{} runs: wanted at most {} on a page", runs.size(),
              kMostRunsOfPage);
  return runs;
}

// Runs whose folders have the same name are named by their paths.
void name_apart(const std::vector<fs::path>& folders, std::vector<RunHistory>& runs) {
  std::map<std::string, int> uses;
  for (const RunHistory& run : runs) ++uses[run.name];
  for (size_t i = 0; i < runs.size(); ++i) {
    if (uses[runs[i].name] > 1) runs[i].name = folders[i].lexically_normal().string();
  }
}

}  // namespace

int run_report(Args args) {
  CLI::App app(
      "Writes one page, for a browser, that shows runs side by side: loss, gradient norm,\n"
      "learning rate, tokens per second, MFU, memory, seconds of a step, and what happened "
      "(starts,\n"
      "saves, bad steps). A folder is that of a run (job.dump_folder), or has such folders in it.",
      "tokamak report");
  std::vector<std::string> folders;
  std::string output;
  std::string title;
  app.add_option("FOLDER", folders, "of a run, or of runs")->required();
  app.add_option("--output,-o", output,
                 "the page; default: report.html in the first FOLDER; - is standard output");
  app.add_option("--title", title, "of the page; default: the run's name");
  if (!parse(app, args)) return 0;

  const std::vector<fs::path> paths = runs_of(folders);
  std::vector<RunHistory> runs;
  for (const fs::path& path : paths) runs.push_back(read_run(path));
  name_apart(paths, runs);
  if (title.empty()) title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
  const std::string page = run_page(title, runs);
  if (output == "-") {
    fmt::print("{}", page);
    return 0;
  }
  const fs::path to = output.empty() ? fs::path(folders[0]) / "report.html" : fs::path(output);
  write_file_atomic(to, page);
  fmt::print("{}: {} run{}, {:.0f} kB\n", to.string(), runs.size(), runs.size() == 1 ? "" : "s",
             1e-3 * static_cast<double>(page.size()));
  return 0;
}

}  // namespace tokamak::cli

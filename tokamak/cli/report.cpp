#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "tokamak/cli/report_server.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/page.h"
#include "tokamak/train/report/run_history.h"
#include "tokamak/train/report/run_page.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint16_t kDefaultPort = 6070;

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

struct Report {
  std::string title;
  std::vector<RunHistory> runs;
};

Report read_report(const std::vector<std::string>& folders, const std::string& title) {
  Report report{.title = title};
  const std::vector<fs::path> paths = runs_of(folders);
  for (const fs::path& path : paths) report.runs.push_back(read_run(path));
  name_apart(paths, report.runs);
  if (title.empty()) {
    report.title =
        report.runs.size() == 1 ? report.runs[0].name : fmt::format("{} runs", report.runs.size());
  }
  return report;
}

void watch(const std::vector<std::string>& folders, const std::string& title, uint16_t port) {
  read_report(folders, title);  // a mistake in the words ends the program before it serves
  const auto page = [&](const auto& text_of) {
    const Report report = read_report(folders, title);
    return text_of(report.title, run_blocks(report.runs));
  };
  const ServedPage served{
      .html = [&] { return page([](auto& t, const auto& b) { return html_page(t, b, true); }); },
      .data = [&] { return page(page_data); }};
  serve_page(served, port, [](uint16_t taken) {
    fmt::print("http://localhost:{} is the page, renewed as the runs go on; Ctrl-C ends this\n",
               taken);
    std::fflush(stdout);
  });
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
  bool watches = false;
  uint16_t port = kDefaultPort;
  app.add_option("FOLDER", folders, "of a run, or of runs")->required();
  CLI::Option* const to_file =
      app.add_option("--output,-o", output,
                     "the page; default: report.html in the first FOLDER; - is standard output");
  app.add_option("--title", title, "of the page; default: the run's name");
  CLI::Option* const watch_flag =
      app.add_flag("--watch", watches, "serve the page to this machine's browsers and renew it")
          ->excludes(to_file);
  app.add_option("--port", port, "of --watch, on localhost; 0 takes any that is free")
      ->needs(watch_flag)
      ->capture_default_str();
  if (!parse(app, args)) return 0;
  if (watches) {
    watch(folders, title, port);
    return 0;
  }

  const Report report = read_report(folders, title);
  const std::string page = run_page(report.title, report.runs);
  if (output == "-") {
    fmt::print("{}", page);
    return 0;
  }
  const fs::path to = output.empty() ? fs::path(folders[0]) / "report.html" : fs::path(output);
  write_file_atomic(to, page);
  const size_t count = report.runs.size();
  fmt::print("{}: {} run{}, {:.0f} kB\n", to.string(), count, count == 1 ? "" : "s",
             1e-3 * static_cast<double>(page.size()));
  return 0;
}

}  // namespace tokamak::cli

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "tokamak/cli/output_queue.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/launch/slurm/batch_script.h"
#include "tokamak/launch/slurm/site.h"
#include "tokamak/launch/slurm/slurm_job.h"
#include "tokamak/run/presets.h"

namespace tokamak::cli {
namespace {

struct SlurmOptions {
  int64_t num_ranks = 0;
  int64_t nodes = 0;
  int64_t ranks_per_node = 0;
  int64_t cpus_per_rank = 0;
  std::string site;
  std::string preset;
  std::string folder;
  bool slurm = true;
  bool dry_run = false;
  bool no_check = false;
  bool no_follow = false;
};

void add_options(CLI::App& app, SlurmOptions& options, launch::BatchJob& job) {
  app.add_flag("--slurm", options.slurm, "submit a Slurm job");
  app.add_flag("--dry-run", options.dry_run, "print the batch script, submit nothing");
  app.add_option("--nodes", options.nodes, "nodes of the job");
  app.add_option("-n", options.num_ranks, "ranks of all nodes");
  app.add_option("--ranks-per-node", options.ranks_per_node,
                 "default: the site's, or -n / --nodes");
  app.add_option("--cpus-per-rank", options.cpus_per_rank, "default: the site's, or 1");
  app.add_option("--time", job.time, "time limit as sbatch takes it: minutes, H:M:S, D-H");
  app.add_option("--partition", job.partition);
  app.add_option("--account", job.account);
  app.add_option("--job-name", job.name, "default: the configuration's name");
  app.add_option("--exclude", job.exclude, "nodes to leave out, as n1,n2");
  app.add_option("--sbatch", job.sbatch, "further option of sbatch, as qos=debug; repeatable")
      ->expected(1);
  app.add_option("--site", options.site, "a site's settings: NAME, FILE, or list");
  app.add_option("--preset", options.preset, "a published run: its site, nodes, time and keys");
  app.add_option("--mpi", job.mpi, "of srun --mpi, or mpirun; auto: pmix, then mpirun")
      ->capture_default_str();
  app.add_option("--max-requeues", job.max_requeues, "how often the job may start again")
      ->capture_default_str();
  app.add_option("--save-seconds", job.save_seconds,
                 "how long before the time limit the ranks save and stop")
      ->capture_default_str();
  app.add_option("--dump-folder", options.folder,
                 "for logs of other verbs than train, which has job.dump_folder");
  app.add_flag("--no-check", options.no_check, "start without `doctor --cluster`");
  app.add_flag("--no-follow", options.no_follow, "print the job's id and return");
}

/// A word that sbatch reads from a line of the script.
void require_plain(const char* option, const std::string& value) {
  TOK_REQUIRE(std::ranges::none_of(
                  value, [](unsigned char c) { return c < 0x20 || c == '"' || c == '\''; }),
              "tokamak launch --slurm: {} {}: wanted a word without quotes and line ends", option,
              printable(value));
}

void require_one_line(const char* name, const std::string& value) {
  TOK_REQUIRE(std::ranges::none_of(value, [](unsigned char c) { return c < 0x20; }),
              "tokamak launch --slurm: {} {}: wanted a name without line ends", name,
              printable(value));
}

void check(const SlurmOptions& options, const launch::BatchJob& job) {
  const std::pair<const char*, int64_t> counts[] = {{"--nodes", options.nodes},
                                                    {"-n", options.num_ranks},
                                                    {"--ranks-per-node", options.ranks_per_node},
                                                    {"--cpus-per-rank", options.cpus_per_rank},
                                                    {"--max-requeues", job.max_requeues}};
  for (const auto& [name, count] : counts) {
    TOK_REQUIRE(count >= 0 && count <= 1'000'000, "tokamak launch --slurm: {} {}: wanted 1 or more",
                name, count);
  }
  TOK_REQUIRE(job.save_seconds >= 1 && job.save_seconds <= 65535,
              "tokamak launch --slurm: --save-seconds {}: wanted 1 to 65535", job.save_seconds);
  launch::require_slurm_time(job.time);
  const std::pair<const char*, const std::string*> texts[] = {{"--partition", &job.partition},
                                                              {"--account", &job.account},
                                                              {"--job-name", &job.name},
                                                              {"--exclude", &job.exclude},
                                                              {"--mpi", &job.mpi}};
  for (const auto& [name, text] : texts) require_plain(name, *text);
  TOK_REQUIRE(!job.mpi.empty() && job.mpi.find(' ') == std::string::npos,
              "tokamak launch --slurm: --mpi {}: wanted auto, mpirun or a word of srun --mpi=list",
              job.mpi);
  for (const std::string& word : job.sbatch) {
    require_plain("--sbatch", word);
    TOK_REQUIRE(!word.empty() && word[0] != '-' && word[0] != '=',
                "tokamak launch --slurm: --sbatch {}: wanted NAME or NAME=VALUE without dashes",
                word);
  }
}

/// Two of ranks, nodes and ranks per node give the third; the site and a preset fill in.
void set_shape(launch::BatchJob& job, const SlurmOptions& o, int64_t preset_ranks) {
  const int64_t ranks = o.num_ranks != 0 ? o.num_ranks : o.nodes != 0 ? 0 : preset_ranks;
  job.ranks_per_node = o.ranks_per_node != 0        ? o.ranks_per_node
                       : ranks != 0 && o.nodes != 0 ? std::max<int64_t>(ranks / o.nodes, 1)
                                                    : job.site.ranks_per_node;
  TOK_REQUIRE(job.ranks_per_node != 0,
              "tokamak launch --slurm: wanted two of --nodes, -n and --ranks-per-node, or --site");
  job.nodes = o.nodes != 0 ? o.nodes : ranks / job.ranks_per_node;
  TOK_REQUIRE(o.nodes != 0 || ranks != 0,
              "tokamak launch --slurm: wanted --nodes, as --nodes 4 --ranks-per-node {}",
              job.ranks_per_node);
  TOK_REQUIRE(ranks == 0 || job.nodes * job.ranks_per_node == ranks,
              "tokamak launch --slurm: {} ranks are not {} nodes of {} ranks", ranks,
              std::max<int64_t>(job.nodes, 1), job.ranks_per_node);
  job.cpus_per_rank = o.cpus_per_rank != 0          ? o.cpus_per_rank
                      : job.site.cpus_per_rank != 0 ? job.site.cpus_per_rank
                                                    : 1;
}

/// Reads the run's configuration now, as all ranks will: its mistakes cost no time in a queue.
void read_run_of_job(launch::BatchJob& job) {
  job.name = job.name.empty() ? job.words[0] : job.name;
  if (job.words[0] != "train") return;
  const std::vector<std::string> words(job.words.begin() + 1, job.words.end());
  const auto run = load_run_config(words, "train",
                                   {.world_size = static_cast<int>(job.nodes * job.ranks_per_node),
                                    .local_size = static_cast<int>(job.ranks_per_node),
                                    .source = "Slurm"});
  TOK_REQUIRE(run.has_value(), "tokamak launch --slurm: wanted a run after --, not --help");
  TOK_REQUIRE(!run->dry_run, "tokamak launch --slurm: --dry-run belongs before the --");
  // The nodes may see files, and have devices, that this host has not.
  for (const Need& need : run->needs) fmt::print(stderr, "note: {}\n", needs_line(need));
  job.folder = run->config.job.dump_folder;
}

std::string name_of_run(const std::vector<std::string>& words, const std::string& preset) {
  if (!preset.empty()) return preset;
  const bool has_file = words.size() > 1 && words[0] == "train" && !words[1].starts_with("--");
  return has_file ? std::filesystem::path(words[1]).stem().string() : "";
}

}  // namespace

int run_launch_slurm(Args args) {
  const auto dashes = std::ranges::find(args, "--");
  CLI::App app(
      "Submits a Slurm job: tokamak launch --slurm --nodes 4 --ranks-per-node 8 -- train my.toml",
      "tokamak launch --slurm");
  SlurmOptions options;
  launch::BatchJob job;
  add_options(app, options, job);
  require_dashes(Args(args.begin(), dashes));
  if (!parse(app, Args(args.begin(), dashes))) return 0;
  if (options.site == "list") {
    fmt::print("{}", launch::sites_text());
    return 0;
  }
  if (dashes != args.end()) job.words.assign(dashes + 1, args.end());
  int64_t preset_ranks = 0;
  if (!options.preset.empty()) {
    const Preset& preset = find_preset(options.preset);
    preset_ranks = preset.num_gpus;
    if (options.site.empty()) options.site = preset.site;
    if (job.time.empty()) job.time = preset.time;
    const bool repeats_verb = !job.words.empty() && job.words[0] == "train";
    if (!repeats_verb) job.words.insert(job.words.begin(), "train");
    job.words.insert(job.words.begin() + 1, "--preset=" + options.preset);
  }
  check(options, job);
  TOK_REQUIRE(!job.words.empty(),
              "tokamak launch --slurm: wanted a command after --, as: tokamak launch --slurm "
              "--nodes 4 --ranks-per-node 8 -- train my.toml");
  TOK_REQUIRE(is_verb(job.words[0]) && job.words[0] != "launch",
              "tokamak launch --slurm: no verb \"{}\" to launch; `tokamak --help` lists them",
              job.words[0]);
  if (!options.site.empty()) job.site = launch::find_site(options.site);
  set_shape(job, options, preset_ranks);
  job.checks_cluster = !options.no_check;
  job.program = std::filesystem::read_symlink("/proc/self/exe");
  job.folder = options.folder.empty() ? "outputs" : options.folder;
  if (job.name.empty()) job.name = name_of_run(job.words, options.preset);
  read_run_of_job(job);
  require_one_line("--job-name", job.name);
  require_one_line("job.dump_folder", job.folder.string());
  job.written_by = "tokamak launch";
  for (const std::string& arg : args) job.written_by += " " + launch::shell_word(arg);
  if (options.dry_run) {
    fmt::print("{}", to_script(job));
    return 0;
  }
  const std::string id = launch::submit(job);
  if (options.no_follow) {
    fmt::print("{}\n", id);
    return 0;
  }
  fmt::print(stderr, "tokamak launch: job {}; its log: {}\n", id,
             (job.folder / fmt::format("slurm-{}.log", id)).string());
  std::signal(SIGPIPE, SIG_IGN);  // the exit code is the job's, whoever reads its log
  const OutputQueue output(stdout);
  return launch::follow(id, job.folder);
}

}  // namespace tokamak::cli

#include "tokamak/launch/slurm/batch_script.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/launch/process/command.h"

namespace tokamak::launch {
namespace {

constexpr std::string_view kNetworkPart = R"sh(
# NCCL, RCCL and MPI take the fastest interface that connects all nodes, unless the site or the user names one.
if [ -z "$NCCL_SOCKET_IFNAME$OMPI_MCA_btl_tcp_if_include$OMPI_MCA_oob_tcp_if_include" ]; then
  rm -f "$logs/network"
  "$program" doctor --interfaces --settings="$logs/network"
  [ ! -e "$logs/network" ] || . "$logs/network"
fi
)sh";

/// Adds or replaces a setting.
void set(std::vector<SiteSetting>& settings, SiteSetting setting) {
  const auto at =
      std::ranges::find_if(settings, [&](const SiteSetting& s) { return s.name == setting.name; });
  if (at == settings.end()) {
    settings.push_back(std::move(setting));
  } else {
    *at = std::move(setting);
  }
}

/// Returns the text in one line of a comment.
std::string in_comment(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

/// Returns the text as Slurm's patterns of file names mean it.
std::string in_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) pattern += c == '%' ? std::string("%%") : std::string(1, c);
  return pattern;
}

/// Returns the text as bash reads it back from within double quotes.
std::string in_quotes(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (std::string_view("\\\"$`").find(c) != std::string_view::npos) quoted += '\\';
    quoted += c;
  }
  return quoted;
}

std::vector<SiteSetting> sbatch_options(const BatchJob& job) {
  std::vector<SiteSetting> options{
      {.name = "job-name", .value = job.name},
      {.name = "nodes", .value = std::to_string(job.nodes)},
      {.name = "ntasks", .value = std::to_string(job.nodes * job.ranks_per_node)},
      {.name = "ntasks-per-node", .value = std::to_string(job.ranks_per_node)},
      {.name = "cpus-per-task", .value = std::to_string(job.cpus_per_rank)}};
  if (!job.time.empty()) set(options, {.name = "time", .value = job.time});
  for (const SiteSetting& setting : job.site.sbatch) set(options, setting);
  const std::pair<const char*, const std::string*> own[] = {
      {"partition", &job.partition}, {"account", &job.account}, {"exclude", &job.exclude}};
  for (const auto& [name, value] : own) {
    if (!value->empty()) set(options, {.name = name, .value = *value});
  }
  set(options, {.name = "signal",
                .value = fmt::format("TERM@{}", job.save_seconds),
                .why = fmt::format("To the ranks, {} s before the end: they save and exit 85.",
                                   job.save_seconds)});
  set(options, {.name = "requeue"});
  set(options,
      {.name = "open-mode", .value = "append", .why = "A restarted job appends to the same logs."});
  set(options, {.name = "output", .value = in_pattern(job.folder / "") + "slurm-%j.log"});
  for (const std::string& word : job.sbatch) {
    const size_t equals = word.find('=');
    set(options, {.name = word.substr(0, equals),
                  .value = equals == std::string::npos ? "" : word.substr(equals + 1)});
  }
  return options;
}

std::string sbatch_lines(const BatchJob& job) {
  std::string text;
  for (const SiteSetting& option : sbatch_options(job)) {
    if (!option.why.empty()) text += fmt::format("# {}\n", option.why);
    text += "#SBATCH --" + option.name;
    if (!option.value.empty()) text += "=" + shell_word(option.value);
    text += "\n";
  }
  return text;
}

std::string exports(const Site& site) {
  std::string text;
  for (const SiteSetting& variable : site.environment)
    text += fmt::format("# {}\nexport {}=\"{}\"\n", variable.why, variable.name, variable.value);
  return text;
}

std::string lines_of(const std::vector<SiteSetting>& settings) {
  std::string text;
  for (const SiteSetting& line : settings) text += fmt::format("# {}\n{}\n", line.why, line.value);
  return text;
}

std::string broadcast(const Site& site) {
  if (site.broadcast_to.value.empty()) return "";
  return fmt::format("# {0}\nsbcast --force \"$program\" \"{1}\" && program=\"{1}\"\n",
                     site.broadcast_to.why, site.broadcast_to.value);
}

bool has_any(const std::vector<SiteSetting>& options, std::initializer_list<const char*> names) {
  return std::ranges::any_of(options, [&](const SiteSetting& option) {
    return std::ranges::find(names, option.name) != names.end();
  });
}

/// srun would hand each task its own GPUs of a job that asks for some per task.
std::string gpu_part(const BatchJob& job) {
  const bool hides_others =
      has_any(sbatch_options(job), {"gpus-per-task", "tres-per-task", "gpu-bind"});
  if (!hides_others || has_any(job.site.srun, {"gpus-per-task", "gpu-bind"})) return "";
  return R"sh(
# A rank takes the GPU of its local rank, and NCCL the links to those of the others, so that srun must not hide them.
unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPU_BIND
)sh";
}

std::vector<SiteSetting> srun_options(const BatchJob& job) {
  std::vector<SiteSetting> options{
      {.name = "cpus-per-task",
       .value = "$SLURM_CPUS_PER_TASK",
       .why = "srun does not take it from sbatch"},
      {.name = "cpu-bind",
       .value = "cores",
       .why = "each rank has cores of its own, and the memory next to them"},
      {.name = "kill-on-bad-exit", .value = "1", .why = "a rank that fails ends all"}};
  for (const SiteSetting& setting : job.site.srun) set(options, setting);
  return options;
}

std::vector<SiteSetting> mpirun_options(const BatchJob& job) {
  std::vector<SiteSetting> options{
      {.name = "map-by",
       .value = "ppr:$SLURM_NTASKS_PER_NODE:node:PE=$SLURM_CPUS_PER_TASK",
       .why = "each rank has cores of its own, as by srun"}};
  for (const SiteSetting& setting : job.site.mpirun) set(options, setting);
  return options;
}

std::string words_of(const std::vector<SiteSetting>& options, char before_value) {
  std::string text;
  for (const SiteSetting& option : options) {
    text += " --" + option.name;
    if (!option.value.empty()) text += fmt::format("{}\"{}\"", before_value, option.value);
  }
  return text;
}

std::string reasons_of(const char* command, const std::vector<SiteSetting>& options) {
  std::string text;
  for (const SiteSetting& option : options)
    text += fmt::format("# {} --{}: {}\n", command, option.name, option.why);
  return text;
}

/// Open MPI's mpirun hands on what -x names.
std::string mpirun_exports(const Site& site) {
  std::string text = " -x OMP_NUM_THREADS -x TOKAMAK_LEAVE_OUT -x TOKAMAK_CLUSTER_CHECKED";
  for (const SiteSetting& variable : site.environment) {
    if (variable.name != "NCCL_SOCKET_IFNAME") text += " -x " + variable.name;
  }
  return text + " ${NCCL_SOCKET_IFNAME:+-x NCCL_SOCKET_IFNAME}";  // where it is set
}

std::string start_function(const BatchJob& job) {
  const auto srun = srun_options(job);
  const auto mpirun = mpirun_options(job);
  return fmt::format(R"sh(
# Starts all ranks in the way that $mpi names; the output of rank R goes to the file $1-R.log.
{}{}start() {{
  local log=$1
  shift
  if [ "$mpi" = mpirun ]; then
    mpirun -n "$SLURM_NTASKS" --allow-run-as-root{} \
     {} \
      bash -c 'exec "$@" >> "$0-$OMPI_COMM_WORLD_RANK.log" 2>&1' "$log" "$@"
  else
    srun --mpi="$mpi" --output="${{log//%/%%}}-%t.log" --open-mode=append \
     {} "$@"
  fi
}}
)sh",
                     reasons_of("srun", srun), reasons_of("mpirun", mpirun), words_of(mpirun, ' '),
                     mpirun_exports(job.site), words_of(srun, '='));
}

std::string check_part(const BatchJob& job) {
  return fmt::format(R"sh(
# The first way that connects all ranks is taken. They check their hosts and name those that should be left out.
rm -f "$logs"/check-*.log
for mpi in {}; do
  start "$logs/check" "$program" doctor --cluster --settings="$logs/settings" --dump-folder="$run"
  code=$?
  [ ! -e "$logs/settings" ] || break
  echo "launch: $mpi does not connect the ranks"
  cat "$logs"/check-*.log | sort -u | tail -n 5
  rm -f "$logs"/check-*.log
done
if [ -e "$logs/settings" ]; then
  cat "$logs/check-0.log"
  echo "launch: $mpi starts $SLURM_NTASKS ranks on $SLURM_JOB_NUM_NODES nodes; their logs: $logs/rank-*.log"
fi
)sh",
                     job.mpi == "auto" ? "pmix mpirun" : job.mpi);
}

std::string run_part(const BatchJob& job) {
  std::string words;
  for (const std::string& word : job.words) words += " " + shell_word(word);
  const std::string run = fmt::format("start \"$logs/rank\" \"$program\"{}", words);
  if (!job.checks_cluster) {
    return fmt::format("\nmpi={}\n{}\ncode=$?\n", job.mpi == "auto" ? "pmix" : job.mpi, run);
  }
  return fmt::format(R"sh(if [ -e "$logs/settings" ] && [ "$code" = 0 ]; then
  export TOKAMAK_CLUSTER_CHECKED=1  # train does not do it again
  {}
  code=$?
fi
)sh",
                     run);
}

std::string end_part(const BatchJob& job) {
  const auto options = sbatch_options(job);
  const auto exclude = std::ranges::find_if(
      options, [](const SiteSetting& option) { return option.name == "exclude"; });
  return fmt::format(R"sh(
leave_out=
[ ! -e "$logs/settings" ] || . "$logs/settings"
[ "$code" = 0 ] || tail -qn 20 "$logs"/rank-*.log 2> /dev/null | grep '^tokamak: ' | sort -u | head -n 20
echo "launch: exit code $code"

# 85: stopped with steps left; 75: a machine failed; above 128: a rank was killed. The job starts again, at most {0}
# times, and resumes from its last checkpoint. 0 is finished; the rest would fail again, and so would a job that has
# ended three times in a row with the same code after the same step, logged or saved (76).
again=no
case $code in 85 | 75 | 129 | 1[3-9]? | 2??) again=yes ;; esac
step=$({{ tail -qn 1 "$run/metrics.jsonl" | sed 's/.*"step": *\([0-9]*\).*/\1/'
  find "$run" -maxdepth 3 -name 'step-*' | sed -n 's/.*step-\([0-9]*\)$/\1/p'; }} 2> /dev/null | sort -n | tail -n 1)
echo "$code $step${{leave_out:+ $leave_out}}" >> "$logs/ends"
if [ $again = yes ] && [ -n "$(tail -n 3 "$logs/ends" | uniq -c | awk '$1 == 3')" ]; then
  echo "launch: the job has ended three times in a row with code $code and no further step; it is not started again"
  again=no code=76
fi
if [ $again = yes ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {0} ]; then
  trap '' TERM  # Slurm ends this script while it requeues the job
  scontrol requeue "$SLURM_JOB_ID"
  if [ -n "$leave_out" ]; then
    echo "{1}$leave_out" >> "$logs/excluded"
    scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$(sort -u "$logs/excluded" | paste -sd,)"
  fi
fi
exit "$code"
)sh",
                     job.max_requeues,
                     exclude == options.end() ? "" : in_quotes(exclude->value) + ",");
}

}  // namespace

void require_slurm_time(const std::string& time) {
  if (time.empty()) return;
  std::string shape;
  for (const char c : time) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit || shape.empty() || shape.back() != '0') shape += is_digit ? '0' : c;
  }
  const auto shapes = {"0", "0:0", "0:0:0", "0-0", "0-0:0", "0-0:0:0"};
  TOK_REQUIRE(std::ranges::find(shapes, shape) != shapes.end(),
              "--time {}: wanted minutes, H:M:S, D-H, D-H:M or D-H:M:S", time);
}

std::string to_script(const BatchJob& job) {
  std::string text = fmt::format("#!/bin/bash\n# Written by: {}\n", in_comment(job.written_by));
  if (!job.site.name.empty())
    text += fmt::format("# Site {}: {}. The settings and their reasons are those of its file.\n",
                        job.site.name, job.site.about);
  text += sbatch_lines(job);
  text += fmt::format(R"sh(
program={}
run={}
logs=$run/slurm-$SLURM_JOB_ID  # a file for each rank
mkdir -p "$logs"
rm -f "$logs/settings"
export TOKAMAK_LEAVE_OUT=$logs/settings  # there ranks write which hosts to start again without
export TOKAMAK_CLUSTER_CHECKED=
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
)sh",
                      shell_word(job.program.string()), shell_word(job.folder.string()));
  text += exports(job.site) + broadcast(job.site) + lines_of(job.site.before);
  if (job.nodes > 1) text += kNetworkPart;
  text += gpu_part(job) + start_function(job);
  if (job.checks_cluster) text += check_part(job);
  return text + run_part(job) + lines_of(job.site.after) + end_part(job);
}

}  // namespace tokamak::launch

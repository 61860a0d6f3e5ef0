// `tokamak launch --slurm`: sites, presets, and the batch scripts written from them.
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/launch/slurm/batch_script.h"
#include "tokamak/launch/slurm/site.h"
#include "tokamak/launch/slurm/slurm_job.h"

#include "tests/fixtures/program.h"

namespace tokamak::launch {
namespace {

using Words = std::vector<std::string>;

ProgramResult launch(Words words) {
  words.insert(words.begin(), {TOK_PROGRAM, "launch", "--slurm", "--dry-run"});
  return run_program(words);
}

/// Returns what `tokamak launch --slurm --dry-run` prints when it is given these words.
std::string script_of(const Words& words) {
  const ProgramResult result = launch(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

/// Its one line of complaint, without the program's name.
std::string error_of(const Words& words) {
  const ProgramResult result = launch(words);
  const std::string front = "tokamak: ";
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  return result.err.substr(front.size(), result.err.size() - front.size() - 1);
}

void expect_line(const std::string& script, const std::string& line) {
  EXPECT_NE(("\n" + script).find("\n" + line + "\n"), std::string::npos) << line << "\n" << script;
}

/// Bash reads the whole script without running it.
void expect_bash_takes(const std::string& script) {
  const ProgramResult result = run_program({"/bin/bash", "-n"}, ".", script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(SlurmScript, OfNemosJob) {
  const std::string script = script_of({"--preset", "nemo-405b-576-bf16"});
  for (const char* line :
       {"#SBATCH --nodes=72", "#SBATCH --ntasks=576", "#SBATCH --ntasks-per-node=8",
        "#SBATCH --cpus-per-task=14", "#SBATCH --time=00:30:00",
        "#SBATCH --job-name=nemo-405b-576-bf16", "#SBATCH --exclusive",
        "  start \"$logs/rank\" \"$program\" train --preset=nemo-405b-576-bf16"})
    expect_line(script, line);
  expect_bash_takes(script);
}

TEST(SlurmScript, OfFrontiersJob) {
  const std::string script = script_of({"--preset=frontier-8b-832-nodes"});
  for (const char* line :
       {"#SBATCH --nodes=832", "#SBATCH --ntasks=6656", "#SBATCH --gpus-per-node=8",
        "#SBATCH --time=02:00:00", "export NCCL_SOCKET_IFNAME=\"hsn0\"",
        "export OMPI_MCA_btl_tcp_if_include=\"hsn0\"", "export NCCL_NET_GDR_LEVEL=\"3\""})
    expect_line(script, line);
  EXPECT_NE(script.find("AWS_OFI_RCCL"), std::string::npos);
  EXPECT_NE(script.find("sbcast --force \"$program\""), std::string::npos);
  expect_bash_takes(script);
}

TEST(SlurmScript, OfCrusoesJob) {
  const std::string script = script_of({"--preset=gb200-8b-18-nodes"});
  for (const char* line :
       {"#SBATCH --nodes=18", "#SBATCH --ntasks=72", "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=24", "#SBATCH --partition=batch",
        "export LD_PRELOAD=\"/usr/lib/aarch64-linux-gnu/libnccl.so.2\"",
        "export NCCL_MNNVL_ENABLE=\"1\"", "export NCCL_BUFFSIZE=\"2097152\""})
    expect_line(script, line);
  EXPECT_LT(script.find("dcgmi profile --pause"), script.find("dcgmi profile --resume"));
  expect_bash_takes(script);
}

TEST(SlurmScript, WordsComeBeforeTheSiteAndKeepTheirSpelling) {
  for (const char* site : {"frontier", "gb200-slurm", "dgx-h100"}) {
    const std::string script =
        script_of({"--site", site, "--nodes=2", "--partition=mine", "--sbatch=qos=debug",
                   "--exclude=n1,n2", "--mpi=pmi2", "--max-requeues=3", "--account=ours",
                   "--save-seconds=77", "--", "doctor", "it's", "$HOME"});
    expect_line(script, "#SBATCH --account=ours");
    expect_line(script, "#SBATCH --signal=TERM@77");
    expect_line(script, "#SBATCH --partition=mine");
    expect_line(script, "#SBATCH --qos=debug");
    expect_line(script, "for mpi in pmi2; do");
    EXPECT_NE(script.find("doctor 'it'\\''s' '$HOME'"), std::string::npos);
    EXPECT_NE(script.find("-lt 3 ]"), std::string::npos);
    EXPECT_NE(script.find("echo \"n1,n2,$leave_out\""), std::string::npos);
    expect_bash_takes(script);
  }
}

TEST(SlurmScript, TwoOfNodesRanksAndRanksPerNodeGiveTheThird) {
  expect_line(script_of({"--nodes=2", "-n", "8", "--", "doctor"}), "#SBATCH --ntasks-per-node=4");
  expect_line(script_of({"--ranks-per-node=4", "-n", "8", "--", "doctor"}), "#SBATCH --nodes=2");
  expect_line(script_of({"--nodes=2", "-n", "8", "--cpus-per-rank=5", "--", "doctor"}),
              "#SBATCH --cpus-per-task=5");
  EXPECT_EQ(error_of({"--nodes=3", "-n", "8", "--", "doctor"}),
            "tokamak launch --slurm: 8 ranks are not 3 nodes of 2 ranks");
  EXPECT_EQ(error_of({"--nodes=3", "--", "doctor"}),
            "tokamak launch --slurm: wanted two of --nodes, -n and --ranks-per-node, or --site");
}

TEST(SlurmScript, MistakesCostNoTimeInAQueue) {
  const Words shape{"--nodes=2", "--ranks-per-node=2"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), shape.begin(), shape.end());
    return error_of(more);
  };
  EXPECT_NE(with({"--", "train", "--training.no_such_key=1"}).find("training.no_such_key"),
            std::string::npos);
  EXPECT_NE(with({"--", "train", "missing.toml"}).find("missing.toml"), std::string::npos);
  EXPECT_EQ(with({"--time=soon", "--", "doctor"}),
            "--time soon: wanted minutes, H:M:S, D-H, D-H:M or D-H:M:S");
  EXPECT_EQ(with({"--site=fronteer", "--", "doctor"}),
            "--site fronteer: no such site; the nearest is frontier, --site list has all, and a "
            "file needs a slash or .toml");
  EXPECT_EQ(with({"--site=./none.toml", "--", "doctor"}), "--site ./none.toml: no such file");
  EXPECT_NE(with({"--", "no-such-verb"}).find("no verb \"no-such-verb\""), std::string::npos);
  EXPECT_NE(with({}).find("wanted a command after --"), std::string::npos);
  EXPECT_NE(with({"--partition=a'b", "--", "doctor"}).find("--partition "), std::string::npos);
  EXPECT_NE(with({"--sbatch=--qos=x", "--", "doctor"}).find("without dashes"), std::string::npos);
  EXPECT_NE(with({"--max-requeues=-1", "--", "doctor"}).find("--max-requeues -1"),
            std::string::npos);
}

TEST(SlurmTime, TakesSbatchsForms) {
  for (const char* time : {"", "30", "30:00", "12:00:00", "1-12", "1-12:30", "1-12:30:15"})
    EXPECT_NO_THROW(require_slurm_time(time)) << time;
  for (const char* time : {"1h", "1:2:3:4", "-1", "1-", ":30", "1-2-3", " 30"})
    EXPECT_THROW(require_slurm_time(time), Error) << time;
}

TEST(ShellWord, ReadsBack) {
  for (const char* word : {"plain", "", "it's", "$HOME", "a b", "`ls`", "\"", "*", "new\nline"}) {
    const ProgramResult result = run_program({"/bin/bash", "-c", "printf %s " + shell_word(word)});
    EXPECT_EQ(result.out, word);
  }
}

std::string site_error(const std::string& text) {
  try {
    parse_site(text, "mine.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Site, RefusesWhatItDoesNotKnowInOneLine) {
  EXPECT_EQ(site_error("[job]\nranks_per_nod = { value = 8, why = \"x\" }"),
            "mine.toml:2: job.ranks_per_nod: no such key of a site; the nearest is "
            "job.ranks_per_node, and [sbatch], [srun], [mpirun] and [environment] take any name");
  EXPECT_EQ(site_error("[environment]\nA = 1"),
            "mine.toml:2: environment.A: wanted { value = ..., why = \"...\" }");
  EXPECT_EQ(site_error("[environment]\nA = { value = 1 }"),
            "mine.toml:2: environment.A: wanted { value = ..., why = \"...\" }");
  EXPECT_NE(site_error("[environment]\nA = { value = 'a\"; rm', why = 'x' }").find("quotes"),
            std::string::npos);
  EXPECT_NE(site_error("[environment]\n\"A B\" = { value = 1, why = 'x' }").find("letters"),
            std::string::npos);
  EXPECT_NE(site_error("[job]\ncpus_per_rank = { value = 0, why = 'x' }").find("1 to 4096"),
            std::string::npos);
  EXPECT_NE(site_error("[job]\ncpus_per_rank = { value = true, why = 'x' }").find("got"),
            std::string::npos);
}

TEST(Site, OfAFileReplacesNothingElse) {
  const ScratchFolder folder;
  const auto file = folder.path() / "mine.toml";
  write_file_atomic(file,
                    "about = 'mine'\n[job]\nranks_per_node = { value = 2, why = 'two sockets' }\n"
                    "[srun]\ncpu-bind = { value = 'none', why = 'the pinning is ours' }\n");
  const std::string script = script_of({"--site", file, "--nodes=3", "--", "doctor"});
  expect_line(script, "#SBATCH --ntasks=6");
  EXPECT_NE(script.find("--cpu-bind=\"none\""), std::string::npos);
  EXPECT_EQ(script.find("--cpu-bind=\"cores\""), std::string::npos);
}

TEST(SlurmScript, BindsWithReasonsThatASiteMayReplace) {
  const Words shape{"--nodes=2", "--ranks-per-node=2", "--", "doctor"};
  const std::string plain = script_of(shape);
  for (const char* text :
       {"# srun --cpu-bind: each rank has cores of its own, and the memory next to them\n",
        "# mpirun --map-by: each rank has cores of its own, as by srun\n", " --cpu-bind=\"cores\"",
        " --map-by \"ppr:$SLURM_NTASKS_PER_NODE:node:PE=$SLURM_CPUS_PER_TASK\""})
    EXPECT_NE(plain.find(text), std::string::npos) << text << plain;
  const auto unsets = [](const std::string& script) {
    return script.find("\nunset SLURM_GPUS_PER_TASK") != std::string::npos;
  };
  EXPECT_FALSE(unsets(plain)) << "srun shows all GPUs of the node";
  Words per_task{"--sbatch=gpus-per-task=1"};
  per_task.insert(per_task.end(), shape.begin(), shape.end());
  EXPECT_TRUE(unsets(script_of(per_task)));
  const ScratchFolder folder;
  const auto file = folder.path() / "mine.toml";
  write_file_atomic(file,
                    "about = 'mine'\n[sbatch]\ngpus-per-task = { value = 1, why = 'the rule' }\n"
                    "[srun]\ngpu-bind = { value = 'single:1', why = 'one GPU per rank' }\n"
                    "[mpirun]\nmap-by = { value = 'numa', why = 'beside the GPUs' }\n"
                    "report-bindings = { value = '', why = 'to see them' }\n");
  const std::string site =
      script_of({"--site", file, "--nodes=2", "--ranks-per-node=2", "--", "doctor"});
  for (const char* text :
       {"# srun --gpu-bind: one GPU per rank\n", " --gpu-bind=\"single:1\"",
        "# mpirun --map-by: beside the GPUs\n", " --map-by \"numa\" --report-bindings \\\n"})
    EXPECT_NE(site.find(text), std::string::npos) << text << site;
  EXPECT_FALSE(unsets(site)) << "the site binds GPUs itself";
  EXPECT_EQ(site.find("ppr:"), std::string::npos);
  expect_bash_takes(site);
}

TEST(SlurmScript, ChoosesTheNetworkOfSeveralNodes) {
  const std::string probe = "\"$program\" doctor --interfaces --settings=\"$logs/network\"";
  const std::string several = script_of({"--nodes=2", "--ranks-per-node=2", "--", "doctor"});
  EXPECT_LT(several.find(probe), several.find("start() {"));
  EXPECT_EQ(script_of({"--nodes=1", "--ranks-per-node=2", "--", "doctor"}).find(probe),
            std::string::npos);
}

TEST(SlurmScript, TellsTrainWhatIsCheckedAndWhereItsVerdictGoes) {
  const std::string script = script_of({"--nodes=2", "--ranks-per-node=2", "--", "train"});
  const size_t none = script.find("export TOKAMAK_CLUSTER_CHECKED=\n");
  const size_t checked = script.find("export TOKAMAK_CLUSTER_CHECKED=1");
  EXPECT_LT(none, checked);
  EXPECT_LT(script.find("doctor --cluster"), checked);
  EXPECT_LT(checked, script.find("start \"$logs/rank\" \"$program\" train"));
  expect_line(script,
              "export TOKAMAK_LEAVE_OUT=$logs/settings  # there ranks write which hosts to start "
              "again without");
  const std::string unchecked =
      script_of({"--nodes=2", "--ranks-per-node=2", "--no-check", "--", "train"});
  EXPECT_EQ(unchecked.find("export TOKAMAK_CLUSTER_CHECKED=1"), std::string::npos);
}

TEST(SlurmScript, TakesWordsFromOutsideAsText) {
  const Words shape{"--nodes=2", "--ranks-per-node=2"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), shape.begin(), shape.end());
    return more;
  };
  const std::string lines = script_of(with({"--", "doctor", "one\ntouch made\n#SBATCH --nodes=9"}));
  expect_bash_takes(lines);
  std::istringstream head(lines.substr(0, lines.find("#SBATCH --signal")));
  for (std::string line; std::getline(head, line);) EXPECT_EQ(line[0], '#') << line;
  EXPECT_EQ(lines.substr(0, lines.find("program=")).find("\n#SBATCH --nodes=9"), std::string::npos);
  const ScratchFolder folder;
  const std::string run = folder.path() / "50%j of it";
  const std::string percent = script_of(with({"--dump-folder", run, "--", "doctor"}));
  expect_line(percent, fmt::format("#SBATCH --output='{}/50%%j of it/slurm-%j.log'",
                                   folder.path().string()));
  EXPECT_NE(percent.find("--output=\"${log//%/%%}-%t.log\""), std::string::npos);
  EXPECT_NE(error_of(with({"--dump-folder", "a\nb", "--", "doctor"})).find("without line ends"),
            std::string::npos);
  EXPECT_NE(script_of(with({"--sbatch=exclude=n7", "--", "doctor"})).find("echo \"n7,$leave_out\""),
            std::string::npos);
  const auto site = folder.path() / "mine.toml";
  write_file_atomic(site,
                    "about = 'mine'\n[sbatch]\nexclude = { value = 'n8,n9', why = 'broken' }\n");
  EXPECT_NE(script_of(with({"--site", site, "--", "doctor"})).find("echo \"n8,n9,$leave_out\""),
            std::string::npos);
}

/// Runs what follows the job in a script, in a run's folder, as its `attempt` that ended with
/// `code`; returns its exit code.
int end_of_job(const std::filesystem::path& run, int code, int attempt) {
  const std::string script = to_script({.nodes = 1, .folder = run, .words = {"train"}});
  const std::string end = script.substr(script.find("\nleave_out=\n"));
  const std::string front = fmt::format(
      "scontrol() {{ :; }}\nrun={0}\nlogs={0}\ncode={1}\nSLURM_JOB_ID=1\nSLURM_RESTART_COUNT={2}\n",
      run.string(), code, attempt);
  return run_program({"/bin/bash", "-c", front + end}).exit_code;
}

TEST(SlurmScript, StartsAgainWhileCheckpointsGetOn) {
  for (const int code : {85, 75}) {
    const ScratchFolder run;
    write_file_atomic(run.path() / "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
    for (int attempt = 0; attempt < 5; ++attempt) {
      make_folders(run.path() / "checkpoint" / fmt::format("step-{}", attempt + 9));
      make_folders(run.path() / "checkpoint" / fmt::format("step-{}.tmp-x", attempt + 10));
      EXPECT_EQ(end_of_job(run.path(), code, attempt), code) << attempt;
    }
    EXPECT_EQ(end_of_job(run.path(), code, 6), code);
    EXPECT_EQ(end_of_job(run.path(), code, 7), 76) << "three times after the same step";
  }
}

TEST(SlurmState, IsReadFromScontrol) {
  const auto state = parse_state(
      "JobId=7 JobName=x JobState=FAILED Reason=NonZeroExitCode Requeue=1 ExitCode=85:0 RunTime=0");
  ASSERT_TRUE(state);
  EXPECT_EQ(state->exit_code, 85);
  EXPECT_TRUE(state->is_over);
  EXPECT_EQ(parse_state("JobId=7 JobState=CANCELLED ExitCode=0:15 X=1")->exit_code, 143);
  EXPECT_FALSE(parse_state("JobId=7 JobState=PENDING Reason=BeginTime ExitCode=0:0 ")->is_over);
  EXPECT_FALSE(parse_state("slurm_load_jobs error: Invalid job id specified"));
}

TEST(Submit, TakesTheIdWhateverTheSiteSays) {
  const ScratchFolder folder;
  const auto fake = folder.path() / "sbatch";
  FileWriter(fake).write(
      "#!/bin/sh\necho 'sbatch: Account charged: 4711' >&2\necho 'filter: all is well'\n"
      "echo '4712;cluster'\n");
  std::filesystem::permissions(fake, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  BatchJob job{.folder = folder.path() / "run", .words = {"train"}};
  EXPECT_EQ(submit(job), "4712");
  EXPECT_TRUE(path_exists(folder.path() / "run/slurm-4712.sh"));
  FileWriter(fake).write("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n");
  std::string refusal;
  try {
    submit(job);
  } catch (const Error& error) {
    refusal = error.what();
  }
  EXPECT_EQ(refusal,
            "tokamak launch --slurm: Slurm refuses the job: sbatch: error: no such partition");
  ::setenv("PATH", path.c_str(), 1);
}

// A scontrol that answers with `first` once and then with `rest`, each the text of a shell command.
class FollowJob : public ::testing::Test {
 protected:
  void answer(const std::string& first, const std::string& rest) const {
    const auto fake = folder_.path() / "scontrol";
    FileWriter(fake).write("#!/bin/sh\necho >>$0.asked\n[ $(wc -l <$0.asked) -gt 1 ] || { " +
                           first + "; exit; }\n" + rest + "\n");
    std::filesystem::permissions(fake, std::filesystem::perms::owner_all);
  }

  // Returns follow()'s code and what it said.
  std::pair<int, std::string> followed() const {
    ::testing::internal::CaptureStderr();
    const int code = follow("7", folder_.path(), std::chrono::milliseconds(1));
    return {code, ::testing::internal::GetCapturedStderr()};
  }

  size_t times_asked() const { return read_file(folder_.path() / "scontrol.asked").size(); }

  void SetUp() override { ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1); }

  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

  static constexpr const char* kRuns = "echo 'JobId=7 JobState=RUNNING Reason=None ExitCode=0:0 '";
  static constexpr const char* kEnded =
      "echo 'JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 '";
  static constexpr const char* kUnknown =
      "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
  static constexpr const char* kAway =
      "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; "
      "exit 1";

 private:
  ScratchFolder folder_;
  std::string path_ = std::getenv("PATH");
};

TEST_F(FollowJob, EndsWithTheCodeOfTheJob) {
  answer(kRuns, kEnded);
  EXPECT_EQ(followed().first, 3);
}

TEST_F(FollowJob, EndsSoonWhereSlurmHasForgottenTheJob) {
  answer(kRuns, kUnknown);
  const auto [code, said] = followed();
  EXPECT_EQ(code, 75);
  EXPECT_EQ(times_asked(), 4U);
  EXPECT_NE(said.find("no longer knows job 7; `sacct -j 7`"), std::string::npos) << said;
}

TEST_F(FollowJob, WaitsForAControllerThatIsAway) {
  answer(kRuns, std::string("[ $(wc -l <$0.asked) -gt 20 ] || { ") + kAway + "; }\n" + kEnded);
  const auto [code, said] = followed();
  EXPECT_EQ(code, 3);
  EXPECT_NE(said.find("controller does not answer"), std::string::npos) << said;
}

TEST_F(FollowJob, EndsWhereSlurmNoLongerAnswers) {
  answer(kRuns, kAway);
  EXPECT_EQ(followed().first, 75);
  EXPECT_EQ(times_asked(), 61U);
}

}  // namespace
}  // namespace tokamak::launch

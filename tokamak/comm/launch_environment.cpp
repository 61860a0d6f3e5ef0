#include "tokamak/comm/launch_environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

#include "tokamak/core/error.h"
#include "tokamak/core/host.h"
#include "tokamak/core/value.h"

namespace tokamak {
namespace {

std::optional<int> read_number(const EnvironmentReader& read, const char* name) {
  const char* text = read(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const auto number = parse_number<int>(text);
  TOK_REQUIRE(number && *number >= 0, "environment variable {}=\"{}\": wanted a number", name,
              text);
  return number;
}

struct Names {
  const char* source;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kOpenMpi{.source = "Open MPI",
                         .rank = "OMPI_COMM_WORLD_RANK",
                         .world_size = "OMPI_COMM_WORLD_SIZE",
                         .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                         .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE"};
// Only srun sets SLURM_STEP_NUM_TASKS; the others are also set in a batch script, as rank 0.
constexpr Names kSlurm{.source = "Slurm",
                       .rank = "SLURM_PROCID",
                       .world_size = "SLURM_STEP_NUM_TASKS",
                       .local_rank = "SLURM_LOCALID",
                       .local_size = "SLURM_STEP_TASKS_PER_NODE"};
constexpr Names kPmi{.source = "PMI",
                     .rank = "PMI_RANK",
                     .world_size = "PMI_SIZE",
                     .local_rank = "MPI_LOCALRANKID",
                     .local_size = "MPI_LOCALNRANKS"};
constexpr Names kMvapich{.source = "MVAPICH",
                         .rank = "MV2_COMM_WORLD_RANK",
                         .world_size = "MV2_COMM_WORLD_SIZE",
                         .local_rank = "MV2_COMM_WORLD_LOCAL_RANK",
                         .local_size = "MV2_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kJsrun{.source = "jsrun",
                       .rank = "JSM_NAMESPACE_RANK",
                       .world_size = "JSM_NAMESPACE_SIZE",
                       .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
                       .local_size = "JSM_NAMESPACE_LOCAL_SIZE"};

/// A launcher that starts processes without MPI, or without saying how many there are.
struct Unconnected {
  const char* source;
  const char* mark;  ///< a variable that tells it from others with the same rank; null: its rank
  const char* rank;
  const char* world_size;  ///< null: not told, so that a rank above 0 shows that there are several
};

constexpr Unconnected kUnconnected[] = {
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"},
    {"accelerate", "ACCELERATE_MIXED_PRECISION", "RANK", "WORLD_SIZE"},
    {"DeepSpeed", "CROSS_SIZE", "RANK", "WORLD_SIZE"},
    {"Kubeflow", "PET_NNODES", "RANK", "WORLD_SIZE"},
    {"Kubeflow", nullptr, "PET_NODE_RANK", "PET_NNODES"},
    {"Ray", "RAY_JOB_ID", "RANK", "WORLD_SIZE"},
    {"a launcher other than MPI's (as Kubeflow or DeepSpeed)", nullptr, "RANK", "WORLD_SIZE"},
    {"Horovod", nullptr, "HOROVOD_RANK", "HOROVOD_SIZE"},
    {"SkyPilot", nullptr, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"},
    {"dstack", nullptr, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM"},
    {"Flux", nullptr, "FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
    {"Slurm", nullptr, "SLURM_PROCID", nullptr},
    {"PALS", nullptr, "PALS_RANKID", "PALS_LOCAL_SIZE"},
    {"PALS", nullptr, "PALS_RANKID", nullptr},
    {"PMIx", nullptr, "PMIX_RANK", nullptr},
};

/// Returns the entry of host `host_index` in Slurm's tasks per node, where "4(x2),3" is 4, 4, 3.
std::optional<int> slurm_tasks_of(const char* list, int host_index) {
  const char* end = list + std::strlen(list);
  for (const char* at = list; at < end;) {
    int tasks = 0;
    int times = 1;
    auto [rest, code] = std::from_chars(at, end, tasks);
    if (code != std::errc()) return std::nullopt;
    if (end - rest > 2 && std::strncmp(rest, "(x", 2) == 0) {
      const auto [after, bad] = std::from_chars(rest + 2, end, times);
      if (bad != std::errc() || after == end || *after != ')') return std::nullopt;
      rest = after + 1;
    }
    if (host_index < times) return tasks;
    host_index -= times;
    if (rest < end && *rest != ',') return std::nullopt;
    at = rest + 1;
  }
  return std::nullopt;
}

std::optional<int> read_local_size(const EnvironmentReader& read, const Names& names) {
  if (names.source != kSlurm.source) return read_number(read, names.local_size);
  const char* list = read(names.local_size);
  const auto host_index = read_number(read, "SLURM_NODEID");
  return list == nullptr ? std::nullopt : slurm_tasks_of(list, host_index.value_or(0));
}

void require_below(int number, int limit, const char* name, const char* limit_name) {
  TOK_REQUIRE(number < limit, "environment: {} is {} where {} is {}", name, number, limit_name,
              limit);
}

LaunchEnvironment read_as(const EnvironmentReader& read, const Names& names) {
  const auto rank = read_number(read, names.rank);
  TOK_REQUIRE(rank.has_value(), "environment: {} is set and {} is not", names.world_size,
              names.rank);
  LaunchEnvironment out{
      .rank = *rank, .world_size = *read_number(read, names.world_size), .source = names.source};
  require_below(out.rank, out.world_size, names.rank, names.world_size);
  out.local_rank = read_number(read, names.local_rank).value_or(0);
  out.local_size = read_local_size(read, names).value_or(out.local_rank + 1);
  require_below(out.local_rank, out.local_size, names.local_rank, names.local_size);
  return out;
}

// Returns the number if the variable holds one: those of other programs may hold anything.
int number_or_zero(const EnvironmentReader& read, const char* name) {
  const char* text = read(name);
  return text == nullptr ? 0 : std::atoi(text);
}

bool has_started_several(const EnvironmentReader& read, const Unconnected& launcher) {
  if (launcher.mark != nullptr && read(launcher.mark) == nullptr) return false;
  if (launcher.world_size == nullptr) return number_or_zero(read, launcher.rank) > 0;
  return read(launcher.rank) != nullptr && number_or_zero(read, launcher.world_size) > 1;
}

std::string why_unconnected(const EnvironmentReader& read) {
  const auto* const found = std::ranges::find_if(
      kUnconnected, [&](const Unconnected& u) { return has_started_several(read, u); });
  if (found == std::end(kUnconnected)) return "";
  const char* const told = found->world_size == nullptr ? found->rank : found->world_size;
  const std::string processes = found->world_size == nullptr
                                    ? fmt::format("process {} of several", read(told))
                                    : fmt::format("{} processes", number_or_zero(read, told));
  return fmt::format(
      "{} started {} that MPI cannot connect; start them by one `tokamak launch`, mpirun or srun, "
      "or unset {} for a run of one rank",
      found->source, processes, told);
}

}  // namespace

LaunchEnvironment read_launch_environment(const EnvironmentReader& read) {
  LaunchEnvironment out{.source = "none"};
  for (const Names& names : {kOpenMpi, kSlurm, kPmi, kMvapich, kJsrun}) {
    if (!read_number(read, names.world_size)) continue;
    out = read_as(read, names);
    break;
  }
  if (out.source == "none") out.why_unconnected = why_unconnected(read);
  out.host = host_name();
  return out;
}

LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* name) { return std::getenv(name); });
}

std::string to_string(const LaunchEnvironment& e) {
  return fmt::format("rank {} of {}, local rank {} of {} on {} ({})", e.rank, e.world_size,
                     e.local_rank, e.local_size, e.host, e.source);
}

}  // namespace tokamak

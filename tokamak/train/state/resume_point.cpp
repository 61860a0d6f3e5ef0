#include "tokamak/train/state/resume_point.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/core/json.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

using Load = std::function<void(const std::filesystem::path&)>;

struct Found {
  std::filesystem::path path;
  std::string problem;
  CheckpointKind kind = CheckpointKind::kUnusable;
  int64_t step = 0;
};

// Returns what rank 0 finds, newest first.
std::vector<Found> list_together(World& world, const std::filesystem::path& folder) {
  const std::string text = on_rank_zero(world, [&] {
    Json list = Json::array();
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      list.push_back(
          {entry.path.string(), entry.problem, static_cast<int>(entry.kind), entry.step});
    }
    return list.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  std::vector<Found> all;
  for (const Json& entry : parse_json(text, "checkpoints")) {
    all.push_back({.path = entry[0].get<std::string>(),
                   .problem = entry[1].get<std::string>(),
                   .kind = static_cast<CheckpointKind>(entry[2].get<int>()),
                   .step = entry[3].get<int64_t>()});
  }
  std::ranges::reverse(all);
  return all;
}

// Returns "" if no rank finds the checkpoint damaged, else what the first one says of it.
std::string damage_of(World& world, const std::filesystem::path& path, const Load& load) {
  const auto texts = all_together_for_long(world, [&]() -> std::string {
    try {
      load(path);
      return "";
    } catch (const Damaged& error) {
      return error.what();
    }
  });
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

ResumePoint find_resume_point(World& world, const std::filesystem::path& folder, const Load& load,
                              const std::function<void(const std::string&)>& skip) {
  ResumePoint point;
  for (const Found& found : list_together(world, folder)) {
    if (point.newest_of_any_kind.empty()) point.newest_of_any_kind = found.path;
    std::string problem = found.problem;
    if (problem.empty() && found.kind != CheckpointKind::kResumable) continue;
    if (problem.empty()) problem = damage_of(world, found.path, load);
    if (problem.empty()) {
      point.path = found.path;
      return point;
    }
    skip(problem);
    if (point.problem.empty()) point.problem = problem;
  }
  return point;
}

FinishedRun find_finished_run(World& world, const std::filesystem::path& folder, int64_t steps,
                              int num_threads) {
  const auto hash_share = [&](const std::filesystem::path& path) {
    CheckpointReader(path).verify(world.rank(), world.size(), num_threads);
  };
  FinishedRun run;
  for (const Found& found : list_together(world, folder)) {
    if (found.step < steps || found.step == 0) break;
    std::string problem = found.problem;
    // An exported folder has no hashes; its headers and sizes were right.
    if (problem.empty() && found.kind != CheckpointKind::kHuggingFace)
      problem = damage_of(world, found.path, hash_share);
    if (problem.empty()) {
      run.step = found.step;
      return run;
    }
    run.damaged.push_back(problem);
  }
  return run;
}

}  // namespace tokamak

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

// Returns what rank 0 finds, newest first: [path, problem or "", resumable].
Json listed(World& world, const std::filesystem::path& folder) {
  const std::string text = on_rank_zero(world, [&] {
    Json list = Json::array();
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      list.push_back(
          {entry.path.string(), entry.problem, entry.kind == CheckpointKind::kResumable});
    }
    return list.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  Json list = parse_json(text, "checkpoints");
  std::reverse(list.begin(), list.end());
  return list;
}

// Returns "" if every byte of the checkpoint is right, else the first fault that a rank found.
std::string damage_of(World& world, const std::filesystem::path& path) {
  std::string mine;
  try {
    CheckpointReader(path).verify(world.rank(), world.size());
  } catch (const std::runtime_error& error) {
    mine = error.what();
  }
  for (const std::string& fault : world.all_gather_text(mine)) {
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

ResumePoint find_resume_point(World& world, const std::filesystem::path& folder) {
  ResumePoint point;
  for (const Json& entry : listed(world, folder)) {
    const std::filesystem::path path = entry[0].get<std::string>();
    if (point.newest_of_any_kind.empty()) point.newest_of_any_kind = path;
    std::string problem = entry[1].get<std::string>();
    const bool is_resumable = entry[2].get<bool>();
    if (problem.empty() && !is_resumable) continue;
    if (problem.empty()) problem = damage_of(world, path);
    if (problem.empty()) {
      point.path = path;
      return point;
    }
    point.skipped.push_back(problem);
  }
  return point;
}

int64_t last_saved_step(World& world, const std::filesystem::path& folder) {
  return std::stoll(on_rank_zero(world, [&] {
    int64_t step = 0;
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      if (entry.kind != CheckpointKind::kUnusable) step = entry.step;
    }
    return fmt::format("{}", step);
  }));
}

}  // namespace tokamak

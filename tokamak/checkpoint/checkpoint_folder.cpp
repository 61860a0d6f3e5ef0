#include "tokamak/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <string_view>

#include <fmt/ranges.h>

#include "tokamak/checkpoint/atomic_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/formats/foreign.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/value.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

std::optional<int64_t> step_of(const fs::path& path) {
  constexpr std::string_view kPrefix = "step-";
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return step && *step >= 0 ? step : std::nullopt;
}

bool is_hugging_face(const fs::path& folder) {
  return path_exists(folder / "model.safetensors") ||
         path_exists(folder / "model.safetensors.index.json");
}

CheckpointEntry judge(const fs::path& path, int64_t step) {
  CheckpointEntry entry{.step = step, .path = path, .problem = "", .lineage = ""};
  try {
    refuse_foreign_checkpoint(path);
    if (!path_exists(path / kManifestFile) && is_hugging_face(path)) {
      const HfWeights weights(path);
      entry.kind = CheckpointKind::kHuggingFace;
      if (path_exists(path / kLineageFile)) entry.lineage = read_file(path / kLineageFile);
      return entry;
    }
    const CheckpointReader reader(path);
    TOK_REQUIRE(reader.manifest().info.step == step, "{}: the manifest is that of step {}",
                path.string(), reader.manifest().info.step);
    entry.lineage = lineage_of(reader.manifest().info);
    entry.kind =
        reader.manifest().info.resumable ? CheckpointKind::kResumable : CheckpointKind::kModelOnly;
  } catch (const Error& error) {
    entry.problem = error.what();
  }
  return entry;
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> entries;
  if (!is_folder(folder)) return entries;
  for (const fs::path& path : list_folder(folder)) {
    const auto step = step_of(path);
    if (step && is_folder(path)) entries.push_back(judge(path, *step));
  }
  std::ranges::stable_sort(entries, [](const auto& a, const auto& b) { return a.step < b.step; });
  return entries;
}

std::string lineage_of(const CheckpointInfo& info) {
  const auto found = info.sections.find(kLineageSection);
  return found == info.sections.end() ? "" : found->second;
}

fs::path next_aside(const fs::path& folder) {
  int64_t number = 1;
  while (path_exists(folder / fmt::format("aside-{}", number))) ++number;
  return folder / fmt::format("aside-{}", number);
}

std::string set_aside(const fs::path& folder, int64_t first, const fs::path& kept,
                      const fs::path& aside) {
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    if (entry.step < first || entry.path == kept) continue;
    make_folders(aside);
    names.push_back(entry.path.filename().string());
    rename_durably(entry.path, aside / names.back());
    sync_folder(folder);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<fs::path> purge(const fs::path& folder, int keep_latest_k, int64_t just_written) {
  std::vector<fs::path> removed;
  if (keep_latest_k <= 0) return removed;
  auto entries = list_checkpoints(folder);
  std::erase_if(entries, [](const auto& entry) { return entry.kind == CheckpointKind::kUnusable; });
  const int64_t excess = std::ssize(entries) - keep_latest_k;
  for (int64_t i = 0; i < excess; ++i) {
    const CheckpointEntry& entry = entries[i];
    if (entry.step == just_written) continue;
    fs::path aside = entry.path;
    aside += ".tmp-purged";
    remove_by_files(aside);
    rename_durably(entry.path, aside);
    remove_by_files(aside);
    removed.push_back(entry.path);
  }
  return removed;
}

}  // namespace tokamak

#include "tokamak/run/input_paths.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "tokamak/config/key_table.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPathOfC4Test = "tests/assets/c4_test";
constexpr const char* kAddressOfC4 = "hf:allenai/c4#en";  // as in torchtitan

// Returns the nearest folder above `file` that has `path`, or "".
fs::path folder_with(const fs::path& path, const fs::path& file) {
  const fs::path start = fs::absolute(file).lexically_normal().parent_path();
  for (fs::path folder = start;; folder = folder.parent_path()) {
    if (path_exists(folder / path)) return folder;
    if (folder == folder.parent_path()) return {};
  }
}

// Shells leave a `~` behind `=` alone, and nobody means a folder of that name.
void expand_home(std::string& path) {
  const std::string home = environment_variable("HOME");
  if (home.empty()) return;
  if (path == "~" || path.starts_with("~/")) path.replace(0, 1, home);
}

// Each path of a mix "0.7 A 0.3 B" is expanded.
void expand_home_in_mix(std::string& paths) {
  const std::string home = environment_variable("HOME");
  if (home.empty()) return;
  expand_home(paths);
  const std::string expanded = fmt::format(" {}/", home);
  for (size_t at = paths.find(" ~/"); at != std::string::npos;
       at = paths.find(" ~/", at + expanded.size()))
    paths.replace(at, 3, expanded);
}

void expand_homes(Config& c) {
  for (const Key& key : all_keys()) {
    if (!key.allowed.starts_with("path")) continue;
    const FieldRef field = key.field(c);
    if (auto* const path = std::get_if<std::string*>(&field)) expand_home_in_mix(**path);
    auto* const optional = std::get_if<std::optional<std::string>*>(&field);
    if (optional != nullptr && **optional) expand_home_in_mix(***optional);
  }
}

class Finder {
 public:
  explicit Finder(const std::optional<std::string>& file) : file_(file) {}

  void find(const char* key, std::string& path) {
    if (!file_ || path.empty() || fs::path(path).is_absolute() || path_exists(path)) return;
    const fs::path folder = folder_with(path, *file_);
    if (folder.empty()) return;
    std::string found = (folder / path).lexically_normal().string();
    notes_.push_back(fmt::format("{} = {}: taken from {}", key, path, found));
    path = std::move(found);
  }

  void find(const char* key, std::optional<std::string>& path) {
    if (path) find(key, *path);
  }

  void find_data(const char* key, const std::string& dataset, std::optional<std::string>& path) {
    if (dataset == "c4_test" && !path) path = kPathOfC4Test;
    if ((dataset == "c4" || dataset == "c4_validation") && !path) path = kAddressOfC4;
    find(key, path);
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  const std::optional<std::string>& file_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> find_inputs(Config& c) {
  expand_homes(c);
  Finder finder(c.job.config_file);
  finder.find("model.hf_assets_path", c.model.hf_assets_path);
  finder.find("model.tokenizer_path", c.model.tokenizer_path);
  finder.find_data("training.dataset_path", c.training.dataset, c.training.dataset_path);
  if (c.validation.enable)
    finder.find_data("validation.dataset_path", c.validation.dataset, c.validation.dataset_path);
  finder.find("checkpoint.initial_load_path", c.checkpoint.initial_load_path);
  finder.find("parallelism.pipeline_parallel_schedule_csv",
              c.parallelism.pipeline_parallel_schedule_csv);
  return finder.take_notes();
}

}  // namespace tokamak

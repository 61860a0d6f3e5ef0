#include "tokamak/checkpoint/formats/hf_weights.h"

#include <algorithm>
#include <set>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

std::vector<fs::path> files_like(const fs::path& folder, std::string_view prefix,
                                 std::string_view suffix = ".safetensors") {
  std::vector<fs::path> found;
  for (const fs::path& path : list_folder(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) found.push_back(path);
  }
  return found;
}

// Says which weights a folder has instead of those that are read.
std::string other_weights(const fs::path& folder) {
  const auto pickles = files_like(folder, "pytorch_model", ".bin");
  if (!pickles.empty())
    return fmt::format(", got {}: load and save it with transformers, which writes safetensors",
                       pickles[0].filename().string());
  if (path_exists(folder / "adapter_model.safetensors"))
    return ", got adapter_model.safetensors, which holds changes to another model: merge them into "
           "it (merge_and_unload() in Python with peft) and save the model";
  const auto others = files_like(folder, "");
  if (others.empty()) return "";
  const std::string name = others[0].filename().string();
  return name.starts_with("model-")
             ? fmt::format(", got {}, but not the index of its shards", name)
             : fmt::format(", got {}: name the file itself if it holds the whole model", name);
}

std::vector<std::vector<TensorSource>> split(std::span<const TensorSource> tensors,
                                             int64_t max_file_bytes) {
  std::vector<std::vector<TensorSource>> files(1);
  int64_t held = 0;
  for (const TensorSource& tensor : tensors) {
    const int64_t bytes = tensor.type().bytes();
    if (!files.back().empty() && held + bytes > max_file_bytes) {
      files.emplace_back();
      held = 0;
    }
    files.back().push_back(tensor);
    held += bytes;
  }
  return files;
}

void remove_other(const fs::path& folder, const std::set<std::string>& written) {
  auto stale = files_like(folder, "model-");
  stale.push_back(folder / kSingle);
  stale.push_back(folder / kIndex);
  for (const fs::path& path : stale) {
    std::error_code ignored;
    if (!written.contains(path.filename().string())) fs::remove(path, ignored);
  }
}

}  // namespace

std::map<std::string, std::string> parse_weight_index(std::string_view text,
                                                      std::string_view what) {
  const Json json = parse_json(text, what);
  TOK_REQUIRE(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
              "{}: wanted an object \"weight_map\"", what);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    TOK_REQUIRE(
        file.is_string() && is_plain_file_name(file.get_ref<const std::string&>()),
        "{}: tensor {}: wanted the name of a file in the same folder, got {}", what, shown(tensor),
        file.is_string() ? shown(file.get_ref<const std::string&>()) : printable(file.dump()));
    files.emplace(tensor, file.get<std::string>());
  }
  TOK_REQUIRE(!files.empty(), "{}: \"weight_map\" is empty", what);
  return files;
}

HfWeights::HfWeights(const fs::path& path) : path_(path) {
  TOK_REQUIRE(path_exists(path), "there is no file or folder {}", path.string());
  if (!is_folder(path)) {
    files_.emplace_back(path);
  } else if (path_exists(path / kSingle)) {
    files_.emplace_back(path / kSingle);
  } else if (path_exists(path / kIndex)) {
    open_index(path / kIndex);
  } else {
    for (const fs::path& file : files_like(path, "consolidated")) files_.emplace_back(file);
    TOK_REQUIRE(!files_.empty(), "{}: wanted {}, {} or consolidated.safetensors in this folder{}",
                path.string(), kSingle, kIndex, other_weights(path));
  }
  for (const SafetensorsFile& file : files_) {
    for (const TensorView& view : file.tensors()) {
      const bool is_new = index_.emplace(view.name, &view).second;
      TOK_REQUIRE(is_new, "{}: tensor {} is in several files; merge the shards of a model first",
                  file.path().string(), shown(view.name));
    }
  }
}

void HfWeights::open_index(const fs::path& index) {
  const auto listed = parse_weight_index(read_file(index, kSmallFileBytes), index.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  for (const std::string& name : names) {
    TOK_REQUIRE(path_exists(path_ / name), "{}: shard {} is absent", index.string(), shown(name));
    files_.emplace_back(path_ / name);
  }
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& file : files_) by_name[file.path().filename().string()] = &file;
  for (const auto& [tensor, name] : listed) {
    TOK_REQUIRE(by_name.at(name)->find(tensor) != nullptr, "{}: tensor {} is not in its shard {}",
                index.string(), shown(tensor), shown(name));
  }
}

std::vector<TensorSource> HfWeights::sources() const {
  std::vector<TensorSource> all;
  for (const SafetensorsFile& file : files_) {
    for (const TensorView& view : file.tensors()) all.push_back(source_of(view));
  }
  return all;
}

const TensorView* HfWeights::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : it->second;
}

void save_hf_weights(const fs::path& folder, std::span<const TensorSource> tensors,
                     const SaveOptions& options) {
  make_folders(folder);
  const auto files = split(tensors, options.max_file_bytes);
  std::set<std::string> written;
  Json weight_map = Json::object();
  int64_t total_bytes = 0;
  int64_t total_elements = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? std::string(kSingle)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    write_safetensors(folder / name, files[i], options.metadata);
    written.insert(name);
    for (const TensorSource& tensor : files[i]) {
      const bool is_new = weight_map.emplace(tensor.name, name).second;
      TOK_REQUIRE(is_new, "tensor {} is given twice", shown(tensor.name));
      total_bytes += tensor.type().bytes();
      total_elements += tensor.type().numel();
    }
  }
  if (files.size() > 1) {
    const Json index = {
        {"metadata", {{"total_parameters", total_elements}, {"total_size", total_bytes}}},
        {"weight_map", weight_map}};
    write_file_atomic(folder / kIndex, index.dump(2) + "\n");
    written.insert(std::string(kIndex));
  }
  remove_other(folder, written);
}

}  // namespace tokamak

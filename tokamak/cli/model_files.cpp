#include "tokamak/cli/model_files.h"

#include <algorithm>
#include <utility>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/formats/foreign.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/shakespeare.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/train/state/hf_model.h"
#include "tokamak/train/state/model_check.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

bool holds_weights(const fs::path& folder) {
  return path_exists(folder / "model.safetensors") ||
         path_exists(folder / "model.safetensors.index.json") ||
         path_exists(folder / "consolidated.safetensors");
}

// Returns the newest complete checkpoint if `path` is a folder of checkpoints or the folder of a
// run, else `path`.
fs::path newest_checkpoint(const fs::path& path) {
  auto found = list_checkpoints(path);
  // It may be a job.dump_folder, and that may be the folder of a model.
  if (found.empty() && is_folder(path) && !holds_weights(path)) {
    for (const fs::path& folder : list_folder(path)) {
      for (CheckpointEntry& entry : list_checkpoints(folder)) found.push_back(std::move(entry));
    }
  }
  if (found.empty()) return path;
  const std::string problem = found.back().problem;
  std::erase_if(found, [](const auto& entry) { return entry.kind == CheckpointKind::kUnusable; });
  TOK_REQUIRE(!found.empty(), "{}: none of its checkpoints is complete: {}", path.string(),
              problem);
  return std::ranges::max_element(found,
                                  [](const auto& a, const auto& b) { return a.step < b.step; })
      ->path;
}

}  // namespace

ModelSpec spec_of_word(const std::string& word) {
  const auto colon = word.find(':');
  TOK_REQUIRE(colon != std::string::npos, "--model \"{}\": wanted NAME:FLAVOR, as llama3:8B", word);
  return flavor_spec(word.substr(0, colon), word.substr(colon + 1));
}

ModelFiles open_model(const std::filesystem::path& given, const std::string& flavor) {
  TOK_REQUIRE(path_exists(given), "no model at {}: no such file or folder", given.string());
  const fs::path path = newest_checkpoint(given);
  ModelFiles m{.folder = is_folder(path) ? path : path.parent_path()};
  if (!flavor.empty()) {
    TOK_REQUIRE(!path_exists(m.folder / "config.json"),
                "--model {}: {} says which model this is: leave --model out", flavor,
                (m.folder / "config.json").string());
    m.config = spec_of_word(flavor);
  } else {
    for (fs::path at = m.folder; !path_exists(m.folder / "config.json"); at = at.parent_path()) {
      if (path_exists(at / "config.json")) m.folder = at;
      if (at == at.parent_path() || at.empty()) break;
    }
    if (!path_exists(m.folder / "config.json")) refuse_foreign_checkpoint(path);
    TOK_REQUIRE(path_exists(m.folder / "config.json"),
                "{}: there is no config.json; name the model with --model NAME:FLAVOR",
                path.string());
    const std::string file = (m.folder / "config.json").string();
    m.config = parse_hf_config(read_file(file, kSmallFileBytes), file);
  }
  const auto found = open_weights(m.config, path);
  m.parameters = parameters_of_model(m.config, found, path.string());
  if (path != given) m.notes.push_back(fmt::format("reading {}", path.string()));
  for (const std::string& note : {left_out_of(found, path.string()), m.config.unused_members})
    if (!note.empty()) m.notes.push_back(note);
  return m;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path,
                                          const std::filesystem::path& model_folder) {
  if (path == "bytes") return byte_tokenizer();
  if (path == "shakespeare") return shakespeare_tokenizer();
  if (!path.empty()) return load_tokenizer(path);
  TOK_REQUIRE(has_tokenizer(model_folder),
              "{}: there is no tokenizer; name one with --tokenizer FOLDER (or bytes, shakespeare)",
              model_folder.string());
  return load_tokenizer(model_folder);
}

}  // namespace tokamak::cli

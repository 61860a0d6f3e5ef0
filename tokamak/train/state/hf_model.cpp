#include "tokamak/train/state/hf_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "tokamak/checkpoint/atomic_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/checkpoint/formats/weights.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/train/state/saved_keys.h"

namespace tokamak {
namespace {

// A file may have this many bytes; the largest in use have 35 MB.
constexpr int64_t kTokenizerBytes = int64_t{128} << 20;
constexpr std::array kTokenizerFiles{"tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "tokenizer.model",
                                     "vocab.json",
                                     "merges.txt",
                                     "tekken.json",
                                     "added_tokens.json",
                                     "chat_template.jinja"};

bool is_exported(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" ||
         name.ends_with(".safetensors") || name == "model.safetensors.index.json" ||
         std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

constexpr std::array<std::string_view, 3> kParts{"q_proj", "k_proj", "v_proj"};

std::string replaced(const std::string& text, std::string_view what, std::string_view by) {
  const auto at = text.find(what);
  return text.substr(0, at) + std::string(by) + text.substr(at + what.size());
}

// Returns whether Hugging Face stores the tensor as [in, out].
bool is_transposed(const WeightLayout& layout, const TensorSource& tensor) {
  return tensor.dims.size() == 2 &&
         std::ranges::any_of(layout.transposed,
                             [&](std::string_view tail) { return tensor.name.ends_with(tail); });
}

bool is_of(const TensorSource& tensor, std::string_view module) {
  return !module.empty() && tensor.name.find(fmt::format(".{}.", module)) != std::string::npos;
}

// Stacks tensors along their outermost dim.
TensorSource joined_rows(std::vector<TensorSource> parts, std::string name) {
  TensorSource whole{.name = std::move(name), .dtype = parts[0].dtype, .dims = parts[0].dims};
  for (size_t i = 1; i < parts.size(); ++i) whole.dims[0] += parts[i].dims[0];
  const int64_t size = size_of(whole.dtype);
  whole.read = [parts = std::move(parts), size](int64_t first, std::span<std::byte> out) {
    for (const TensorSource& part : parts) {
      const int64_t numel = part.type().numel();
      if (first < numel && !out.empty()) {
        const int64_t count = std::min(numel - first, static_cast<int64_t>(out.size()) / size);
        const auto bytes = static_cast<size_t>(count * size);
        part.read(first, out.first(bytes));
        out = out.subspan(bytes);
        first += count;
      }
      first -= numel;
    }
  };
  return whole;
}

// Ties the lifetime of what the sources read from to the sources.
template <class Owner>
std::vector<TensorSource> keep_open(std::shared_ptr<Owner> owner,
                                    std::vector<TensorSource> sources) {
  for (TensorSource& s : sources) {
    s.read = [owner, read = std::move(s.read)](int64_t first, std::span<std::byte> out) {
      read(first, out);
    };
  }
  return sources;
}

// A Tokamak checkpoint has our own names and layouts. It also holds optimizer moments, which are
// not weights.
std::vector<TensorSource> open_checkpoint(const std::filesystem::path& path) {
  const auto reader = std::make_shared<CheckpointReader>(path);
  reader->check_headers();
  std::vector<TensorSource> sources;
  for (const auto& [name, type] : reader->manifest().tensors) {
    if (is_of_model(name)) sources.push_back(reader->source(name));
  }
  return keep_open(reader, std::move(sources));
}

}  // namespace

std::vector<TensorSource> parameters_from_hf(const ModelSpec& config,
                                             std::span<const TensorSource> tensors) {
  const WeightLayout& layout = weight_layout(config);
  const int64_t q = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  std::vector<TensorSource> ours;
  for (const TensorSource& tensor : tensors) {
    const TensorSource t = is_transposed(layout, tensor) ? transposed(tensor) : tensor;
    if (!is_of(t, layout.joined)) {
      ours.push_back(t);
      continue;
    }
    TOK_REQUIRE(!t.dims.empty() && t.dims[0] == q + 2 * kv, "{}: wanted {} outputs, got {}", t.name,
                q + 2 * kv, to_string(t.dims));
    int64_t first = 0;
    for (const std::string_view part : kParts) {
      const int64_t rows = part == kParts[0] ? q : kv;
      ours.push_back(renamed(rows_of(t, first, rows), replaced(t.name, layout.joined, part)));
      first += rows;
    }
  }
  return ours;
}

std::vector<TensorSource> parameters_to_hf(const ModelSpec& config,
                                           std::span<const TensorSource> parameters) {
  const WeightLayout& layout = weight_layout(config);
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& p : parameters) by_name[p.name] = &p;
  std::vector<TensorSource> out;
  for (const TensorSource& p : parameters) {
    TensorSource t = p;
    if (!layout.joined.empty()) {
      if (is_of(p, kParts[1]) || is_of(p, kParts[2])) continue;
      if (is_of(p, kParts[0])) {
        std::vector<TensorSource> parts;
        parts.reserve(kParts.size());
        for (const std::string_view part : kParts)
          parts.push_back(*by_name.at(replaced(p.name, kParts[0], part)));
        t = joined_rows(std::move(parts), replaced(p.name, kParts[0], layout.joined));
      }
    }
    out.push_back(is_transposed(layout, t) ? transposed(t) : t);
  }
  return out;
}

std::vector<TensorSource> open_weights(const ModelSpec& config, const std::filesystem::path& path) {
  TOK_REQUIRE(path_exists(path), "no weights at {}: no such file or folder", path.string());
  if (path_exists(path / kManifestFile)) return open_checkpoint(path);
  const auto weights = std::make_shared<Weights>(path);
  const HeadCounts heads{.num_heads = config.num_heads, .num_kv_heads = config.num_kv_heads};
  return parameters_from_hf(config, keep_open(weights, weights->sources(heads)));
}

std::string other_members(const ModelSpec& model, const std::filesystem::path& weights) {
  // Training writes it beside its checkpoints.
  const bool is_in = is_folder(weights) && !path_exists(weights / kManifestFile);
  const std::filesystem::path file = (is_in ? weights : weights.parent_path()) / "config.json";
  if (!path_exists(file)) return "";
  const ModelSpec theirs = parse_hf_config(read_file(file, kSmallFileBytes), file.string());
  const std::string changed =
      changed_keys(to_json(hf_members(theirs)), hf_members(model), file.string());
  return changed.empty() ? ""
                         : fmt::format("{} describes another model: {}", file.string(), changed);
}

AssetFiles tokenizer_files_in(const std::filesystem::path& folder) {
  AssetFiles files;
  for (const char* name : kTokenizerFiles) {
    if (path_exists(folder / name) && !is_folder(folder / name))
      files[name] = read_file(folder / name, kTokenizerBytes);
  }
  return files;
}

AssetFiles generation_config_in(const std::filesystem::path& folder) {
  constexpr const char* kName = "generation_config.json";
  AssetFiles files;
  if (path_exists(folder / kName)) files[kName] = read_file(folder / kName, kSmallFileBytes);
  return files;
}

std::filesystem::path replaceable_folder(const std::filesystem::path& folder,
                                         const std::string& also) {
  std::error_code code;
  std::filesystem::path path = std::filesystem::weakly_canonical(folder, code);
  if (code) path = folder;
  if (!path.has_filename()) path = path.parent_path();
  if (!path_exists(path)) return path;
  TOK_REQUIRE(is_folder(path), "{}: wanted a folder to write, found a file", folder.string());
  TOK_REQUIRE(path != std::filesystem::current_path(code),
              "{}: the working folder cannot be replaced: name another one", folder.string());
  for (const std::filesystem::path& entry : list_folder(path)) {
    const std::string name = entry.filename().string();
    const bool ours = is_folder(entry) ? name == also : is_exported(name);
    TOK_REQUIRE(ours, "{}: it would be replaced, but it holds {}: name a new folder",
                folder.string(), name);
  }
  return path;
}

void export_hf_folder(const std::filesystem::path& folder, const ModelSpec& config,
                      std::span<const TensorSource> parameters, DType dtype, const SpecialIds& ids,
                      const AssetFiles& assets) {
  AtomicFolder aside(folder, "");
  try {
    aside.make();
    std::vector<TensorSource> tensors;
    for (const TensorSource& t : parameters_to_hf(config, parameters))
      tensors.push_back(cast(t, dtype));
    save_hf_weights(aside.path(), tensors);
    write_file_atomic(aside.path() / "config.json", to_hf_config(config, dtype, ids));
    write_file_atomic(aside.path() / "generation_config.json",
                      to_hf_generation_config(config, ids));
    for (const auto& [name, text] : assets) write_file_atomic(aside.path() / name, text);
    aside.commit();
  } catch (...) {
    aside.discard();
    throw;
  }
}

}  // namespace tokamak

#include "tokamak/checkpoint/checkpoint_writer.h"

#include <fmt/ranges.h>

#include "tokamak/checkpoint/chunk_hash.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

std::string shard_name(int rank) {
  return fmt::format("shard-{:05}.safetensors", rank);
}

// Returns "w" for a whole tensor, "w[0,4:8,8]" for a box, "w[0,4:8,8]{16:24}" for a range of it.
std::string entry_name(const std::string& name, const Slice& slice, const Dims& dims) {
  std::string text = name;
  if (slice.box != whole_box(dims)) {
    text += fmt::format("[{}:{}]", fmt::join(slice.box.begin, ","), fmt::join(slice.box.end, ","));
  }
  if (slice != slice_of(slice.box)) text += fmt::format("{{{}:{}}}", slice.begin, slice.end);
  return text;
}

fs::path swept(const fs::path& folder, const CheckpointWriterOptions& options) {
  if (options.rank == 0) sweep_stale_folders(folder, options.token);
  return folder;
}

}  // namespace

std::string step_folder_name(int64_t step) {
  return fmt::format("step-{}", step);
}

CheckpointWriter::CheckpointWriter(const fs::path& folder, int64_t step,
                                   const CheckpointWriterOptions& options)
    : folder_(swept(folder, options) / step_folder_name(step), options.token),
      step_(step),
      options_(options) {
  TOK_CHECK(options.rank == 0 || !options.token.empty(), "ranks must agree on a token");
}

CheckpointWriter::~CheckpointWriter() {
  if (options_.rank == 0 && !committed_) folder_.discard();
}

void CheckpointWriter::add(TensorSource tensor) {
  const std::string name = tensor.name;
  const TensorType type = tensor.type();
  add(name, type, whole_slice(type.dims), std::move(tensor));
}

void CheckpointWriter::add(const std::string& name, const TensorType& global, const Slice& slice,
                           TensorSource elements) {
  const std::string problem = slice_problem(slice, global.dims);
  TOK_CHECK(problem.empty(), "piece of {}: {}", name, problem);
  TOK_CHECK(elements.dtype == global.dtype && elements.type().numel() == slice.numel(),
            "piece of {}: got {}, wanted {} elements of {}", name, to_string(elements.type()),
            slice.numel(), name_of(global.dtype));
  elements.name = entry_name(name, slice, global.dims);
  elements.dims = slice == slice_of(slice.box) ? extents(slice.box) : Dims{slice.numel()};
  entries_.push_back(std::move(elements));
  parts_.push_back({.global = global, .piece = {.tensor = name, .slice = slice, .offset = 0}});
}

ShardSummary CheckpointWriter::finish_shard() {
  TOK_CHECK(!finished_);
  finished_ = true;
  if (entries_.empty()) return {};
  const SafetensorsLayout layout = lay_out_safetensors(entries_, {{"format", "tokamak"}});
  ShardSummary summary{.file = shard_name(options_.rank),
                       .file_bytes = layout.file_bytes,
                       .chunk_bytes = options_.chunk_bytes,
                       .hashes = {},
                       .tensors = {},
                       .pieces = {}};
  FileWriter file(folder_.path() / summary.file);
  file.reserve(layout.file_bytes);
  ChunkHasher hasher(options_.chunk_bytes);
  stream_safetensors(layout, entries_, [&](std::span<const std::byte> bytes) {
    hasher.update(bytes);
    file.write(bytes);
  });
  file.sync_and_close();
  summary.hashes = hasher.finish();
  for (size_t i = 0; i < parts_.size(); ++i) {
    summary.tensors.emplace(parts_[i].piece.tensor, parts_[i].global);
    summary.pieces.push_back(parts_[i].piece);
    summary.pieces.back().offset = layout.offsets[i];
  }
  return summary;
}

fs::path CheckpointWriter::commit(std::span<const ShardSummary> shards,
                                  const CheckpointInfo& info) {
  TOK_CHECK(options_.rank == 0 && finished_ && !committed_ && info.step == step_);
  std::vector<ShardSummary> written(shards.begin(), shards.end());
  std::erase_if(written, [](const ShardSummary& shard) { return shard.file.empty(); });
  const Manifest manifest = make_manifest(info, std::move(written));
  FileWriter file(folder_.path() / kManifestFile);
  file.write(to_text(manifest));
  file.sync_and_close();
  folder_.commit();
  committed_ = true;
  return folder_.target();
}

}  // namespace tokamak

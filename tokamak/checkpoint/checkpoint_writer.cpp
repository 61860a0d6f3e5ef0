#include "tokamak/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/in_parallel.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

std::string shard_name(int rank) {
  return fmt::format("shard-{:05}.safetensors", rank);
}

// Calls work(first byte, bytes, a buffer of the thread's own) for each block. Ends early if a call
// throws, and throws the same.
void for_each_block(int64_t file_bytes, int64_t block_bytes, int num_threads,
                    const std::function<void(int64_t, int64_t, std::byte*)>& work) {
  const int64_t num_blocks = (file_bytes + block_bytes - 1) / block_bytes;
  const auto num = static_cast<size_t>(std::clamp<int64_t>(num_blocks, 1, num_threads));
  std::atomic<int64_t> next{0};
  in_parallel(num, static_cast<int>(num), [&](size_t) {
    const BlockMemory buffer(std::min(file_bytes, block_bytes));
    for (int64_t block = next++; block < num_blocks; block = next++) {
      try {
        const int64_t first = block * block_bytes;
        work(first, std::min(block_bytes, file_bytes - first), buffer.data());
      } catch (...) {
        next = num_blocks;
        throw;
      }
    }
  });
}

}  // namespace

std::string step_folder_name(int64_t step) {
  return fmt::format("step-{}", step);
}

CheckpointWriter::CheckpointWriter(const fs::path& folder, int64_t step,
                                   const CheckpointWriterOptions& options)
    : folder_(folder / step_folder_name(step), options.token), step_(step), options_(options) {
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

// A block is whole chunks, so that the thread that writes it hashes them, and some megabytes, so
// that a disk works on many of its pages at once.
int64_t CheckpointWriter::block_bytes() const {
  constexpr int64_t kLeast = int64_t{16} << 20;
  const int64_t unit = std::lcm(options_.chunk_bytes, kBlockAlignment);
  return unit * std::max<int64_t>(1, kLeast / unit);
}

void CheckpointWriter::close_entries() {
  if (!contents_) contents_ = std::make_unique<ShardContents>(std::move(entries_));
}

void CheckpointWriter::copy_shard(BlockMemory& memory) {
  TOK_CHECK(!finished_ && copy_ == nullptr);
  if (parts_.empty()) return;
  close_entries();
  if (memory.bytes() < contents_->bytes()) memory = BlockMemory(contents_->bytes());
  copy_ = memory.data();
  for_each_block(contents_->bytes(), block_bytes(), options_.num_threads,
                 [&](int64_t first, int64_t bytes, std::byte*) {
                   contents_->read(first, {memory.data() + first, static_cast<size_t>(bytes)});
                 });
}

// Other ranks may come first: the sweep leaves the folders of this token alone.
void CheckpointWriter::make_folder() const {
  if (options_.rank == 0) sweep_stale_folders(folder_.target().parent_path(), options_.token);
  folder_.make();
}

ShardSummary CheckpointWriter::finish_shard() {
  TOK_CHECK(!finished_);
  finished_ = true;
  make_folder();
  if (parts_.empty()) return {};
  close_entries();
  const int64_t width = options_.chunk_bytes;
  ShardSummary summary{.file = shard_name(options_.rank),
                       .file_bytes = contents_->bytes(),
                       .chunk_bytes = width,
                       .hashes = {},
                       .tensors = {},
                       .pieces = {}};
  summary.hashes.resize((summary.file_bytes + width - 1) / width);
  BlockFile file(folder_.path() / summary.file, summary.file_bytes);
  for_each_block(summary.file_bytes, block_bytes(), options_.num_threads,
                 [&](int64_t first, int64_t bytes, std::byte* buffer) {
                   std::span block(copy_ == nullptr ? buffer : copy_ + first, bytes);
                   if (copy_ == nullptr) contents_->read(first, {buffer, block.size()});
                   for (int64_t at = 0; at < bytes; at += width)
                     summary.hashes[(first + at) / width] =
                         hash_of(block.subspan(at, std::min(width, bytes - at)));
                   file.write(first, block);
                 });
  file.sync_and_close();
  for (size_t i = 0; i < parts_.size(); ++i) {
    summary.tensors.emplace(parts_[i].piece.tensor, parts_[i].global);
    summary.pieces.push_back(parts_[i].piece);
    summary.pieces.back().offset = contents_->offset(i);
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

ShardContents::ShardContents(std::vector<TensorSource> tensors)
    : tensors_(std::move(tensors)),
      layout_(lay_out_safetensors(tensors_, {{"format", "tokamak"}})) {
  for (const size_t i : layout_.order) {
    if (tensors_[i].type().bytes() > 0) begins_.emplace_back(layout_.offsets[i], i);
  }
}

void ShardContents::read(int64_t first, std::span<std::byte> out) const {
  const int64_t end = first + std::ssize(out);
  const int64_t head_bytes = std::ssize(layout_.head);
  if (first < head_bytes) {
    const int64_t count = std::min(end, head_bytes) - first;
    std::memcpy(out.data(), layout_.head.data() + first, static_cast<size_t>(count));
  }
  // The tensor that holds `first` is the last one that does not begin after it.
  auto at = std::upper_bound(begins_.begin(), begins_.end(), first,
                             [](int64_t byte, const auto& begin) { return byte < begin.first; });
  if (at != begins_.begin()) --at;
  for (; at != begins_.end() && at->first < end; ++at) {
    const TensorSource& tensor = tensors_[at->second];
    const int64_t from = std::max(first, at->first);
    const int64_t to = std::min(end, at->first + tensor.type().bytes());
    if (from >= to) continue;
    tensor.read((from - at->first) / size_of(tensor.dtype), out.subspan(from - first, to - from));
  }
}

}  // namespace tokamak

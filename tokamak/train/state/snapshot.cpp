#include "tokamak/train/state/snapshot.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include <fmt/ranges.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/formats/convert_elements.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/json.h"
#include "tokamak/parallel/low_precision.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// Elements of a piece, from any mesh's shards.
struct ShardPart {
  const TensorPiece* piece = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  ShardPlace place;  // of the first element
};

// So much of a shard is read by one thread, in order.
constexpr int64_t kMostRunBytes = int64_t{64} << 20;
constexpr int64_t kLeastRunBytes = int64_t{16} << 20;

Slice slice_of_part(const ShardPart& part) {
  const TensorPiece& piece = *part.piece;
  return {.box = slice_of(piece).box,
          .begin = piece.begin + part.first,
          .end = piece.begin + part.first + part.count};
}

// Whether the piece is a range of its tensor's elements, as they may lie in a file.
bool is_range(const TensorPiece& piece) {
  for (size_t dim = 1; dim < piece.type.dims.size(); ++dim) {
    if (piece.box_end[dim] - piece.box_begin[dim] != piece.type.dims[dim]) return false;
  }
  return true;
}

int64_t saved_width(const CheckpointReader& reader, const TensorPiece& piece) {
  return size_of(reader.find(piece.tensor)->dtype);
}

// Parts end where chunks do, so that no chunk is read for two of them.
void add_parts(std::vector<ShardPart>& parts, const CheckpointReader& reader,
               const TensorPiece& piece) {
  const int64_t width = saved_width(reader, piece);
  for (int64_t at = 0; at < piece.numel();) {
    ShardPart part{.piece = &piece, .first = at, .count = 1, .place = {}};
    part.place = reader.place_of(piece.tensor, slice_of_part(part));
    const int64_t chunk = reader.manifest().shards[part.place.shard].chunk_bytes;
    const int64_t most = part.place.offset + kLeastRunBytes;
    const int64_t end = std::max(most / chunk * chunk, part.place.offset + width);
    part.count = std::min((end - part.place.offset) / width, piece.numel() - at);
    at += part.count;
    parts.push_back(part);
  }
}

// Returns where runs of parts begin, and the end: each run is read by one thread. Sorts them.
std::vector<size_t> cut_into_runs(std::vector<ShardPart>& parts, const CheckpointReader& reader,
                                  int num_threads) {
  std::ranges::sort(parts,
                    [](const ShardPart& a, const ShardPart& b) { return a.place < b.place; });
  int64_t all = 0;
  for (const ShardPart& part : parts) all += part.count * saved_width(reader, *part.piece);
  const int64_t most = std::clamp(all / (4 * num_threads), kLeastRunBytes, kMostRunBytes);
  std::vector<size_t> begins{0};
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_elsewhere = i > 0 && parts[i].place.shard != parts[i - 1].place.shard;
    if (bytes >= most || is_elsewhere) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += parts[i].count * saved_width(reader, *parts[i].piece);
  }
  begins.push_back(parts.size());
  return begins;
}

// If no two ranks need the same bytes of the checkpoint, each reads its own past the page cache;
// bytes that several ranks need are read from the disk once.
bool wants_own_bytes(std::span<const ShardPart> parts, const CheckpointReader& reader,
                     int64_t num_ranks) {
  int64_t wanted = 0;
  for (const ShardPart& part : parts) wanted += part.count * saved_width(reader, *part.piece);
  int64_t all = 0;
  for (const ShardSummary& shard : reader.manifest().shards) all += shard.file_bytes;
  return num_ranks * wanted <= all + all / 4;
}

// Windows and buffers of threads that come and go.
struct LoadBuffers {
  explicit LoadBuffers(bool is_direct) : own(is_direct) {}

  ReadWindow own;     // of ranges
  ReadWindow shared;  // of boxes, whose rows lie between those of other ranks
  std::vector<std::byte> read;
  std::vector<std::byte> converted;
};

class LoadPool {
 public:
  explicit LoadPool(bool is_direct) : is_direct_(is_direct) {}

  std::unique_ptr<LoadBuffers> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<LoadBuffers>(is_direct_);
    auto last = std::move(free_.back());
    free_.pop_back();
    return last;
  }

  void give_back(std::unique_ptr<LoadBuffers> buffers) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffers));
  }

 private:
  bool is_direct_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LoadBuffers>> free_;
};

void load_part(const CheckpointReader& reader, const StateAccess& access, const ShardPart& part,
               LoadBuffers& buffers) {
  const TensorPiece& piece = *part.piece;
  const DType saved = reader.find(piece.tensor)->dtype;
  const DType dtype = piece.type.dtype;
  const int64_t offset = (piece.offset + part.first) * size_of(dtype);
  ReadWindow& window = is_range(piece) ? buffers.own : buffers.shared;
  if (saved == dtype && is_range(piece)) {
    reader.stream(piece.tensor, slice_of_part(part), window,
                  [&](int64_t at, std::span<const std::byte> bytes) {
                    access.write_beside(piece.state, offset + at, bytes);
                  });
    return;
  }
  buffers.read.resize(static_cast<size_t>(part.count * size_of(saved)));
  reader.read(piece.tensor, slice_of_part(part), buffers.read, window);
  if (saved == dtype) return access.write_beside(piece.state, offset, buffers.read);
  buffers.converted.resize(static_cast<size_t>(part.count * size_of(dtype)));
  convert_elements(dtype, buffers.converted, saved, buffers.read);
  access.write_beside(piece.state, offset, buffers.converted);
}

void load_parts(const CheckpointReader& reader, const StateAccess& access,
                std::vector<ShardPart> parts, const LoadThreads& threads) {
  const auto begins = cut_into_runs(parts, reader, threads.count);
  LoadPool pool(wants_own_bytes(parts, reader, threads.num_ranks));
  in_parallel(begins.size() - 1, threads.count, [&](size_t run) {
    auto buffers = pool.take();
    for (size_t i = begins[run]; i < begins[run + 1]; ++i)
      load_part(reader, access, parts[i], *buffers);
    pool.give_back(std::move(buffers));
  });
}

bool is_wanted(const TensorPiece& piece, const LoadParts& parts) {
  return piece.kind == StateKind::kMoment ? parts.optimizer : parts.model;
}

}  // namespace

std::vector<PieceSource> pieces_to_save(const StateAccess& access,
                                        std::span<const TensorPiece> pieces, bool resumable) {
  auto saved = read_pieces(access, pieces, StateKind::kParameter, true);
  if (!resumable) return saved;
  auto moments = read_pieces(access, pieces, StateKind::kMoment, true);
  std::move(moments.begin(), moments.end(), std::back_inserter(saved));
  return saved;
}

void add_pieces(ShardedSave& save, std::span<const PieceSource> pieces,
                const SnapshotOptions& options) {
  for (const PieceSource& p : pieces) {
    if (p.piece.numel() == 0) continue;
    TensorType type = p.piece.type;
    const bool as_is = options.resumable || type.dtype == options.export_dtype;
    if (!as_is) type.dtype = options.export_dtype;
    save.add(p.piece.tensor, type, slice_of(p.piece),
             as_is ? p.elements : cast(p.elements, options.export_dtype));
  }
}

CheckpointInfo info_of(const TrainState& state, const SnapshotOptions& options) {
  CheckpointInfo info{
      .step = state.step, .resumable = options.resumable, .config_digest = options.config_digest};
  const Json train_state{{"step", state.step},
                         {"updates", state.updates},
                         {"tokens_seen", state.tokens_seen},
                         {"schedule_step", state.schedule_step}};
  info.sections["train_state"] = train_state.dump();
  if (!options.lineage.empty()) info.sections[kLineageSection] = options.lineage;
  if (options.resumable) {
    info.sections["loader"] = state.loader;
    info.sections["rng"] = Json{{"seed", state.seed}}.dump();
    if (!options.keys.empty()) info.sections["keys"] = options.keys;
  }
  return info;
}

std::filesystem::path save_checkpoint(World& world, const StateAccess& access,
                                      std::span<const TensorPiece> pieces,
                                      const std::filesystem::path& folder, const TrainState& state,
                                      const SnapshotOptions& options) {
  ShardedSave save(world, folder, state.step);
  save.attempt(
      [&] { add_pieces(save, pieces_to_save(access, pieces, options.resumable), options); });
  work_together(world, [&] { save.write(); });
  return save.commit(info_of(state, options));
}

void load_parameters(const StateAccess& access, std::span<const TensorPiece> pieces,
                     std::span<const TensorSource> sources) {
  std::map<std::string_view, const TensorSource*> by_name;
  for (const TensorSource& s : sources) by_name[s.name] = &s;
  for (const TensorPiece& piece : pieces) {
    if (piece.kind != StateKind::kParameter) continue;
    const auto it = by_name.find(piece.tensor);
    TOK_REQUIRE(it != by_name.end(), "the weights have no tensor {} (wanted {})", piece.tensor,
                to_string(piece.type.dims));
    TOK_REQUIRE(it->second->dims == piece.type.dims,
                "the weights' tensor {} is {}, the model wants {}", piece.tensor,
                to_string(it->second->dims), to_string(piece.type.dims));
    load_piece(access, piece, *it->second);
  }
}

std::string names_of_excluded(const LoadParts& parts) {
  std::vector<std::string_view> names;
  if (!parts.model) names.emplace_back("model");
  if (!parts.optimizer) names.emplace_back("optimizer");
  if (!parts.lr_scheduler) names.emplace_back("lr_scheduler");
  if (!parts.loader) names.emplace_back("dataloader");
  if (!parts.train_state) names.emplace_back("train_state");
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_checkpoint(const CheckpointReader& reader, std::span<const TensorPiece> pieces,
                      const LoadParts& parts) {
  const std::string folder = reader.folder().string();
  TOK_REQUIRE(reader.manifest().info.resumable,
              "{} holds the model only and cannot be resumed; give it as "
              "checkpoint.initial_load_path of a new run, or "
              "save with checkpoint.last_save_model_only = false",
              folder);
  for (const TensorPiece& piece : pieces) {
    if (!is_wanted(piece, parts)) continue;
    const TensorType* found = reader.find(piece.tensor);
    if (piece.is_delayed_scale) {
      if (found != nullptr) require_saved_scales(piece, *found, folder);
      continue;
    }
    TOK_REQUIRE(found != nullptr, "{} has no tensor {}", folder, piece.tensor);
    TOK_REQUIRE(found->dims == piece.type.dims, "{}: {} is {}, the run needs {}", folder,
                piece.tensor, to_string(found->dims), to_string(piece.type.dims));
    TOK_REQUIRE(can_convert(piece.type.dtype, found->dtype), "{}: {} is {}, the run needs {}",
                folder, piece.tensor, name_of(found->dtype), name_of(piece.type.dtype));
  }
}

TrainState load_checkpoint(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const std::filesystem::path& folder, const LoadParts& parts,
                           const LoadThreads& threads) {
  const CheckpointReader reader(folder);
  check_checkpoint(reader, pieces, parts);
  TrainState state;
  std::vector<ShardPart> wanted;
  for (const TensorPiece& piece : pieces) {
    if (!is_wanted(piece, parts)) continue;
    const TensorType* found = reader.find(piece.tensor);
    if (found == nullptr) {  // delayed scales
      const int64_t width = size_of(piece.type.dtype);
      access.clear_at(piece.state, piece.offset * width, piece.numel() * width);
      ++state.missing_scales;
      continue;
    }
    const bool is_moment = piece.kind == StateKind::kMoment && !piece.is_delayed_scale;
    if (is_moment && found->dtype != piece.type.dtype) state.other_moments = found->dtype;
    add_parts(wanted, reader, piece);
  }
  access.backend().settle();
  load_parts(reader, access, std::move(wanted), threads);
  const std::string what = folder.string() + ": train_state";
  const Json json = parse_json(reader.section("train_state"), what);
  const auto step = json_member<int64_t>(json, "step", what);
  if (parts.train_state) {
    state.step = step;
    state.tokens_seen = json_member<int64_t>(json, "tokens_seen", what);
    TOK_REQUIRE(state.step >= 0 && state.step <= kMostSavedSteps && state.tokens_seen >= 0 &&
                    state.tokens_seen <= kMostSavedTokens,
                "{}: wanted a step up to {} and tokens up to {}, got {} and {}", what,
                kMostSavedSteps, kMostSavedTokens, state.step, state.tokens_seen);
  }
  if (parts.optimizer) state.updates = json_member_or(json, "updates", step, what);
  if (parts.lr_scheduler) state.schedule_step = json_member_or(json, "schedule_step", step, what);
  TOK_REQUIRE(std::min({state.step, state.tokens_seen, state.updates, state.schedule_step}) >= 0,
              "{}: wanted no negative number", what);
  const Json rng = parse_json(reader.section("rng"), folder.string() + ": rng");
  TOK_REQUIRE(rng.is_object() && rng.contains("seed") && rng["seed"].is_number_unsigned(),
              "{}: rng: wanted a \"seed\"", folder.string());
  state.seed = rng["seed"].get<uint64_t>();
  if (parts.loader) state.loader = reader.section("loader");
  if (reader.manifest().info.sections.contains("keys")) state.keys = reader.section("keys");
  return state;
}

}  // namespace tokamak

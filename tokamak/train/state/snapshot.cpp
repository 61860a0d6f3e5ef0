#include "tokamak/train/state/snapshot.h"

#include <algorithm>
#include <map>

#include "tokamak/checkpoint/formats/convert_elements.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

// Elements of a piece that one thread loads, from any mesh's shards.
struct Part {
  const TensorPiece* piece = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

constexpr int64_t kPartBytes = 8 * kStreamBytes;

void add_parts(std::vector<Part>& parts, const TensorPiece& piece) {
  const int64_t most = kPartBytes / size_of(piece.type.dtype);
  for (int64_t at = 0; at < piece.numel(); at += most)
    parts.push_back({.piece = &piece, .first = at, .count = std::min(most, piece.numel() - at)});
}

void load_part(const CheckpointReader& reader, const StateAccess& access, const Part& part) {
  const TensorPiece& piece = *part.piece;
  const DType saved = reader.find(piece.tensor)->dtype;
  const DType dtype = piece.type.dtype;
  const int64_t step = kStreamBytes / std::max(size_of(saved), size_of(dtype));
  const auto most = static_cast<size_t>(std::min(step, part.count));
  std::vector<std::byte> read(most * static_cast<size_t>(size_of(saved)));
  std::vector<std::byte> converted(saved == dtype ? 0 : most * static_cast<size_t>(size_of(dtype)));
  const int64_t end = part.first + part.count;
  for (int64_t at = part.first; at < end; at += step) {
    const int64_t count = std::min(step, end - at);
    std::span elements = std::span(read).first(count * size_of(saved));
    reader.read(
        piece.tensor,
        {.box = slice_of(piece).box, .begin = piece.begin + at, .end = piece.begin + at + count},
        elements);
    if (saved != dtype) {
      const auto to = std::span(converted).first(count * size_of(dtype));
      convert_elements(dtype, to, saved, elements);
      elements = to;
    }
    access.write_beside(piece.state, (piece.offset + at) * size_of(dtype), elements);
  }
}

// Clears a row of delayed scales if the checkpoint has none; returns whether it has one.
bool find_scale(const CheckpointReader& reader, const StateAccess& access, const TensorPiece& piece,
                const TensorType* found) {
  if (found == nullptr) {
    const int64_t width = size_of(piece.type.dtype);
    access.clear_at(piece.state, piece.offset * width, piece.numel() * width);
    return false;
  }
  TOK_REQUIRE(found->dtype == piece.type.dtype && found->dims.size() == 1,
              "{}: {} is {}, wanted {}", reader.folder().string(), piece.tensor, to_string(*found),
              to_string(piece.type));
  TOK_REQUIRE(found->dims == piece.type.dims,
              "quantize.linear.float8.amax_history_len = {}: {} has histories of {}; set that, or "
              "leave scales out with checkpoint.exclude_from_loading = [\"optimizer\"]",
              piece.type.dims[0] - 1, reader.folder().string(), found->dims[0] - 1);
  return true;
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
  const Json train_state{{"step", state.step}, {"tokens_seen", state.tokens_seen}};
  info.sections["train_state"] = train_state.dump();
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
  save.write();
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

TrainState load_checkpoint(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const std::filesystem::path& folder, const LoadParts& parts,
                           int num_threads) {
  const CheckpointReader reader(folder);
  TOK_REQUIRE(reader.manifest().info.resumable,
              "{} holds the model only and cannot be resumed; give it as "
              "checkpoint.initial_load_path of a new run, or "
              "save with checkpoint.last_save_model_only = false",
              folder.string());
  TrainState state;
  std::vector<Part> wanted;
  for (const TensorPiece& piece : pieces) {
    if (piece.kind == StateKind::kMoment && !parts.optimizer) continue;
    const TensorType* found = reader.find(piece.tensor);
    if (piece.is_delayed_scale) {
      if (find_scale(reader, access, piece, found)) {
        add_parts(wanted, piece);
      } else {
        ++state.missing_scales;
      }
      continue;
    }
    TOK_REQUIRE(found != nullptr, "{} has no tensor {}", folder.string(), piece.tensor);
    TOK_REQUIRE(found->dims == piece.type.dims, "{}: {} is {}, the run wants {}", folder.string(),
                piece.tensor, to_string(found->dims), to_string(piece.type.dims));
    TOK_REQUIRE(can_convert(piece.type.dtype, found->dtype), "{}: {} is {}, the run wants {}",
                folder.string(), piece.tensor, name_of(found->dtype), name_of(piece.type.dtype));
    if (piece.kind == StateKind::kMoment && found->dtype != piece.type.dtype)
      state.other_moments = found->dtype;
    add_parts(wanted, piece);
  }
  access.backend().settle();
  in_parallel(wanted.size(), num_threads, [&](size_t i) { load_part(reader, access, wanted[i]); });
  const std::string what = folder.string() + ": train_state";
  if (parts.train_state) {
    const Json json = parse_json(reader.section("train_state"), what);
    state.step = json_member<int64_t>(json, "step", what);
    state.tokens_seen = json_member<int64_t>(json, "tokens_seen", what);
  }
  const Json rng = parse_json(reader.section("rng"), folder.string() + ": rng");
  state.seed = rng.at("seed").get<uint64_t>();
  if (parts.loader) state.loader = reader.section("loader");
  if (reader.manifest().info.sections.contains("keys")) state.keys = reader.section("keys");
  return state;
}

}  // namespace tokamak

#include "tokamak/train/state/hf_save.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/train/state/pieces.h"
#include "tokamak/train/state/snapshot.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

void export_to(const std::filesystem::path& path, std::span<const TensorSource> parameters,
               const HfExportOptions& o) {
  export_hf_folder(path, o.model, parameters, o.dtype, o.ids, o.assets);
}

std::vector<TensorSource> whole_tensors(std::span<const PieceSource> pieces) {
  std::vector<TensorSource> tensors;
  for (const PieceSource& p : pieces) {
    tensors.push_back(p.elements);
    tensors.back().dims = p.piece.type.dims;
  }
  return tensors;
}

// Returns tensors in the order of the model, which decides the file of each tensor of a large
// model.
std::vector<TensorSource> tensors_of(const CheckpointReader& reader, const StateTable& states) {
  std::vector<TensorSource> tensors;
  for (const auto& [name, type] : reader.manifest().tensors) tensors.push_back(reader.source(name));
  const auto place = [&](const TensorSource& t) {
    const StateId id = states.find(t.name);
    return id.valid() ? id.index : std::numeric_limits<int32_t>::max();
  };
  std::ranges::stable_sort(tensors,
                           [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return tensors;
}

}  // namespace

std::filesystem::path save_hf_folder(World& world, const StateAccess& access,
                                     std::span<const TensorPiece> pieces,
                                     const std::filesystem::path& folder, int64_t step,
                                     const HfExportOptions& options) {
  auto path = folder / step_folder_name(step);
  const auto owned = pieces_to_save(access, pieces, false);
  const bool is_whole = std::ranges::all_of(owned, [](const PieceSource& p) {
    return slice_of(p.piece) == whole_slice(p.piece.type.dims);
  });
  if (world.size() == 1 && is_whole) {
    export_to(path, whole_tensors(owned), options);
    return path;
  }
  // The next save deletes folders of this name if this save dies.
  const auto aside = folder / (step_folder_name(step) + ".tmp-pieces");
  ShardedSave save(world, aside, step);
  const SnapshotOptions model_only{.resumable = false, .export_dtype = options.dtype};
  save.attempt([&] { add_pieces(save, owned, model_only); });
  work_together(world, [&] { save.write(); });
  const auto gathered = save.commit(info_of({.step = step}, model_only));
  on_rank_zero_for_long(world, [&] {
    {
      const CheckpointReader reader(gathered);
      export_to(path, tensors_of(reader, access.states()), options);
    }
    std::error_code ignored;
    std::filesystem::remove_all(aside, ignored);
    return path.string();
  });
  return path;
}

}  // namespace tokamak

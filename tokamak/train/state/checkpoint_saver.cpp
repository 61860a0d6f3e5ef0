#include "tokamak/train/state/checkpoint_saver.h"

#include <atomic>
#include <utility>
#include <vector>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/train/together.h"

namespace tokamak {

struct CheckpointSaver::Pending {
  Pending(World& world, const std::filesystem::path& folder, CheckpointInfo what)
      : info(std::move(what)), save(world, folder, info.step) {}

  CheckpointInfo info;
  ShardedSave save;
  std::atomic<bool> written = false;
  std::jthread thread;  // last, so that it ends before what it writes is destroyed
};

CheckpointSaver::CheckpointSaver(World& world, CheckpointSaverOptions options)
    : world_(world), o_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::save(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const TrainState& state, const SnapshotOptions& options) {
  finish();
  pending_ = std::make_unique<Pending>(world_, o_.folder, info_of(state, options));
  pending_->save.attempt([&] {
    const auto now = pieces_to_save(access, pieces, options.resumable);
    add_pieces(pending_->save, o_.in_background ? staged(now) : now, options);
  });
  if (!o_.in_background) {
    pending_->save.write();
    return finish();
  }
  pending_->thread = std::jthread([pending = pending_.get()] {
    pending->save.write();
    pending->written = true;
  });
}

bool CheckpointSaver::has_written() const {
  return pending_ != nullptr && pending_->written;
}

void CheckpointSaver::finish() {
  if (!pending_) return;
  const auto ended = std::exchange(pending_, nullptr);
  if (ended->thread.joinable()) ended->thread.join();
  const auto path = ended->save.commit(ended->info);
  on_rank_zero(world_, [&] {
    o_.say(fmt::format("Saved the checkpoint {}{}", path.string(),
                       ended->info.resumable ? "" : " (model only)"));
    for (const auto& gone : purge(o_.folder, o_.keep_latest_k, ended->info.step))
      o_.say(fmt::format("Removed {}", gone.string()));
    return std::string();
  });
}

}  // namespace tokamak

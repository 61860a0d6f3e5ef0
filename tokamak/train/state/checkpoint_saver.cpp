#include "tokamak/train/state/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/machine_fault.h"
#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// What a shard's header takes beside its elements, at most.
int64_t bytes_of_copy(std::span<const TensorPiece> pieces) {
  constexpr int64_t kHeaderBytes = 512;
  int64_t bytes = kBlockAlignment;
  for (const TensorPiece& piece : pieces) {
    if (piece.is_owner)
      bytes += piece.numel() * size_of(piece.type.dtype) + kHeaderBytes + std::ssize(piece.tensor);
  }
  return bytes;
}

// Makes the calling thread, and those it starts, leave the cores to the kernels.
void give_way() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux
}

}  // namespace

struct CheckpointSaver::Pending {
  Pending(World& world, const CheckpointSaverOptions& o, CheckpointInfo what)
      : info(std::move(what)),
        save(world, o.folder, info.step, {.num_threads = o.num_threads, .attempt = o.attempt}) {
    if (o.attempt > 0) info.sections["attempt"] = fmt::format("{}", o.attempt);
  }

  CheckpointInfo info;

  // Writes the shard and keeps the time since the save began.
  void write() {
    save.write();
    seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    is_written = true;
  }

  Clock::time_point begun = Clock::now();
  double seconds = 0.0;
  ShardedSave save;
  std::atomic<bool> is_copied = false;
  std::atomic<bool> is_written = false;
  std::jthread thread;  // last, so that it ends before what it writes is destroyed
};

CheckpointSaver::CheckpointSaver(World& world, CheckpointSaverOptions options)
    : world_(world), o_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::prepare(const StateAccess& access, std::span<const TensorPiece> pieces) {
  access.backend().prepare_copies(o_.num_threads);
  if (!o_.in_background || copy_.bytes() > 0) return;
  const int64_t wanted = bytes_of_copy(pieces);
  const auto lacks = all_together(world_, [&]() -> std::string {
    const int64_t free = free_host_bytes() / o_.ranks_of_host;
    if (free < wanted) return fmt::format("{} bytes of host memory, {} are free", wanted, free);
    try {
      copy_ = BlockMemory(wanted);
    } catch (const SystemError& error) {
      return error.what();
    }
    return "";
  });
  const auto lack =
      std::find_if(lacks.begin(), lacks.end(), [](const auto& text) { return !text.empty(); });
  if (lack != lacks.end()) {
    o_.in_background = false;
    copy_ = {};
    if (world_.rank() == 0)
      o_.say(fmt::format("checkpoint.async_mode: the copy of rank {} wants {}; training stands "
                         "while checkpoints are written",
                         lack - lacks.begin(), *lack),
             "WARNING");
    return;
  }
  page_taker_ = std::jthread([this](const std::stop_token& stop) {
    give_way();
    constexpr int64_t kPart = int64_t{32} << 20;
    const auto parts = static_cast<size_t>((copy_.bytes() + kPart - 1) / kPart);
    in_parallel(parts, std::min(o_.num_threads, 4), [&](size_t i) {
      const int64_t at = static_cast<int64_t>(i) * kPart;
      if (!stop.stop_requested()) copy_.take_pages(at, std::min(kPart, copy_.bytes() - at));
    });
  });
}

void CheckpointSaver::begin(const StateAccess& access, std::span<const TensorPiece> pieces,
                            const TrainState& state, const SnapshotOptions& options) {
  pending_ = std::make_unique<Pending>(world_, o_, info_of(state, options));
  pending_->save.attempt([&] {
    add_pieces(pending_->save, pieces_to_save(access, pieces, options.resumable), options);
  });
  if (!o_.in_background) {
    pending_->write();
    pending_->is_copied = true;
    return;
  }
  page_taker_.request_stop();
  if (page_taker_.joinable()) page_taker_.join();
  pending_->thread = std::jthread([this, pending = pending_.get()] {
    pending->save.copy(copy_);
    pending->is_copied = true;
    pending->is_copied.notify_all();
    give_way();
    pending->write();
  });
}

void CheckpointSaver::save(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const TrainState& state, const SnapshotOptions& options) {
  finish();
  check_fence();
  attempt(state.step, [&] { begin(access, pieces, state, options); });
  if (!o_.in_background) finish();
}

void CheckpointSaver::await_copy() {
  if (pending_) pending_->is_copied.wait(false);
}

int64_t CheckpointSaver::step() const {
  return pending_ ? pending_->info.step : 0;
}

bool CheckpointSaver::has_written() const {
  return pending_ != nullptr && pending_->is_written;
}

void CheckpointSaver::finish() {
  if (!pending_) return;
  const auto ended = std::exchange(pending_, nullptr);
  if (ended->thread.joinable()) ended->thread.join();
  check_fence();
  attempt(ended->info.step, [&] { commit(*ended); });
}

void CheckpointSaver::check_fence() {
  on_rank_zero(world_, [&] {
    if (o_.fence) o_.fence();
    return std::string();
  });
}

void CheckpointSaver::commit(Pending& ended) {
  const auto path = ended.save.commit(ended.info);
  num_failed_ = 0;
  if (world_.rank() == 0)
    o_.say(fmt::format("Saved the checkpoint {}{}: {:.3g} GB of rank 0 in {:.3g} s", path.string(),
                       ended.info.resumable ? "" : " (model only)",
                       static_cast<double>(ended.save.shard_bytes()) / 1e9, ended.seconds),
           "INFO");
  if (world_.rank() != 0) return;
  if (purger_.joinable()) purger_.join();
  const auto step = ended.info.step;
  if (!o_.in_background) return purge_old(step);
  purger_ = std::jthread([this, step] { purge_old(step); });
}

// The checkpoint is saved, whether older ones can be removed or not.
void CheckpointSaver::purge_old(int64_t step) {
  try {
    for (const auto& gone : purge(o_.folder, o_.keep_latest_k, step))
      o_.say(fmt::format("Removed {}", gone.string()), "INFO");
  } catch (const std::runtime_error& error) {
    o_.say(fmt::format("Old checkpoints could not be removed: {}", error.what()), "WARNING");
  }
}

// The newest checkpoint stays, and one before it in case that is damaged.
void CheckpointSaver::make_room() {
  constexpr int kLeast = 2;
  if (world_.rank() != 0 || o_.keep_latest_k == 0) return;
  try {
    for (const auto& gone : purge(o_.folder, kLeast, -1))
      o_.say(fmt::format("Removed {} to make room", gone.string()), "WARNING");
  } catch (const std::runtime_error& error) {
    o_.say(fmt::format("Old checkpoints could not be removed: {}", error.what()), "WARNING");
  }
}

void CheckpointSaver::attempt(int64_t step, const std::function<void()>& work) {
  std::string cause;
  try {
    work();
    return;
  } catch (const DiskFull& error) {
    cause = error.what();
    make_room();
  } catch (const SystemError& error) {
    cause = error.what();
  } catch (const Error& error) {
    cause = error.what();
  }
  pending_.reset();
  ++num_failed_;
  if (num_failed_ >= o_.max_failed_saves) {
    fail_together(world_, [&] {
      throw SystemError(fmt::format(
          "checkpoint.max_failed_saves = {}: the checkpoint of step {} could not be saved either: "
          "{}",
          o_.max_failed_saves, step, cause));
    });
  }
  const auto wait = o_.retry_after * (1 << std::min(num_failed_ - 1, 20));
  retry_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  if (world_.rank() == 0)
    o_.say(fmt::format("The checkpoint of step {} could not be saved ({} of {} failures in a row): "
                       "{}; training goes on, the next attempt follows in {:.3g} s",
                       step, num_failed_, o_.max_failed_saves, cause, wait.count()),
           "WARNING");
}

bool CheckpointSaver::wants_retry() const {
  return num_failed_ > 0 && !is_saving() && Clock::now() >= retry_at_;
}

std::chrono::duration<double> CheckpointSaver::retry_wait() const {
  return std::max<std::chrono::duration<double>>(std::chrono::duration<double>(0.0),
                                                 retry_at_ - Clock::now());
}

}  // namespace tokamak

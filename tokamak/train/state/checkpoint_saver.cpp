#include "tokamak/train/state/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/comm/flight.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/timing.h"
#include "tokamak/train/predecessor.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// Returns the bytes of the shard, with as much for its header as that takes at most.
int64_t bytes_of_copy(std::span<const TensorPiece> pieces) {
  constexpr int64_t kHeaderBytes = 512;
  int64_t bytes = kBlockAlignment;
  for (const TensorPiece& piece : pieces) {
    if (piece.is_owner)
      bytes += piece.numel() * size_of(piece.type.dtype) + kHeaderBytes + std::ssize(piece.tensor);
  }
  return bytes;
}

// The pages of the copy are taken and pinned in parts of this many bytes, whole blocks of a shard.
constexpr int64_t kPartOfCopy = int64_t{32} << 20;

// Libraries of a device may take memory later on.
constexpr int64_t kLeftOfDevice = int64_t{2} << 30;

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
  Clock::time_point begun = Clock::now();
  double begin_s = 0.0;   // from `begun` until training went on
  double copied_s = 0.0;  // ... until the copy was whole
  double seconds = 0.0;   // ... until the shard was written
  bool is_shared = false;
  ShardedSave save;
  std::exception_ptr superseded;
  std::atomic<bool> is_copied = false;
  std::atomic<bool> is_part_done = false;
  std::jthread thread;  // last, so that it ends before what it writes is destroyed
};

CheckpointSaver::CheckpointSaver(World& world, CheckpointSaverOptions options)
    : world_(world), o_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() {
  pending_.reset();
  if (page_taker_.joinable()) page_taker_.join();
  for (int64_t at = 0; pinned_by_ != nullptr && at < copy_.bytes(); at += kPartOfCopy)
    pinned_by_->unpin(copy_.data() + at);
}

void CheckpointSaver::prepare(const StateAccess& access, std::span<const TensorPiece> pieces) {
  access.backend().prepare_copies(o_.num_threads);
  if (!o_.in_background || copy_.bytes() > 0) return;
  const int64_t wanted = bytes_of_copy(pieces);
  const auto lacks = all_together(world_, [&]() -> std::string {
    const auto free_of_rank = [this] { return host_memory().free / o_.ranks_of_host; };
    if (free_of_rank() < wanted) await_predecessors();
    const int64_t free = free_of_rank();
    if (free < wanted) return fmt::format("{} bytes of host memory, {} are free", wanted, free);
    try {
      copy_ = BlockMemory(wanted);
    } catch (const SystemError& error) {
      return error.what();
    }
    return "";
  });
  const auto lack = std::ranges::find_if(lacks, [](const auto& text) { return !text.empty(); });
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
  if (o_.pins_copy) pinned_by_ = &access.backend();
  page_taker_ = std::jthread([this](const std::stop_token& stop) {
    give_way();
    const auto parts = static_cast<size_t>((copy_.bytes() + kPartOfCopy - 1) / kPartOfCopy);
    in_parallel(parts, std::min(o_.num_threads, 4), [&](size_t i) {
      const int64_t at = static_cast<int64_t>(i) * kPartOfCopy;
      const int64_t bytes = std::min(kPartOfCopy, copy_.bytes() - at);
      if (stop.stop_requested()) return;
      copy_.take_pages(at, bytes);
      if (pinned_by_ != nullptr) pinned_by_->pin(copy_.data() + at, bytes);
    });
  });
}

void CheckpointSaver::take_spare_memory(const StateAccess& access,
                                        std::span<const TensorPiece> pieces) {
  has_looked_for_spare_ = !are_predecessors_alive();  // once they are gone there may be room
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  int64_t saved = 0;
  for (const TensorPiece& piece : pieces) {
    if (piece.kind != StateKind::kParameter && piece.kind != StateKind::kMoment) continue;
    if (access.is_in_host(piece.state)) return;
    const std::byte* const at = access.address(piece.state);
    const int64_t bytes = access.states()[piece.state].type.bytes();
    if (first == nullptr || at < first) first = at;
    if (end == nullptr || at + bytes > end) end = at + bytes;
    saved += piece.numel() * size_of(piece.type.dtype);
  }
  // A copy of much else would take memory for nothing.
  if (first == nullptr || end - first > saved + saved / 8) return;
  spare_ = access.backend().allocate_spare(end - first, kLeftOfDevice);
  spared_from_ = first;
  if (spare_ == nullptr) return;
  has_looked_for_spare_ = true;
  if (world_.rank() == 0)
    o_.say(fmt::format("Saves take {:.2f} GiB of free GPU memory, so that training need not wait "
                       "for the copy to the host",
                       gib(end - first)),
           "INFO");
}

void CheckpointSaver::begin(const StateAccess& access, std::span<const TensorPiece> pieces,
                            const TrainState& state, const SnapshotOptions& options) {
  pending_ = std::make_unique<Pending>(world_, o_, info_of(state, options));
  Pending& pending = *pending_;
  if (o_.in_background && !has_looked_for_spare_) take_spare_memory(access, pieces);
  StateAccess from = access;
  if (spare_ != nullptr && o_.in_background) {
    access.backend().copy_within(spare_->data(), spared_from_, spare_->bytes());
    from = access.in_copy(spare_->data(), spared_from_);
    pending.is_copied = true;
  }
  pending.save.attempt(
      [&] { add_pieces(pending.save, pieces_to_save(from, pieces, options.resumable), options); });
  page_taker_.request_stop();
  if (page_taker_.joinable()) page_taker_.join();
  run(pending, [this, &pending] {
    if (o_.in_background) {
      pending.save.copy(copy_);
      pending.copied_s = seconds_since(pending.begun);
      pending.is_copied = true;
      pending.is_copied.notify_all();
      give_way();
    }
    if (!is_superseded(pending)) pending.save.write();
    pending.seconds = seconds_since(pending.begun);
  });
  pending.begin_s = seconds_since(pending.begun);
}

// Runs a part of a save, on a thread of its own if it goes on in the background.
void CheckpointSaver::run(Pending& pending, std::function<void()> part) {
  pending.is_part_done = false;
  const auto work = [&pending, part = std::move(part)] {
    part();
    pending.is_part_done = true;
  };
  if (!o_.in_background) return work_together(world_, work);
  pending.thread = std::jthread(work);
}

void CheckpointSaver::save(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const TrainState& state, const SnapshotOptions& options) {
  finish();
  attempt(state.step, [&] { begin(access, pieces, state, options); });
  if (!o_.in_background) finish();
}

bool CheckpointSaver::is_copying() const {
  return pending_ && o_.in_background && !pending_->is_copied;
}

void CheckpointSaver::await_copy() {
  if (is_copying()) pending_->is_copied.wait(false);
}

int64_t CheckpointSaver::step() const {
  return pending_ ? pending_->info.step : 0;
}

bool CheckpointSaver::can_advance() const {
  return pending_ != nullptr && pending_->is_part_done;
}

void CheckpointSaver::advance() {
  auto part = std::exchange(pending_, nullptr);
  if (part->thread.joinable()) part->thread.join();
  check_fence(*part);
  attempt(part->info.step, [&] {
    if (part->is_shared) return end(*part);
    part->save.share();
    part->is_shared = true;
    run(*part, [this, &part = *part] {
      if (o_.in_background) give_way();
      if (!is_superseded(part)) part.save.name(part.info);
    });
    pending_ = std::move(part);
  });
}

void CheckpointSaver::finish() {
  while (pending_) {
    if (o_.in_background) await_part();
    advance();
  }
}

// Ranks may have disks of different speeds, so no rank gives up another one that is writing.
void CheckpointSaver::await_part() {
  world_.flights().is_awaited = true;
  await_all(world_, [&](std::chrono::milliseconds most) {
    const auto end = Clock::now() + most;
    while (!can_advance() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return can_advance();
  });
  world_.flights().is_awaited = false;
}

// Returns whether rank 0 may no longer write to the run's folder; keeps the reason for
// check_fence().
bool CheckpointSaver::is_superseded(Pending& pending) {
  try {
    if (world_.rank() == 0 && o_.fence) o_.fence();
    return false;
  } catch (...) {
    pending.superseded = std::current_exception();
    return true;
  }
}

// That is no failed save: the run ends.
void CheckpointSaver::check_fence(Pending& pending) {
  on_rank_zero(world_, [&] {
    if (pending.superseded) std::rethrow_exception(pending.superseded);
  });
}

void CheckpointSaver::end(Pending& ended) {
  const auto path = ended.save.conclude();
  num_failed_ = 0;
  if (world_.rank() == 0)
    o_.say(fmt::format("Saved the checkpoint {}{}: {:.3g} GB of rank 0 in {:.3g} s{}",
                       path.string(), ended.info.resumable ? "" : " (model only)",
                       static_cast<double>(ended.save.shard_bytes()) / 1e9, ended.seconds,
                       o_.in_background ? fmt::format(" (begun in {:.3f} s, copied in {:.3f} s)",
                                                      ended.begin_s, ended.copied_s)
                                        : ""),
           "INFO");
  const auto step = ended.info.step;
  if (!o_.in_background) {
    return work_together(world_, [&] {
      if (world_.rank() == 0) purge_old(step);
    });
  }
  if (world_.rank() != 0) return;
  if (purger_.joinable()) purger_.join();
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
    // One that is not of all ranks is no failed save, but the end of their connection.
    if (world_.size() > 1 && dynamic_cast<const AgreedFailure*>(&error) == nullptr) throw;
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

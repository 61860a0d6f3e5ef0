#include "tokamak/train/state/sharded_save.h"

#include <chrono>
#include <vector>

#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/train/together.h"

namespace tokamak {

ShardedSave::ShardedSave(World& world, const std::filesystem::path& folder, int64_t step,
                         const ShardedSaveOptions& options)
    : world_(&world) {
  const std::string token = on_rank_zero(world, [&] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return fmt::format("a{}-{}-{}", options.attempt, ::getpid(),
                       now / std::chrono::microseconds(1));
  });
  writer_ = std::make_unique<CheckpointWriter>(
      folder, step,
      CheckpointWriterOptions{
          .rank = world.rank(), .token = token, .num_threads = options.num_threads});
}

void ShardedSave::add(const std::string& name, const TensorType& global, const Slice& slice,
                      TensorSource elements) {
  writer_->add(name, global, slice, std::move(elements));
}

void ShardedSave::attempt(const std::function<void()>& work) noexcept {
  if (failure_) return;
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void ShardedSave::copy(BlockMemory& memory) noexcept {
  attempt([&] { writer_->copy_shard(memory); });
}

void ShardedSave::write() noexcept {
  attempt([&] {
    const ShardSummary shard = writer_->finish_shard();
    shard_bytes_ = shard.file_bytes;
    summary_ = to_text(shard);
  });
}

void ShardedSave::share() {
  try {
    summaries_ = all_together(*world_, [&] {
      if (failure_) std::rethrow_exception(failure_);
      return summary_;
    });
  } catch (...) {
    writer_.reset();
    throw;
  }
}

void ShardedSave::name(const CheckpointInfo& info) noexcept {
  if (world_->rank() != 0) return;
  attempt([&] {
    std::vector<ShardSummary> shards;
    for (size_t rank = 0; rank < summaries_.size(); ++rank)
      shards.push_back(parse_shard_summary(summaries_[rank], fmt::format("rank {}", rank)));
    path_ = writer_->commit(shards, info);
  });
  if (failure_) writer_.reset();
}

std::filesystem::path ShardedSave::conclude() {
  return on_rank_zero(*world_, [&] {
    if (failure_) std::rethrow_exception(failure_);
    return path_.string();
  });
}

std::filesystem::path ShardedSave::commit(const CheckpointInfo& info) {
  share();
  work_together(*world_, [&] { name(info); });
  return conclude();
}

}  // namespace tokamak

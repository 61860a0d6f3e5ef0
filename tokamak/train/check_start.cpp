#include "tokamak/train/check_start.h"

#include <utility>

#include "tokamak/data/cache/token_cache.h"
#include "tokamak/train/run_folder.h"
#include "tokamak/train/state/run_checkpoints.h"

namespace tokamak {
namespace {

void check_folders(const TrainerOptions& o) {
  const std::filesystem::path& dump = o.logging.dump_folder;
  check_run_folder(dump);
  if (o.checkpoint.writes()) check_can_make(o.checkpoint.folder);
  if (o.data.tokenizer != nullptr) check_can_make(o.data.cache_folder);
  if (!o.logging.tensorboard_folder.empty()) check_can_make(dump / o.logging.tensorboard_folder);
  for (const auto& folder : {o.profiling.traces_folder, o.profiling.memory_folder}) {
    if (!folder.empty()) check_can_make(folder);
  }
}

}  // namespace

std::vector<std::string> check_start(const TrainerOptions& o, const PlannedRun& run) {
  check_folders(o);
  if (o.epochs) check_epochs(o.data);
  DataOptions data = o.data;
  // Text is tokenized as a whole before its windows are shuffled, which takes long.
  const bool awaits_tokens = data.shuffle_seed && data.tokenizer != nullptr;
  if (awaits_tokens) data.shuffle_seed.reset();
  Loader loader(data);
  std::vector<std::string> lines = loader.remarks();
  const auto append = [&](std::vector<std::string> more) {
    std::move(more.begin(), more.end(), std::back_inserter(lines));
  };
  if (o.validation) append(Loader(o.validation->data).remarks());
  append(
      check_begin(o.checkpoint, o.model, run.pieces(), o.steps, awaits_tokens ? nullptr : &loader));
  return lines;
}

}  // namespace tokamak

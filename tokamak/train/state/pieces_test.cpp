// Meshes by hand: pieces of all kinds, saved by one and loaded by another.
#include "tokamak/train/state/pieces.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/train/state/hf_save.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/state/snapshot.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::ScratchFolder;

const std::map<std::string, Dims> kTensors{{"model.embed.weight", {37, 24}},
                                           {"model.wq.weight", {30, 24}},
                                           {"model.down.weight", {24, 50}},
                                           {"model.norm.weight", {24}},
                                           {"model.scale", {1}}};

// How a mesh cuts: every tensor into `rows` x `columns` boxes, uneven; every box into `ranges` flat
// ranges, uneven; all of it on `replicas` ranks, of which one owns it.
struct Cut {
  int rows = 1;
  int columns = 1;
  int ranges = 1;
  int replicas = 1;

  int ranks() const { return rows * columns * ranges * replicas; }
};

// An uneven split of n into parts that may be empty.
int64_t bound(int64_t n, int parts, int i) {
  if (i == 0 || i == parts) return i == 0 ? 0 : n;
  return std::min(n, (n * i + parts / 2) / parts + (i % 2));
}

TensorPiece piece_of(const std::string& name, const Dims& dims, StateKind kind, const Cut& cut,
                     int rank) {
  const int replica = rank % cut.replicas;
  const int range = rank / cut.replicas % cut.ranges;
  const int column = rank / cut.replicas / cut.ranges % cut.columns;
  const int row = rank / cut.replicas / cut.ranges / cut.columns;
  TensorPiece piece{.tensor = kind == StateKind::kMoment ? "optimizer.m." + name : name,
                    .type = {.dtype = DType::kF32, .dims = dims},
                    .kind = kind,
                    .init = {.kind = Init::Kind::kNormal, .std = 0.02, .cut = 3.0}};
  piece.box_begin = Dims(dims.size(), 0);
  piece.box_end = dims;
  piece.box_begin[0] = bound(dims[0], cut.rows, row);
  piece.box_end[0] = bound(dims[0], cut.rows, row + 1);
  bool owns = replica == cut.replicas - 1;
  if (dims.size() > 1) {
    piece.box_begin[1] = bound(dims[1], cut.columns, column);
    piece.box_end[1] = bound(dims[1], cut.columns, column + 1);
  } else {
    owns = owns && column == 0;
  }
  const int64_t count = numel(Box{.begin = piece.box_begin, .end = piece.box_end});
  piece.begin = bound(count, cut.ranges, range);
  piece.end = bound(count, cut.ranges, range + 1);
  piece.is_owner = owns;
  return piece;
}

// A rank with all its pieces in one flat State each for parameters and moments.
class Rank {
 public:
  Rank(const Cut& cut, int rank) : backend_(cpu::make_backend({.threads = 1})) {
    for (const StateKind kind : {StateKind::kParameter, StateKind::kMoment}) {
      int64_t at = 3;
      const StateId state{kind == StateKind::kParameter ? 0 : 1};
      for (const auto& [name, dims] : kTensors) {
        pieces_.push_back(piece_of(name, dims, kind, cut, rank));
        pieces_.back().state = state;
        pieces_.back().offset = at;
        at += pieces_.back().numel() + 5;
      }
      states_.declare({.name = kind == StateKind::kParameter ? "bucket" : "bucket.m",
                       .type = {.dtype = DType::kF32, .dims = {at}},
                       .kind = kind});
    }
    layout_ = lay_out(states_);
    plan_.arena_bytes[ArenaKind::kState] = layout_.bytes;
    const Plan* plans[] = {&plan_};
    memory_ = std::make_unique<Memory>(*backend_, plans);
  }

  StateAccess access() const { return {*memory_, states_, layout_}; }

  const std::vector<TensorPiece>& pieces() const { return pieces_; }

  std::vector<std::byte> bytes_of(const TensorPiece& piece) const {
    std::vector<std::byte> out(piece.numel() * 4);
    if (!out.empty()) access().read_at(piece.state, piece.offset * 4, out);
    return out;
  }

 private:
  std::unique_ptr<Backend> backend_;
  StateTable states_;
  StateLayout layout_;
  Plan plan_;
  std::unique_ptr<Memory> memory_;
  std::vector<TensorPiece> pieces_;
};

// What every element of the tensor `name` is in these tests.
TensorSource expected(const std::string& name) {
  const std::string plain = name.rfind("optimizer.m.", 0) == 0 ? name.substr(12) : name;
  return testing::pattern(name, DType::kF32, kTensors.at(plain),
                          static_cast<uint32_t>(stream_of(name)));
}

std::vector<std::byte> part_of(const TensorSource& whole, const TensorPiece& piece) {
  const auto all = read_all(whole);
  std::vector<std::byte> out(piece.numel() * 4);
  for_each_shared_run(whole_slice(whole.dims), slice_of(piece),
                      [&](int64_t from, int64_t to, int64_t count) {
                        std::memcpy(out.data() + to * 4, all.data() + from * 4, count * 4);
                      });
  return out;
}

void fill(const Rank& rank) {
  for (const TensorPiece& piece : rank.pieces())
    write_piece(rank.access(), piece, 0, part_of(expected(piece.tensor), piece));
}

void expect_filled(const Rank& rank) {
  for (const TensorPiece& piece : rank.pieces())
    EXPECT_EQ(rank.bytes_of(piece), part_of(expected(piece.tensor), piece)) << piece.tensor;
}

const std::vector<Cut> kCuts{{},
                             {.ranges = 3},
                             {.rows = 2, .ranges = 2},
                             {.columns = 3},
                             {.rows = 2, .columns = 2, .ranges = 3},
                             {.replicas = 2},
                             {.rows = 3, .ranges = 2, .replicas = 2},
                             {.rows = 1, .columns = 2, .ranges = 4, .replicas = 1}};

const TrainState kState{.step = 7, .tokens_seen = 99, .seed = 5, .loader = "{}"};

fs::path save_on(const Cut& cut, const fs::path& folder, const SnapshotOptions& options = {}) {
  fs::path path;
  run_ranks(cut.ranks(), [&](World& world) {
    const Rank rank(cut, world.rank());
    fill(rank);
    const auto saved =
        save_checkpoint(world, rank.access(), rank.pieces(), folder, kState, options);
    if (world.rank() == 0) path = saved;
  });
  return path;
}

TEST(Pieces, EveryMeshLoadsWhatEveryMeshSaved) {
  const ScratchFolder scratch;
  std::map<std::string, std::vector<std::byte>> first;
  for (size_t i = 0; i < kCuts.size(); ++i) {
    const fs::path path = save_on(kCuts[i], scratch.path() / std::to_string(i));
    const CheckpointReader reader(path);
    reader.verify();
    for (const auto& [name, type] : reader.manifest().tensors)
      EXPECT_EQ(read_all(reader.source(name)), read_all(expected(name))) << name;
    EXPECT_EQ(reader.manifest().tensors.size(), 2 * kTensors.size());
    for (const Cut& other : kCuts) {
      run_ranks(other.ranks(), [&](World& world) {
        const Rank rank(other, world.rank());
        const TrainState loaded = load_checkpoint(rank.access(), rank.pieces(), path, {});
        EXPECT_EQ(loaded.step, 7);
        EXPECT_EQ(loaded.tokens_seen, 99);
        EXPECT_EQ(loaded.seed, 5U);
        expect_filled(rank);
      });
    }
  }
}

TEST(Pieces, InitialValuesAreThoseOfTheWholeTensorOnEveryMesh) {
  for (const Cut& cut : kCuts) {
    for (int r = 0; r < cut.ranks(); ++r) {
      const Rank rank(cut, r);
      fill(rank);
      initialize(rank.access(), rank.pieces(), 3);
      for (const TensorPiece& piece : rank.pieces()) {
        std::vector<std::byte> whole(piece.type.bytes());
        if (piece.kind == StateKind::kParameter)
          InitialValues(piece.tensor, DType::kF32, piece.init, 3).read(0, whole);
        const TensorView view{
            .name = piece.tensor, .dtype = DType::kF32, .dims = piece.type.dims, .data = whole};
        EXPECT_EQ(rank.bytes_of(piece), part_of(source_of(view), piece)) << piece.tensor;
      }
    }
  }
}

TEST(Pieces, WeightsAreReadFromTheRowsThatAPieceTouches) {
  for (const Cut& cut : kCuts) {
    for (int r = 0; r < cut.ranks(); ++r) {
      const Rank rank(cut, r);
      int64_t read_elements = 0;
      std::vector<TensorSource> sources;
      for (const auto& [name, dims] : kTensors) {
        sources.push_back(expected(name));
        sources.back().read = [&read_elements, read = sources.back().read](
                                  int64_t first, std::span<std::byte> out) {
          read_elements += std::ssize(out) / 4;
          read(first, out);
        };
      }
      load_parameters(rank.access(), rank.pieces(), sources);
      int64_t held = 0;
      for (const TensorPiece& piece : rank.pieces()) {
        if (piece.kind == StateKind::kMoment) continue;
        EXPECT_EQ(rank.bytes_of(piece), part_of(expected(piece.tensor), piece)) << piece.tensor;
        held += piece.numel();
      }
      EXPECT_TRUE(cut.columns > 1 || read_elements == held) << read_elements << " of " << held;
    }
  }
}

TEST(Pieces, AModelOnlyCheckpointIsCast) {
  const ScratchFolder scratch;
  const fs::path path = save_on({.rows = 2, .ranges = 2}, scratch.path(),
                                {.resumable = false, .export_dtype = DType::kBF16});
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.manifest().tensors.size(), kTensors.size());
  for (const auto& [name, type] : reader.manifest().tensors) EXPECT_EQ(type.dtype, DType::kBF16);
  const Rank rank({}, 0);
  EXPECT_ERROR(load_checkpoint(rank.access(), rank.pieces(), path, {}), "holds the model only");
}

TEST(Pieces, ACopiedShardKeepsWhatWasThere) {
  const ScratchFolder scratch;
  run_ranks(1, [&](World& world) {
    const Rank rank({}, 0);
    fill(rank);
    ShardedSave save(world, scratch.path(), 1, {.num_threads = 3});
    add_pieces(save, pieces_to_save(rank.access(), rank.pieces(), true), {});
    BlockMemory memory;
    save.copy(memory);
    initialize(rank.access(), rank.pieces(), 1);
    save.write();
    const CheckpointReader reader(save.commit(info_of({.step = 1, .loader = "{}"}, {})));
    for (const TensorPiece& piece : rank.pieces())
      EXPECT_EQ(read_all(reader.source(piece.tensor)), part_of(expected(piece.tensor), piece))
          << piece.tensor;
  });
}

TEST(Pieces, ACheckpointOfOtherTensorsIsRefused) {
  const ScratchFolder scratch;
  const fs::path path = save_on({.ranges = 2}, scratch.path());
  const Rank rank({}, 0);
  auto pieces = rank.pieces();
  pieces[0].tensor = "model.other";
  EXPECT_ERROR(load_checkpoint(rank.access(), pieces, path, {}), "has no tensor model.other");
  pieces = rank.pieces();
  std::swap(pieces[0].tensor, pieces[1].tensor);
  EXPECT_ERROR(load_checkpoint(rank.access(), pieces, path, {}), "the run needs");
}

// A save in which the rank `bad` cannot write; every rank's error.
std::vector<std::string> failing_save(const fs::path& folder, int num_ranks, int bad) {
  std::vector<std::string> errors(num_ranks);
  run_ranks(num_ranks, [&](World& world) {
    const int rank = world.rank();
    ShardedSave save(world, folder, 2);
    TensorSource rows = testing::pattern("w", DType::kF32, {8});
    if (rank == bad)
      rows.read = [](int64_t, std::span<std::byte>) { throw SystemError("No space left"); };
    save.attempt([&] {
      save.add("w", {.dtype = DType::kF32, .dims = {num_ranks, 8}},
               slice_of(Box{.begin = {rank, 0}, .end = {rank + 1, 8}}), rows);
    });
    save.write();
    try {
      save.commit({.step = 2});
    } catch (const SystemError& error) {
      errors[rank] = error.what();
    }
  });
  return errors;
}

TEST(ShardedSave, ARankThatCannotWriteFailsTheSaveOnAllAlike) {
  const ScratchFolder scratch;
  save_on({.ranges = 3}, scratch.path());
  for (int bad = 0; bad < 4; ++bad) {
    for (const std::string& error : failing_save(scratch.path(), 4, bad))
      EXPECT_EQ(error, fmt::format("rank {}: No space left", bad));
    const auto newest = testing::newest_complete(scratch.path());
    ASSERT_TRUE(newest.entry.has_value());
    EXPECT_EQ(newest.entry->step, 7);
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
  }
  EXPECT_EQ(failing_save(scratch.path(), 4, -1), std::vector<std::string>(4));
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 2U);
}

TEST(ShardedSave, RanksThatOwnNothingWriteNoShard) {
  const ScratchFolder scratch;
  const fs::path path = save_on({.replicas = 4}, scratch.path());
  EXPECT_EQ(std::distance(fs::directory_iterator(path), fs::directory_iterator()), 2);
  CheckpointReader(path).verify();
}

TEST(ShardedSave, AFolderThatCannotBeMadeIsAnErrorOnAllRanks) {
  const ScratchFolder scratch;
  testing::write_text(scratch.path() / "file", "");
  int errors = 0;
  std::mutex mutex;
  run_ranks(3, [&](World& world) {
    try {
      ShardedSave save(world, scratch.path() / "file", 1);
      save.write();
      save.commit({.step = 1});
    } catch (const Error&) {
      const std::lock_guard lock(mutex);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
}

std::map<std::string, std::string> exported(const Cut& cut, const fs::path& folder) {
  run_ranks(cut.ranks(), [&](World& world) {
    const Rank rank(cut, world.rank());
    fill(rank);
    const HfExportOptions options{.model = flavor_spec("llama3", "debugmodel"),
                                  .dtype = DType::kBF16,
                                  .assets = {{"tokenizer.json", "{}"}}};
    const auto path = save_hf_folder(world, rank.access(), rank.pieces(), folder, 3, options);
    EXPECT_EQ(path, folder / "step-3");
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  std::map<std::string, std::string> files;
  for (const fs::path& path : list_folder(folder / "step-3"))
    files[path.filename().string()] = read_file(path);
  return files;
}

TEST(HfSave, EveryMeshWritesTheSameFolder) {
  const ScratchFolder scratch;
  const auto whole = exported({}, scratch.path() / "one");
  EXPECT_EQ(whole.size(), 4U);
  for (size_t i = 1; i < kCuts.size(); ++i)
    EXPECT_EQ(exported(kCuts[i], scratch.path() / std::to_string(i)), whole) << i;
}

TEST(Together, TheFirstFailureIsEveryRanks) {
  run_ranks(3, [](World& world) {
    const auto work = [&](int bad, auto failure) {
      return [&world, bad, failure]() -> std::string {
        if (world.rank() >= bad) throw failure;
        return fmt::format("{}", world.rank());
      };
    };
    EXPECT_EQ(all_together(world, work(9, Error(""))), (std::vector<std::string>{"0", "1", "2"}));
    EXPECT_EQ(on_rank_zero(world, work(1, Error(""))), "0");
    EXPECT_THROW(all_together(world, work(1, Error("e"))), Error);
    EXPECT_THROW(all_together(world, work(2, SystemError("s"))), SystemError);
    EXPECT_THROW(all_together(world, work(2, Bug("b"))), Bug);
    EXPECT_THROW(on_rank_zero(world, work(0, Diverged("d"))), Diverged);
    EXPECT_EQ(testing::error_of([&] { all_together(world, work(1, Error("no file"))); }),
              "rank 1: no file");
  });
}

}  // namespace
}  // namespace tokamak

#include <fstream>
#include <memory>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/checkpoint/formats/foreign.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/test_tensors.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::pattern;
using testing::ScratchFolder;
using testing::write_text;

CheckpointInfo info_at(int64_t step, bool resumable = true) {
  return {.step = step,
          .resumable = resumable,
          .config_digest = "abc",
          .sections = {{"rng", "seed \"7\"\n"}, {"train_state", "{}"}}};
}

std::vector<TensorSource> state(uint32_t seed) {
  return {pattern("w", DType::kF32, {12, 10}, seed), pattern("norm", DType::kF32, {10}, seed + 1),
          pattern("half", DType::kBF16, {6, 8}, seed + 2), pattern("count", DType::kI64, {}, seed),
          pattern("none", DType::kF32, {0, 3})};
}

fs::path save(const fs::path& folder, int64_t step, bool resumable = true) {
  CheckpointWriter writer(folder, step, {.rank = 0, .token = "", .chunk_bytes = 64});
  for (TensorSource& tensor : state(static_cast<uint32_t>(step))) writer.add(std::move(tensor));
  const ShardSummary shard = writer.finish_shard();
  return writer.commit(std::vector{shard}, info_at(step, resumable));
}

std::vector<std::byte> slice_bytes(const TensorSource& whole, const Slice& slice) {
  const auto all = read_all(whole);
  const int64_t width = size_of(whole.dtype);
  std::vector<std::byte> out(slice.numel() * width);
  for_each_shared_run(whole_slice(whole.dims), slice, [&](int64_t f, int64_t t, int64_t count) {
    std::memcpy(out.data() + t * width, all.data() + f * width, count * width);
  });
  return out;
}

// A part of `whole` as a rank of its own would hold it.
TensorSource part_of(const TensorSource& whole, const Slice& slice) {
  const auto read = [bytes = slice_bytes(whole, slice), width = size_of(whole.dtype)](
                        int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + first * width, out.size());
  };
  return {.name = "part", .dtype = whole.dtype, .dims = {slice.numel()}, .read = read};
}

void expect_state(const CheckpointReader& reader, uint32_t seed) {
  for (const TensorSource& tensor : state(seed)) {
    EXPECT_EQ(reader.source(tensor.name).type(), tensor.type()) << tensor.name;
    EXPECT_EQ(read_all(reader.source(tensor.name)), read_all(tensor)) << tensor.name;
  }
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void flip(const fs::path& path, size_t byte, int bit = 0) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const int value = file.get();
  ASSERT_NE(value, EOF);
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(value ^ (1 << bit)));
}

TEST(Checkpoint, what_is_saved_is_loaded) {
  const ScratchFolder folder;
  const fs::path path = save(folder.path(), 20);
  EXPECT_EQ(path, folder.path() / "step-20");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-20"});
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"manifest.json", "shard-00000.safetensors"}));
  const CheckpointReader reader(path);
  reader.verify();
  expect_state(reader, 20);
  EXPECT_EQ(reader.manifest().info.step, 20);
  EXPECT_TRUE(reader.manifest().info.resumable);
  EXPECT_EQ(reader.manifest().info.config_digest, "abc");
  EXPECT_EQ(reader.section("rng"), "seed \"7\"\n");
  EXPECT_ERROR(reader.section("loader"), "has no section \"loader\"");
  EXPECT_ERROR(reader.source("x"), "there is no tensor \"x\"");
  EXPECT_EQ(to_string(*reader.find("w")), "float32[12, 10]");
  const SafetensorsFile shard(path / "shard-00000.safetensors");
  EXPECT_EQ(shard.at("w").dims, (Dims{12, 10}));
}

TEST(Checkpoint, pieces_of_many_ranks_load_on_any_mesh) {
  const ScratchFolder folder;
  const TensorSource w = pattern("w", DType::kF32, {12, 10}, 3);
  const Box left{.begin = {0, 0}, .end = {12, 4}};
  const Box right{.begin = {0, 4}, .end = {12, 10}};
  const std::vector<Slice> slices{{.box = left, .begin = 0, .end = 30},
                                  {.box = left, .begin = 30, .end = 48},
                                  {.box = right, .begin = 0, .end = 1},
                                  {.box = right, .begin = 1, .end = 72}};
  std::vector<ShardSummary> shards;
  std::vector<std::unique_ptr<CheckpointWriter>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<CheckpointWriter>(
        folder.path(), 5,
        CheckpointWriterOptions{.rank = rank, .token = "attempt", .chunk_bytes = 50}));
    ranks.back()->add("w", w.type(), slices[rank], part_of(w, slices[rank]));
    shards.push_back(parse_shard_summary(to_text(ranks.back()->finish_shard()), "summary"));
  }
  const fs::path path = ranks[0]->commit(shards, info_at(5));
  ranks.clear();
  EXPECT_EQ(names_in(path).size(), 5U);
  const CheckpointReader reader(path);
  EXPECT_EQ(read_all(reader.source("w")), read_all(w));
  for (int64_t row = 0; row < 12; row += 5) {
    for (int64_t column = 0; column < 10; column += 3) {
      const Slice slice =
          slice_of({.begin = {row, column}, .end = {12, std::min<int64_t>(10, column + 5)}});
      std::vector<std::byte> got(slice.numel() * 4);
      reader.read("w", slice_of(slice.box), got);
      EXPECT_EQ(got, slice_bytes(w, slice));
    }
  }
  EXPECT_ERROR(reader.read("w", slice_of({.begin = {0, 0}, .end = {13, 1}}), {}),
               "leaves the tensor");
}

TEST(Checkpoint, a_manifest_round_trips_and_every_flipped_bit_shows) {
  const ScratchFolder folder;
  const fs::path path = save(folder.path(), 1) / "manifest.json";
  const std::string text = read_file(path);
  EXPECT_EQ(to_text(parse_manifest(text, "m")), text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    EXPECT_THROW(parse_manifest(bad, "m"), Error) << i;
    EXPECT_THROW(parse_manifest(text.substr(0, i), "m"), Error) << i;
  }
}

TEST(Checkpoint, a_sealed_lie_is_refused) {
  const ScratchFolder folder;
  const std::string good = read_file(save(folder.path(), 1) / "manifest.json");
  const auto lie = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return testing::error_of([&] { parse_manifest(sealed(text), "m"); });
  };
  EXPECT_NE(lie("\"version\": 1", "\"version\": 2").find("format version 2"), std::string::npos);
  EXPECT_NE(lie("[12,10]", "[12,9999]").find("leave the"), std::string::npos);
  EXPECT_NE(lie("{\"tensor\": \"w\"", "{\"range\": [0, 5], \"tensor\": \"w\"")
                .find("tensor \"w\": its pieces hold 5 of 120 elements"),
            std::string::npos);
  EXPECT_NE(lie("[12,10]", "[12,4611686018427387904]").find("overflows"), std::string::npos);
  EXPECT_NE(lie("\"bytes\": ", "\"bytes\": 1").find("hashes, wanted"), std::string::npos);
  EXPECT_NE(lie("\"chunk_bytes\": 64", "\"chunk_bytes\": 0").find("chunk_bytes"),
            std::string::npos);
  for (const char* chunk : {"1073741825", "4611686018427387904", "9223372036854775807"}) {
    EXPECT_NE(lie("\"chunk_bytes\": 64", fmt::format("\"chunk_bytes\": {}", chunk))
                  .find("wanted 1 to 1073741824"),
              std::string::npos);
  }
  EXPECT_NE(lie("\"step\": 1", "\"step\": 9223372036854775807").find("wanted at most"),
            std::string::npos);
  EXPECT_NE(lie("shard-00000", "../000").find("same folder"), std::string::npos);
  EXPECT_NE(lie("\"offset\": ", "\"offset\": 9").find("leave the"), std::string::npos);
  EXPECT_NE(lie("{\"tensor\": \"w\"", "{\"tensor\": \"v\"").find("no such tensor"),
            std::string::npos);
}

TEST(Checkpoint, every_flipped_byte_of_a_shard_is_found_and_named) {
  const ScratchFolder folder;
  const fs::path path = save(folder.path(), 1);
  const fs::path shard = path / "shard-00000.safetensors";
  const size_t size = read_file(shard).size();
  for (size_t byte = 0; byte < size; ++byte) {
    flip(shard, byte, static_cast<int>(byte % 8));
    EXPECT_ERROR(
        CheckpointReader(path).verify(),
        fmt::format("shard-00000.safetensors: damaged: the hash of the {} bytes at offset {} ",
                    std::min<size_t>(64, size - byte / 64 * 64), byte / 64 * 64));
    flip(shard, byte, static_cast<int>(byte % 8));
  }
  CheckpointReader(path).verify();
}

TEST(Checkpoint, damage_outside_what_is_read_does_not_matter) {
  const ScratchFolder folder;
  const fs::path path = save(folder.path(), 1);
  const fs::path shard = path / "shard-00000.safetensors";
  const int64_t w_at = CheckpointReader(path).manifest().shards[0].pieces[0].offset;
  flip(shard, static_cast<size_t>(w_at + 400));
  const CheckpointReader reader(path);
  std::vector<std::byte> row(40);
  reader.read("w", slice_of({.begin = {0, 0}, .end = {1, 10}}), row);
  EXPECT_EQ(row, slice_bytes(state(1)[0], slice_of({.begin = {0, 0}, .end = {1, 10}})));
  EXPECT_ERROR(reader.read("w", slice_of({.begin = {10, 0}, .end = {11, 10}}), row), "damaged");
}

// Ranges of a shard of several blocks, with and without the page cache; chunks lie across them.
TEST(Checkpoint, a_window_reads_on_through_blocks) {
  const ScratchFolder folder;
  const TensorSource w = pattern("w", DType::kF32, {5000, 1001});
  const TensorSource last = pattern("z", DType::kBF16, {7});
  CheckpointWriter writer(folder.path(), 5,
                          {.rank = 0, .token = "", .chunk_bytes = int64_t{1} << 20});
  writer.add(w);
  writer.add(last);
  const ShardSummary shard = writer.finish_shard();
  const fs::path path = writer.commit(std::vector{shard}, info_at(5));
  const CheckpointReader reader(path);
  const auto all = read_all(w);
  const int64_t numel = w.type().numel();
  for (const bool is_direct : {false, true}) {
    ReadWindow window(is_direct);
    for (int64_t at = 0; at < numel; at += 1'300'001) {
      const Slice slice{
          .box = whole_box(w.dims), .begin = at, .end = std::min(numel, at + 1'300'001)};
      std::vector<std::byte> got(slice.numel() * 4);
      reader.stream("w", slice, window, [&](int64_t byte, std::span<const std::byte> run) {
        std::memcpy(got.data() + byte, run.data(), run.size());
      });
      ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + 4 * at)) << at;
      const ShardPlace place = reader.place_of("w", slice);
      EXPECT_EQ(place.offset, shard.pieces[0].offset + 4 * at);
    }
    std::vector<std::byte> end(14);
    reader.read("z", whole_slice({7}), end, window);
    EXPECT_EQ(end, read_all(last)) << "behind the last whole page of the file";
  }
  flip(path / shard.file, 18 << 20);
  ReadWindow window(true);
  const auto ignore = [](int64_t, std::span<const std::byte>) {};
  EXPECT_ERROR(reader.stream("w", whole_slice(w.dims), window, ignore),
               "damaged: the hash of the 1048576 bytes at offset 18874368");
}

TEST(Checkpoint, a_damaged_newest_is_reported_and_skipped) {
  const ScratchFolder folder;
  EXPECT_FALSE(testing::newest_complete(folder.path() / "absent").entry.has_value());
  for (const int64_t step : {10, 9, 30, 20}) save(folder.path(), step);
  save(folder.path(), 40, false);
  EXPECT_EQ(testing::newest_complete(folder.path()).entry->step, 30);
  EXPECT_TRUE(testing::newest_complete(folder.path()).skipped.empty());
  flip(folder.path() / "step-30" / "shard-00000.safetensors", 200);
  fs::remove(folder.path() / "step-20" / "shard-00000.safetensors");
  fs::create_directories(folder.path() / "step-50");
  fs::copy(folder.path() / "step-10", folder.path() / "step-60");
  EXPECT_EQ(testing::newest_complete(folder.path(), testing::VerifyDepth::kManifest).entry->step,
            30);
  const auto newest = testing::newest_complete(folder.path());
  ASSERT_TRUE(newest.entry.has_value());
  EXPECT_EQ(newest.entry->step, 10);
  ASSERT_EQ(newest.skipped.size(), 4U);
  EXPECT_NE(newest.skipped[0].find("the manifest is that of step 10"), std::string::npos);
  EXPECT_NE(newest.skipped[1].find("there is no manifest.json"), std::string::npos);
  EXPECT_NE(newest.skipped[2].find("damaged"), std::string::npos);
  EXPECT_NE(newest.skipped[3].find("is absent"), std::string::npos);
}

TEST(Checkpoint, swapped_and_truncated_shards_are_refused) {
  const ScratchFolder folder;
  const fs::path one = save(folder.path(), 1) / "shard-00000.safetensors";
  const fs::path two = save(folder.path(), 2) / "shard-00000.safetensors";
  const std::string good = read_file(two);
  fs::copy_file(one, two, fs::copy_options::overwrite_existing);
  EXPECT_ERROR(CheckpointReader(two.parent_path()).verify(), "damaged");
  for (const size_t size : {size_t{0}, size_t{63}, size_t{64}, good.size() - 1}) {
    write_text(two, good.substr(0, size));
    EXPECT_ERROR(CheckpointReader(two.parent_path()), "the manifest says");
  }
  write_text(two, good + "x");
  EXPECT_ERROR(CheckpointReader(two.parent_path()), "the manifest says");
}

TEST(Checkpoint, purge_keeps_the_newest_complete_ones) {
  const ScratchFolder folder;
  for (const int64_t step : {1, 2, 3, 4, 5}) save(folder.path(), step);
  fs::remove(folder.path() / "step-5" / "manifest.json");
  EXPECT_TRUE(purge(folder.path(), 0, 4).empty());
  EXPECT_EQ(purge(folder.path(), 2, 4).size(), 2U);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-3", "step-4", "step-5"}));
  EXPECT_TRUE(purge(folder.path(), 1, 3).empty());
  save_hf_weights(folder.path() / "step-6", state(1));
  EXPECT_EQ(purge(folder.path(), 2, 6).size(), 1U);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-4", "step-5", "step-6"}));
}

TEST(Checkpoint, saving_a_step_again_replaces_it) {
  const ScratchFolder folder;
  save(folder.path(), 7, false);
  save(folder.path(), 7, true);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-7"});
  EXPECT_EQ(list_checkpoints(folder.path())[0].kind, CheckpointKind::kResumable);
}

TEST(Checkpoint, leftovers_of_dead_jobs_are_swept) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "step-3.tmp-1-2");
  fs::create_directories(folder.path() / "step-4.replaced-1-2");
  save(folder.path(), 5);
  fs::create_directories(folder.path() / "step-5.replaced-1-2");
  fs::create_directories(folder.path() / "other.tmp-1");
  save(folder.path(), 6);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"other.tmp-1", "step-4", "step-5", "step-6"}));
}

TEST(Checkpoint, an_abandoned_writer_leaves_nothing) {
  const ScratchFolder folder;
  { CheckpointWriter writer(folder.path(), 5); }
  EXPECT_TRUE(names_in(folder.path()).empty());
  CheckpointWriter writer(folder.path(), 6);
  writer.add("w", {.dtype = DType::kF32, .dims = {4}},
             {.box = whole_box({4}), .begin = 0, .end = 3}, pattern("w", DType::kF32, {3}));
  const ShardSummary shard = writer.finish_shard();
  EXPECT_THROW(writer.commit(std::vector{shard}, info_at(6)), Bug);
}

TEST(Foreign, pickles_are_refused_with_the_remedy) {
  const ScratchFolder folder;
  const fs::path dcp = folder.path() / "step-1";
  fs::create_directories(dcp);
  write_text(dcp / ".metadata", "\x80\x02");
  write_text(dcp / "__0_0.distcp", "PK");
  EXPECT_ERROR(refuse_foreign_checkpoint(dcp), "convert_to_hf.py");
  EXPECT_ERROR(refuse_foreign_checkpoint(dcp / "__0_0.distcp"), "convert_to_hf.py");
  EXPECT_EQ(list_checkpoints(folder.path())[0].kind, CheckpointKind::kUnusable);

  const fs::path hf = folder.path() / "hf";
  fs::create_directories(hf);
  write_text(hf / "pytorch_model.bin", std::string("PK\x03\x04zip", 7));
  EXPECT_ERROR(refuse_foreign_checkpoint(hf), "pytorch_model.bin is a Python pickle");
  EXPECT_ERROR(refuse_foreign_checkpoint(hf / "pytorch_model.bin"), "save_pretrained");
  write_text(hf / "old.pth", std::string("\x80\x02}q", 4));
  EXPECT_ERROR(refuse_foreign_checkpoint(hf / "old.pth"), "old.pth is a Python pickle");
  save_hf_weights(hf, state(1));
  refuse_foreign_checkpoint(hf);
  write_text(folder.path() / "gpt2.bin", std::string(1024, '\0'));
  refuse_foreign_checkpoint(folder.path() / "gpt2.bin");
  EXPECT_ERROR(refuse_foreign_checkpoint(folder.path() / "model.gguf"), "GGUF files are not read");
}

}  // namespace
}  // namespace tokamak

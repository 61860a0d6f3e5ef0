#include <optional>

#include <fmt/format.h>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/checkpoint/formats/weight_names.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/cli/console.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/train/state/hf_model.h"
#include "tokamak/train/state/model_check.h"

namespace tokamak::cli {
namespace {

// Writes a model-only checkpoint in TO/step-0, which it returns, and the config.json that makes it
// readable by itself.
std::filesystem::path to_checkpoint(const ModelFiles& files, const std::filesystem::path& to,
                                    DType dtype, const AssetFiles& assets) {
  CheckpointWriter writer(to, 0);
  for (const TensorSource& t : files.parameters) writer.add(cast(t, dtype));
  const ShardSummary shard = writer.finish_shard();
  const CheckpointInfo info{.step = 0,
                            .resumable = false,
                            .sections = {{"train_state", R"({"step":0,"tokens_seen":0})"}}};
  const auto folder = writer.commit(std::span(&shard, 1), info);
  write_file_atomic(to / "config.json", to_hf_config(files.config, dtype, {}));
  for (const auto& [name, text] : assets) write_file_atomic(to / name, text);
  return folder;
}

// Returns the ids of the tokenizer in `folder`. The files of one that is not read are copied all
// the same.
SpecialIds special_ids_in(const std::filesystem::path& folder, const AssetFiles& files) {
  if (files.empty()) return {};
  try {
    const auto tokenizer = load_tokenizer(folder);
    return {.bos = tokenizer->bos(), .eos = tokenizer->eos()};
  } catch (const Error& error) {
    fmt::print("the tokenizer is copied, but not read: {}\n", error.what());
    return {};
  }
}

}  // namespace

int run_convert(Args args) {
  CLI::App app(
      "Converts weights: Hugging Face folders, checkpoints of ours (the newest of a run's folder) "
      "and\n"
      "Meta-named safetensors in;\n"
      "a Hugging Face folder or a checkpoint out.",
      "tokamak convert");
  std::string from;
  std::string to;
  std::string format = "hf";
  std::string dtype = "float32";
  std::string model;
  std::string tokenizer;
  app.add_option("from", from, "what to read")->required();
  app.add_option("to", to, "the folder to write")->required();
  app.add_option("--to-format", format, "hf or checkpoint")->capture_default_str();
  app.add_option("--dtype", dtype, "float32, bfloat16 or float16")->capture_default_str();
  app.add_option("--model", model, "NAME:FLAVOR where the weights have no config.json");
  app.add_option("--tokenizer", tokenizer,
                 "folder whose tokenizer files are copied; default: beside the weights");
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(format == "hf" || format == "checkpoint",
              "--to-format \"{}\": wanted hf or checkpoint", format);
  const DType type = dtype_from_name(dtype, "--dtype");
  TOK_REQUIRE(is_float(type) && type != DType::kF64,
              "--dtype \"{}\": wanted float32, bfloat16 or float16", dtype);
  TOK_REQUIRE(!path_exists(to) || !path_exists(from) || !std::filesystem::equivalent(from, to),
              "convert: {} is both source and target", to);
  const std::filesystem::path into = replaceable_folder(to, format == "checkpoint" ? "step-0" : "");
  const ModelFiles files = open_model(from, model);
  for (const std::string& note : files.notes) fmt::print("{}\n", note);
  const std::filesystem::path beside =
      tokenizer.empty() ? files.folder : std::filesystem::path(tokenizer);
  AssetFiles assets = tokenizer_files_in(beside);
  const SpecialIds ids = format == "hf" ? special_ids_in(beside, assets) : SpecialIds{};
  assets.merge(generation_config_in(files.folder));
  std::optional<Waiting> waiting(fmt::format("converting to {}", to));
  check_finite(files.parameters, type, from);
  if (format == "checkpoint") {
    const std::filesystem::path written = to_checkpoint(files, into, type, assets);
    waiting.reset();
    fmt::print("wrote the checkpoint {}\n", written.string());
    return 0;
  }
  export_hf_folder(into, files.config, files.parameters, type, ids, assets);
  waiting.reset();
  fmt::print("wrote the Hugging Face folder {}\n", to);
  return 0;
}

}  // namespace tokamak::cli

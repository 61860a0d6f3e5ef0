#include "tests/training_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tokamak/checkpoint/safetensors.h"
#include "tokamak/core/file.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

std::vector<std::string> selected(const std::filesystem::path& path, const Words& keys) {
  std::vector<std::string> lines;
  for (const Json& line : read_json_lines(path)) {
    Json kept;
    for (const std::string& key : keys) kept[key] = line.at(key);
    lines.push_back(kept.dump());
  }
  return lines;
}

}  // namespace

std::filesystem::path oracle_folder(std::string_view model) {
  return std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles" / model;
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Words train_words(std::string_view model, const std::filesystem::path& dump, const Words& more) {
  return Words{TOK_PROGRAM,
               "train",
               "--model.flavor=hf",
               "--model.hf_assets_path=" + oracle_folder(model).string(),
               "--job.dump_folder=" + dump.string(),
               "--training.dataset=synthetic",
               "--training.mixed_precision_param=float32",
               "--training.threads=1",
               "--training.local_batch_size=2",
               "--training.seq_len=32",
               "--training.steps=6",
               "--lr_scheduler.warmup_steps=0",
               "--lr_scheduler.min_lr_factor=1.0",
               "--metrics.log_freq=1"} +
         more;
}

void write_tokens(const std::filesystem::path& path, int64_t count, int64_t vocab_size) {
  std::vector<uint32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t word = random_u32(1, 2, i / 3) % 37;
    ids[i] = static_cast<uint32_t>((word * 5 + i % 3) % static_cast<uint64_t>(vocab_size));
  }
  FileWriter(path).write(std::as_bytes(std::span(ids)));
}

std::vector<Json> read_json_lines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  const std::string text = read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(parse_json(std::string_view(text).substr(begin, end - begin), path.string()));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> timeless_metrics(const std::filesystem::path& dump) {
  return selected(dump / "metrics.jsonl", {"step", "loss", "grad_norm", "lr", "tokens_seen"});
}

std::vector<std::string> timeless_validation(const std::filesystem::path& dump) {
  return selected(dump / "validation.jsonl", {"step", "loss"});
}

std::map<std::string, std::string> read_tensors(const std::filesystem::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& path : list_folder(folder)) {
    if (path.extension() != ".safetensors") continue;
    const SafetensorsFile file(path);
    for (const TensorView& t : file.tensors()) {
      tensors[t.name] = {reinterpret_cast<const char*>(t.data.data()), t.data.size()};
    }
  }
  return tensors;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double diff = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    diff += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(diff / std::max(norm, 1e-60));
}

std::vector<float> to_floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

int64_t count_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace tokamak

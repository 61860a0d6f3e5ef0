#include "tokamak/checkpoint/formats/foreign.h"

#include <string>
#include <string_view>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

bool has_pickle_suffix(const fs::path& path) {
  const std::string suffix = path.extension().string();
  return suffix == ".pth" || suffix == ".pt" || suffix == ".bin" || suffix == ".ckpt" ||
         suffix == ".pkl";
}

// torch.save writes a zip archive; before 1.6 it wrote a bare pickle.
bool holds_pickle(const fs::path& path) {
  const std::string text = read_front(path, 4);
  const bool is_zip = text == "PK\x03\x04";
  const bool is_pickle = text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;
  return is_zip || is_pickle;
}

[[noreturn]] void refuse_distributed(const fs::path& folder) {
  fail(
      "{}: a PyTorch distributed checkpoint (.metadata, *.distcp) holds Python pickles, which are "
      "not read; convert it to safetensors with the program that wrote it, for torchtitan: python "
      "scripts/checkpoint_conversion/convert_to_hf.py {} OUT --model_name llama3 --model_flavor "
      "FLAVOR, then give OUT",
      folder.string(), folder.string());
}

[[noreturn]] void refuse_pickle(const fs::path& path, const fs::path& file) {
  fail(
      "{}: {} is a Python pickle, which is not read; convert it to safetensors with the program "
      "that wrote it, for Hugging Face models: AutoModelForCausalLM.from_pretrained(IN)"
      ".save_pretrained(OUT) in Python with transformers, then give OUT",
      path.string(), file.filename().string());
}

[[noreturn]] void refuse_gguf(const fs::path& path) {
  fail(
      "{}: GGUF files are not read; give the folder with safetensors from which it was made, which "
      "llama.cpp converts again after training",
      path.string());
}

bool is_usable(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".safetensors") || name == "model.safetensors.index.json" ||
         name == "manifest.json";
}

}  // namespace

void refuse_foreign_checkpoint(const fs::path& path) {
  if (path.extension() == ".distcp") refuse_distributed(path.parent_path());
  if (path.extension() == ".gguf") refuse_gguf(path);
  if (has_pickle_suffix(path) && holds_pickle(path)) {
    refuse_pickle(path, path);
  }
  if (!is_folder(path)) return;
  fs::path pickle;
  fs::path gguf;
  bool usable = false;
  for (const fs::path& file : list_folder(path)) {
    if (file.filename() == ".metadata" || file.extension() == ".distcp") refuse_distributed(path);
    usable = usable || is_usable(file);
    if (file.extension() == ".gguf") gguf = file;
    if (has_pickle_suffix(file) && holds_pickle(file)) pickle = file;
  }
  if (!usable && !gguf.empty()) refuse_gguf(gguf);
  if (!usable && !pickle.empty()) refuse_pickle(path, pickle);
}

}  // namespace tokamak

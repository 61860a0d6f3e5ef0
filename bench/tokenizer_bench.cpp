// MB/s of encoding, decoding, loading and training. Text: the files of TOK_BENCH_TEXT (a folder),
// else this repository's own. `bench/tokenizer_peer.py` measures Hugging Face on the same files.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <benchmark/benchmark.h>

#include "tokamak/core/file.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = size_t{8} << 20U;

bool is_text(const fs::path& path) {
  const std::string extension = path.extension().string();
  for (const char* known : {".md", ".txt", ".h", ".cpp", ".py"}) {
    if (extension == known) return true;
  }
  return false;
}

const std::string& text() {
  static const std::string kText = [] {
    const char* folder = std::getenv("TOK_BENCH_TEXT");
    std::vector<fs::path> paths;
    const fs::path root = folder != nullptr ? folder : TOK_SOURCE_DIR;
    for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
      if (it->path().filename() == "build" || it->path().filename() == ".git") {
        it.disable_recursion_pending();
      } else if (it->is_regular_file() && is_text(it->path())) {
        paths.push_back(it->path());
      }
    }
    std::sort(paths.begin(), paths.end());
    std::string all;
    for (const fs::path& path : paths) {
      if (all.size() < kMaxText) all += read_file(path);
    }
    return all;
  }();
  return kText;
}

const TokenizerFiles& files(SplitRule split) {
  const auto make = [](SplitRule rule) {
    const std::string_view documents[] = {text()};
    return train_bpe(documents, {.vocab_size = 8192, .split = rule});
  };
  static const TokenizerFiles kGpt2 = make(SplitRule::kGpt2);
  static const TokenizerFiles kLlama3 = make(SplitRule::kLlama3);
  return split == SplitRule::kGpt2 ? kGpt2 : kLlama3;
}

void encode(benchmark::State& state, std::string_view input, SplitRule split) {
  const auto tokenizer = files(split).parse("bench");
  std::vector<int32_t> ids;
  for ([[maybe_unused]] auto _ : state) {
    ids.clear();
    tokenizer->encode(input, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(input.size()) * state.iterations());
  state.counters["bytes_per_id"] =
      static_cast<double>(input.size()) / static_cast<double>(ids.size());
}

void encode_text_llama3(benchmark::State& state) {
  encode(state, text(), SplitRule::kLlama3);
}

void encode_text_gpt2(benchmark::State& state) {
  encode(state, text(), SplitRule::kGpt2);
}

void encode_one_letter(benchmark::State& state) {
  encode(state, std::string(static_cast<size_t>(state.range(0)) << 20U, 'a'), SplitRule::kLlama3);
}

void encode_spaces(benchmark::State& state) {
  encode(state, std::string(static_cast<size_t>(state.range(0)) << 20U, ' '), SplitRule::kLlama3);
}

void encode_marks(benchmark::State& state) {
  std::string marks;
  while (marks.size() < static_cast<size_t>(state.range(0)) << 20U) marks += "\u0301";
  encode(state, marks, SplitRule::kLlama3);
}

void decode_text(benchmark::State& state) {
  const auto tokenizer = files(SplitRule::kLlama3).parse("bench");
  std::vector<int32_t> ids;
  tokenizer->encode(text(), ids);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(tokenizer->decode(ids));
  state.SetBytesProcessed(static_cast<int64_t>(text().size()) * state.iterations());
}

void load_json(benchmark::State& state) {
  const TokenizerFiles& json = files(SplitRule::kLlama3);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(json.parse("bench"));
  state.SetBytesProcessed(static_cast<int64_t>(json.tokenizer_json.size()) * state.iterations());
}

void train_2048(benchmark::State& state) {
  const std::string_view documents[] = {std::string_view(text()).substr(0, 2 << 20)};
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(train_bpe(documents, {.vocab_size = 2048}));
  }
  state.SetBytesProcessed(static_cast<int64_t>(documents[0].size()) * state.iterations());
}

BENCHMARK(encode_text_llama3)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_text_gpt2)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_one_letter)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_spaces)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_marks)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_text)->Unit(benchmark::kMillisecond);
BENCHMARK(load_json)->Unit(benchmark::kMillisecond);
BENCHMARK(train_2048)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tokamak

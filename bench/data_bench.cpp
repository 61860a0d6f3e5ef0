// Measures MB/s of text and tokens/s of windows on files that it makes in the temporary folder.

#include <filesystem>
#include <fstream>

#include <benchmark/benchmark.h>
#include <unistd.h>
#include <zlib.h>

#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/loader.h"
#include "tokamak/data/shakespeare.h"
#include "tokamak/data/text_reader.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTextBytes = size_t{16} << 20;

class BenchFolder {
 public:
  BenchFolder()
      : path_(fs::temp_directory_path() / ("tokamak_bench_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    const auto source = shakespeare_tokens();
    std::vector<int32_t> ids(*source->size());
    source->read(0, ids);
    const std::string text = shakespeare_tokenizer()->decode(ids);
    std::string lines;
    for (size_t at = 0; lines.size() < kTextBytes; at = (at + 2000) % (text.size() - 2000)) {
      lines += "{\"text\": \"" + escaped(text.substr(at, 2000)) + "\", \"url\": \"none\"}\n";
    }
    std::ofstream(path_ / "a.jsonl", std::ios::binary) << lines;
    gzFile packed = gzopen((path_ / "b.jsonl.gz").c_str(), "wb6");
    gzwrite(packed, lines.data(), static_cast<unsigned>(lines.size()));
    gzclose(packed);
  }

  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;

  ~BenchFolder() { fs::remove_all(path_); }

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '\n') out += "\\n";
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<uint8_t>(c) >= 32 && static_cast<uint8_t>(c) < 128) out += c;
    }
    return out;
  }

  fs::path path_;
};

const BenchFolder& folder() {
  static const BenchFolder kFolder;
  return kFolder;
}

void read_json_lines(benchmark::State& state, const char* name) {
  const auto files = list_text_files("c4", folder() / name).files;
  for (auto _ : state) {
    TextReader reader(TextFormat::kJsonLines, files);
    for (TextPiece piece; reader.next(piece);) benchmark::DoNotOptimize(piece.text.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(kTextBytes) * state.iterations());
}

void make_cache(benchmark::State& state) {
  const auto tokenizer = shakespeare_tokenizer();
  const DataOptions options{.dataset = "c4",
                            .path = folder() / "a.jsonl",
                            .cache_folder = folder() / "cache",
                            .tokenizer = tokenizer.get()};
  for (auto _ : state) {
    fs::remove_all(options.cache_folder);
    build_token_cache(options, static_cast<int>(state.range(0)), [](const CacheProgress&) {});
  }
  state.SetBytesProcessed(static_cast<int64_t>(kTextBytes) * state.iterations());
}

void read_windows(benchmark::State& state, const char* dataset) {
  Loader loader({.dataset = dataset, .seq_len = 2048, .global_batch_size = 8, .vocab_size = 2048});
  for (auto _ : state) benchmark::DoNotOptimize(loader.next().tokens.data());
  state.SetItemsProcessed(state.iterations() * 8 * 2048);
}

BENCHMARK_CAPTURE(read_json_lines, plain, "a.jsonl")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_json_lines, gzip, "b.jsonl.gz")->Unit(benchmark::kMillisecond);
BENCHMARK(make_cache)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(read_windows, synthetic, "synthetic")->UseRealTime();
BENCHMARK_CAPTURE(read_windows, shakespeare, "shakespeare")->UseRealTime();

}  // namespace
}  // namespace tokamak

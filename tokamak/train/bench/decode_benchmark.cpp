#include "tokamak/train/bench/decode_benchmark.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/random.h"
#include "tokamak/core/timing.h"
#include "tokamak/models/model.h"
#include "tokamak/train/generator.h"

namespace tokamak {
namespace {

// Random numbers that are repeated: more than any cache holds.
constexpr int64_t kBlock = int64_t{1} << 22U;

std::vector<std::byte> random_block(DType dtype) {
  std::vector<float> block(kBlock);
  for (int64_t i = 0; i < kBlock; ++i)
    block[i] = static_cast<float>(0.04 * (to_uniform(random_u32(1, 2, i)) - 0.5));
  return read_all(cast(
      source_of({.name = "", .dims = {kBlock}, .data = std::as_bytes(std::span(block))}), dtype));
}

// Reads the block over and over.
TensorSource repeated(const StateDecl& decl, const std::vector<std::byte>& block) {
  const int64_t size = size_of(decl.type.dtype);
  return {.name = decl.name,
          .dtype = decl.type.dtype,
          .dims = decl.type.dims,
          .read = [&block, size](int64_t first, std::span<std::byte> out) {
            const auto all = static_cast<int64_t>(block.size());
            int64_t at = first * size % all;
            while (!out.empty()) {
              const auto n = std::min<size_t>(out.size(), all - at);
              std::memcpy(out.data(), block.data() + at, n);
              out = out.subspan(n);
              at = 0;
            }
          }};
}

std::vector<TensorSource> random_parameters(const ModelSpec& model, DType dtype,
                                            const std::vector<std::byte>& block) {
  StateTable states;
  Graph graph(states);
  Parameters parameters(graph, dtype, dtype);
  const StateId tokens = states.declare({.name = "tokens",
                                         .type = {.dtype = DType::kI32, .dims = {1, 1}},
                                         .kind = StateKind::kInput});
  const Value ids = graph.read(tokens);
  build_model(graph, parameters, model, {.tokens = ids, .positions = ids}, 0);
  std::vector<TensorSource> all;
  for (const Parameter& p : parameters.all()) all.push_back(repeated(states[p.state], block));
  return all;
}

}  // namespace

DecodeBenchmark benchmark_decode(const ModelSpec& model, DType dtype, int64_t length,
                                 int64_t tokens, int64_t batch, Backend& backend) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::byte> block = random_block(dtype);
  Generator generator(model, random_parameters(model, dtype, block), dtype, length + tokens,
                      backend, batch);
  std::vector<Prompt> prompts(batch, {.tokens = std::vector<int32_t>(length),
                                      .sampling = {.max_new_tokens = tokens, .temperature = 0.0}});
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < length; ++i)
      prompts[b].tokens[i] = static_cast<int32_t>((7919 * i + 13 + 31 * b) % model.vocab_size);
  }
  std::vector<double> seconds;
  double prompt_seconds = 0.0;
  auto before = Clock::now();
  const auto on_token = [&](size_t text, int32_t) {
    if (static_cast<int64_t>(text) + 1 < batch) return true;  // the last text's token ends a step
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - before).count();
    before = now;
    if (prompt_seconds == 0.0) {
      prompt_seconds = passed;
    } else {
      seconds.push_back(passed);
    }
    return true;
  };
  generator.generate(prompts, {}, {.token = on_token});
  return {.seconds = median(std::move(seconds)),
          .prompt_seconds = prompt_seconds,
          .bytes = generator.bytes_per_step(length + tokens / 2)};
}

}  // namespace tokamak

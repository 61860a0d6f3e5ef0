// Against PyTorch: three small models whose logits, gradients and ten AdamW steps were computed
// there (tests/oracles).
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/generator.h"
#include "tokamak/train/state/hf_model.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/state/snapshot.h"

#include "tests/fixtures/key_bias.h"
#include "tests/fixtures/oracle_names.h"

namespace tokamak {
namespace {

std::vector<float> floats(const TensorSource& source) {
  const std::vector<std::byte> bytes = read_all(source);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double diff = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    diff += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(diff / std::max(norm, 1e-60));
}

class Oracle : public ::testing::TestWithParam<const char*> {
 protected:
  Oracle()
      : folder_(std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles" / GetParam()),
        config_(parse_hf_config(read_file(folder_ / "config.json"), "config.json")),
        oracle_(folder_ / "oracle.safetensors"),
        facts_(parse_json(read_file(folder_ / "oracle.json"), "oracle.json")) {}

  TensorSource fact(const std::string& name) const {
    const TensorView* view = oracle_.find(name);
    EXPECT_NE(view, nullptr) << name;
    return source_of(*view);
  }

  // Tokens [10, batch, seq + 1].
  std::vector<int32_t> tokens() const {
    const std::vector<std::byte> bytes = read_all(fact("tokens"));
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    return ids;
  }

  int64_t batch() const { return facts_["batch"].get<int64_t>(); }

  int64_t seq_len() const { return facts_["seq"].get<int64_t>(); }

  RunShape shape() const {
    return {
        .training = {.batch = batch(), .seq_len = seq_len(), .optimizer = {.weight_decay = 0.1}}};
  }

  // Compares sources of ours, exported, with the oracle's tensors PREFIX.NAME.
  void expect_near(const std::vector<TensorSource>& ours, const std::string& prefix,
                   double bound) const {
    int compared = 0;
    for (const TensorSource& t : parameters_to_hf(config_, ours)) {
      const TensorView* want = oracle_.find(prefix + "." + t.name);
      ASSERT_NE(want, nullptr) << prefix << "." << t.name;
      ASSERT_EQ(t.dims, want->dims) << t.name;
      EXPECT_LT(relative_error(without_key_bias(t.name, floats(t)),
                               without_key_bias(t.name, floats(source_of(*want)))),
                bound)
          << prefix << "." << t.name;
      ++compared;
    }
    EXPECT_GT(compared, 10);
  }

  std::filesystem::path folder_;
  ModelSpec config_;
  SafetensorsFile oracle_;
  Json facts_;
};

// Every State of `kind`.
std::vector<TensorSource> state_sources(const StateAccess& access, StateKind kind) {
  std::vector<TensorSource> sources;
  for (const StateId id : access.states().of_kind(kind)) {
    const StateDecl& decl = access.states()[id];
    const int64_t size = size_of(decl.type.dtype);
    sources.push_back({.name = decl.name,
                       .dtype = decl.type.dtype,
                       .dims = decl.type.dims,
                       .read = [access, id, size](int64_t first, std::span<std::byte> out) {
                         access.read_at(id, first * size, out);
                       }});
  }
  return sources;
}

TEST_P(Oracle, ten_steps_equal_pytorch) {
  const auto backend = cpu::make_backend();
  const PlannedRun run(config_, shape(), backend->target());
  const Plan* plans[] = {&run.plan()};
  const Memory memory(*backend, plans);
  const StateAccess access(memory, run.states(), run.layout());
  Executor executor(run.plan(), memory);
  load_parameters(access, whole_pieces(run.states()), open_weights(config_, folder_));
  make_copies(run, memory);
  const auto ids = tokens();
  const int64_t B = batch();
  const int64_t S = seq_len();
  const float scale[] = {1.0F / static_cast<float>(B * S)};
  access.write(run.step().loss_scale, std::span<const float>(scale));
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<int32_t> x;
    std::vector<int32_t> y;
    std::vector<int32_t> positions;
    for (int64_t r = 0; r < B; ++r) {
      const auto row = ids.begin() + (step * B + r) * (S + 1);
      x.insert(x.end(), row, row + S);
      y.insert(y.end(), row + 1, row + S + 1);
      for (int64_t s = 0; s < S; ++s) positions.push_back(static_cast<int32_t>(s));
    }
    access.write(run.step().tokens, std::span<const int32_t>(x));
    access.write(run.step().labels, std::span<const int32_t>(y));
    access.write(run.step().positions, std::span<const int32_t>(positions));
    const double t = static_cast<double>(step + 1);
    const double scalars[] = {1e-3, 1.0 - std::pow(0.9, t), 1.0 - std::pow(0.95, t), 1.0 * t};
    access.write(run.step().scalars, std::span<const double>(scalars));
    for (const ScheduleItem& item : run.plan().schedule(1)) executor.run(item);
    if (step == 0) {
      std::vector<TensorSource> gradients;
      for (TensorSource& g : state_sources(access, StateKind::kGradient)) {
        gradients.push_back(renamed(g, g.name.substr(std::string("grad.").size())));
      }
      expect_near(gradients, "grad.step0", 1e-4);
    }
    const Json& want = facts_["steps"][static_cast<size_t>(step)];
    EXPECT_NEAR(access.read<double>(run.step().loss)[0], want["loss"].get<double>(), 2e-5)
        << "step " << step + 1;
    const double norm = want["grad_norm"].get<double>();
    EXPECT_NEAR(access.read<double>(run.step().grad_norm)[0], norm, 1e-4 * norm)
        << "step " << step + 1;
  }
  expect_near(state_sources(access, StateKind::kParameter), "param.final", 1e-4);
}

// The generator's KV cache, fed token by token and by chunks, against PyTorch's logits.
TEST_P(Oracle, logits_equal_pytorch) {
  const auto backend = cpu::make_backend();
  const TensorSource logits = fact("logits.step0");
  const int64_t S = logits.dims[1];
  const int64_t V = logits.dims[2];
  const auto want = floats(logits);
  const auto ids = tokens();
  Generator generator(config_, open_weights(config_, folder_), DType::kF32, S, *backend);
  double worst = 0.0;
  for (int64_t row = 0; row < logits.dims[0]; ++row) {
    const std::span<const int32_t> text(ids.data() + row * (seq_len() + 1), static_cast<size_t>(S));
    const auto check = [&](const std::vector<float>& got, int64_t s) {
      const auto at = want.begin() + (row * S + s) * V;
      worst = std::max(worst, relative_error(got, std::vector<float>(at, at + V)));
    };
    check(generator.logits_after(text), S - 1);
    for (int64_t s = 0; s < std::min<int64_t>(S, 20); ++s)
      check(generator.logits_after(text.subspan(static_cast<size_t>(s), 1), s), s);
  }
  EXPECT_LT(worst, 2e-5);
}

class GreedyOracle : public Oracle {};

TEST_P(GreedyOracle, tokens_equal_pytorch) {
  const auto prompt = facts_["greedy"]["prompt"].get<std::vector<int32_t>>();
  const auto want = facts_["greedy"]["new"].get<std::vector<int32_t>>();
  const auto count = static_cast<int64_t>(want.size());
  const auto backend = cpu::make_backend();
  Generator generator(config_, open_weights(config_, folder_), DType::kF32,
                      static_cast<int64_t>(prompt.size()) + count, *backend);
  std::vector<int32_t> got;
  const Prompt one{.tokens = prompt, .sampling = {.max_new_tokens = count, .temperature = 0.0}};
  const auto on_token = [&](size_t, int32_t id) {
    got.push_back(id);
    return true;
  };
  generator.generate(std::span(&one, 1), {}, {.token = on_token});
  EXPECT_EQ(got, want);
}

// Texts of several lengths, of which some end while others go on, greedily and by drawing.
TEST_P(Oracle, batches_make_the_tokens_of_one_by_one) {
  const auto backend = cpu::make_backend();
  const auto ids = tokens();
  constexpr int64_t kCapacity = 48;
  std::vector<Prompt> prompts;
  for (const int64_t length : {9, 1, 30, 17, 2, 5, 40, 23}) {
    const auto i = static_cast<int64_t>(prompts.size());
    Prompt prompt{.tokens = {ids.begin() + i, ids.begin() + i + length}};
    prompt.sampling = {.max_new_tokens = 4 + 5 * (i % 3),
                       .temperature = i % 2 == 0 ? 0.0 : 1.0,
                       .seed = static_cast<uint64_t>(i)};
    prompts.push_back(prompt);
  }
  using Texts = std::vector<std::vector<int32_t>>;
  const auto made_by = [&](int64_t batch, const std::vector<int32_t>& eos,
                           std::vector<TextEnd>& ends) {
    Generator generator(config_, open_weights(config_, folder_), DType::kF32, kCapacity, *backend,
                        batch);
    Texts texts(prompts.size());
    ends.assign(prompts.size(), TextEnd::kStopped);
    const TextEvents events{.token =
                                [&](size_t text, int32_t id) {
                                  texts[text].push_back(id);
                                  return true;
                                },
                            .end = [&](size_t text, TextEnd why) { ends[text] = why; }};
    const GenerationTimes times = generator.generate(prompts, eos, events);
    EXPECT_EQ(times.prompt_tokens, 127);
    return texts;
  };
  std::vector<TextEnd> want_ends;
  const Texts want = made_by(1, {}, want_ends);
  for (size_t i = 0; i < want.size(); ++i) {
    const auto room = kCapacity - static_cast<int64_t>(prompts[i].tokens.size()) + 1;
    EXPECT_EQ(want[i].size(), std::min(prompts[i].sampling.max_new_tokens, room));
    EXPECT_EQ(want_ends[i], TextEnd::kLength);
  }
  std::vector<TextEnd> ends;
  for (const int64_t batch : {3, 8}) EXPECT_EQ(made_by(batch, {}, ends), want);
  const std::vector<int32_t> eos{want[0].back(), kCapacity + 1000};
  const Texts until_eos = made_by(1, eos, want_ends);
  EXPECT_LT(until_eos[0].size(), want[0].size());
  EXPECT_EQ(want_ends[0], TextEnd::kEos);
  EXPECT_EQ(made_by(3, eos, ends), until_eos);
  EXPECT_EQ(ends, want_ends);
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Oracle, oracle_names(),
                         [](const auto& of) { return std::string(of.param); });

INSTANTIATE_TEST_SUITE_P(PyTorch, GreedyOracle,
                         ::testing::Values("llama_biased", "mistral_tiny", "qwen2_tiny",
                                           "qwen3_tiny", "qwen3_biased", "mistral_window",
                                           "qwen2_window", "qwen3_window", "llama_linear",
                                           "llama_dynamic", "llama_yarn", "llama_longrope",
                                           "gpt2_scaled", "gpt2_unscaled", "gemma_tiny",
                                           "gemma2_tiny", "gemma3_tiny", "gemma3_pattern",
                                           "gemma3_vision"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tokamak

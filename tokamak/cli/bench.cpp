#include <optional>

#include <fmt/format.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/config/config.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/cpu/peak.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/train/bench/benchmark.h"
#include "tokamak/train/bench/decode_benchmark.h"

namespace tokamak::cli {
namespace {

void print(const StepBenchmark& b, const ModelSpec& model, const std::string& dtype,
           const std::string& float8, bool float8_head, std::optional<double> gemm_peak) {
  const double wall_s = b.summary.wall_s;
  double gemm_flops = 0.0;
  for (const OpTime& op : b.ops) gemm_flops += op.kind == Cost::Kind::kGemm ? op.flops : 0.0;
  const double gemm_s = b.summary.parts[StepSummary::kGemm].seconds;
  const double attention_s = b.summary.parts[StepSummary::kAttention].seconds;
  const double gemm_rate = gemm_flops / gemm_s;
  fmt::print("{}{}", to_text(b.ops, wall_s), to_text(b.summary));
  fmt::print(
      "step {:.3f} s (median of {}; the host's part {:.3f} s), {:.1f} tok/s; GEMM at {:.0f} "
      "GFLOP/s{}\n",
      b.median_step_s(), b.step_s.size(), b.median_host_s(), b.tokens_per_s(), 1e-9 * gemm_rate,
      gemm_peak ? fmt::format(" of {:.0f} peak", 1e-9 * *gemm_peak) : "");
  Json line{{"bench", "model"},
            {"parameters", count_parameters(model).total},
            {"dtype", dtype},
            {"float8", float8},
            {"float8_head", float8_head},
            {"tokens_per_step", b.tokens_per_step},
            {"step_s", b.median_step_s()},
            {"host_s", b.median_host_s()},
            {"tps", b.tokens_per_s()},
            {"gemm_share", gemm_s / wall_s},
            {"attention_share", attention_s / wall_s},
            {"idle_share", b.summary.parts[StepSummary::kIdle].seconds / wall_s},
            {"gemm_gflops", 1e-9 * gemm_rate},
            {"planned_bytes", b.peak_bytes}};
  if (gemm_peak) line["peak_gflops"] = 1e-9 * *gemm_peak;
  fmt::print("{}\n", line.dump());
}

// Returns the rates that floors are computed from; on a CPU the matmul rate is that of this moment.
DeviceRates rates_now(const Backend& backend, DType compute, std::optional<double> gemm_peak) {
  DeviceRates rates = rates_of(backend);
  if (is_gpu(backend) || !gemm_peak) return rates;
  (compute == DType::kBF16 ? rates.gemm_flops_bf16 : rates.gemm_flops_f32) = *gemm_peak;
  return rates;
}

// Data sheets of GPUs give only bf16.
std::optional<double> gemm_peak(const Backend& backend, DType compute) {
  if (!is_gpu(backend)) return cpu::measure_gemm_peak(compute);
  const auto peak = compute == DType::kBF16 ? peak_flops(backend, compute) : std::nullopt;
  return peak ? std::optional(peak->per_s) : std::nullopt;
}

// Quantizes all matmuls of blocks that can be, and the head on request; "" leaves them in the
// compute dtype.
LowPrecision low_precision_of_words(const std::string& recipe, bool with_head) {
  TOK_REQUIRE(!recipe.empty() || !with_head, "--float8-head: wanted --float8 RECIPE with it");
  if (recipe.empty()) return {};
  TOK_REQUIRE(
      find_float8_recipe(recipe),
      "--float8 \"{}\": wanted tensorwise, delayed, rowwise, rowwise_with_gw_hp or blockwise",
      recipe);
  Config config;
  config.model.converters = {"quantize.linear.float8"};
  config.quantize.linear.float8.recipe_name = recipe;
  if (!with_head) config.quantize.linear.float8.filter_fqns = {"output"};
  return low_precision_of(config);
}

StepBenchmark time_steps(const ModelSpec& model, const RunShape& shape, int64_t warmup,
                         int64_t steps, std::optional<double> peak, OpGrouping grouping,
                         Backend& backend) {
  const DType compute = shape.training.compute;
  std::optional<Waiting> waiting("planning");
  const PlannedRun run(model, shape, backend.target());
  waiting.reset();
  fmt::print("{} parameters, {}, batch {} x {}, {}, {:.2f} GiB planned\n",
             count_parameters(model).total, name_of(compute), shape.training.batch,
             shape.training.seq_len, device_text(backend), gib(run.peak_bytes()));
  std::fflush(stdout);
  waiting.emplace(fmt::format("timing {} step{}", warmup + steps, warmup + steps > 1 ? "s" : ""));
  return benchmark_step(run, warmup, steps, backend, rates_now(backend, compute, peak), grouping);
}

int run_bench_model(Args args) {
  CLI::App app("Times a training step on random tokens.", "tokamak bench model");
  std::string flavor;
  std::string dtype = "both";
  std::string float8;
  bool float8_head = false;
  std::string mode = "none";
  ModelSpec c = flavor_spec("llama2", "271M");
  c.dim = 768;
  c.num_layers = 12;
  c.num_heads = 12;
  c.num_kv_heads = 0;
  c.mlp_dim = 2048;
  c.vocab_size = 16384;
  int64_t batch = 4;
  int64_t seq_len = 512;
  int64_t warmup = 1;
  int64_t steps = 5;
  int threads = 0;
  std::string device = "auto";
  bool by_shape = false;
  app.add_option("--model", flavor, "NAME:FLAVOR instead of the sizes below");
  app.add_option("--layers", c.num_layers, "")->capture_default_str();
  app.add_option("--dim", c.dim, "")->capture_default_str();
  app.add_option("--heads", c.num_heads, "")->capture_default_str();
  app.add_option("--kv-heads", c.num_kv_heads, "0 = heads")->capture_default_str();
  app.add_option("--mlp", c.mlp_dim, "")->capture_default_str();
  app.add_option("--vocab", c.vocab_size, "")->capture_default_str();
  app.add_option("--batch", batch, "")->capture_default_str();
  app.add_option("--seq-len", seq_len, "")->capture_default_str();
  app.add_option("--dtype", dtype, "float32, bfloat16 or both")->capture_default_str();
  app.add_option(
      "--float8", float8,
      "matmuls of blocks in fp8: tensorwise, delayed, rowwise, rowwise_with_gw_hp or blockwise");
  app.add_flag("--float8-head", float8_head, "the head in fp8 too");
  app.add_option("--recompute", mode, "none or full")->capture_default_str();
  app.add_option("--warmup", warmup, "")->capture_default_str();
  app.add_option("--steps", steps, "")->capture_default_str();
  app.add_option("--threads", threads, "of a CPU; 0 = all")->capture_default_str();
  app.add_option("--device", device, kDeviceHelp)->capture_default_str();
  app.add_flag("--by-shape", by_shape, "a row for each op, variant and shape");
  if (!parse(app, args)) return 0;
  if (!flavor.empty()) {
    c = spec_of_word(flavor);
  } else {
    if (c.num_kv_heads == 0) c.num_kv_heads = c.num_heads;
    TOK_REQUIRE(c.num_heads > 0 && c.dim % c.num_heads == 0 && c.num_heads % c.num_kv_heads == 0,
                "--heads {}, --kv-heads {} do not divide --dim {}", c.num_heads, c.num_kv_heads,
                c.dim);
    c.head_dim = c.dim / c.num_heads;
  }
  TOK_REQUIRE(mode == "none" || mode == "full", "--recompute \"{}\": wanted none or full", mode);
  TOK_REQUIRE(dtype == "both" || dtype == "float32" || dtype == "bfloat16",
              "--dtype \"{}\": wanted float32, bfloat16 or both", dtype);
  TOK_REQUIRE(batch >= 1 && seq_len >= 1 && steps >= 1 && warmup >= 0,
              "--batch {} --seq-len {} --steps {} --warmup {}: wanted 1 or more, of warmup 0",
              batch, seq_len, steps, warmup);
  const auto backend = open_backend({.device = device, .threads = threads});
  for (const std::string one : {"float32", "bfloat16"}) {
    if (dtype != "both" && dtype != one) continue;
    RunShape shape{.training = {.batch = batch,
                                .seq_len = seq_len,
                                .compute = dtype_from_name(one, "--dtype")},
                   .distribute = {.low_precision = low_precision_of_words(float8, float8_head)}};
    if (mode == "full") shape.recompute.mode = RecomputePolicy::Mode::kFull;
    const auto peak = gemm_peak(*backend, shape.training.compute);
    const StepBenchmark b =
        time_steps(c, shape, warmup, steps, peak,
                   by_shape ? OpGrouping::kByShape : OpGrouping::kByOp, *backend);
    print(b, c, one, float8, float8_head, peak);
  }
  return 0;
}

int run_bench_decode(Args args) {
  CLI::App app("Times the making of one token after another, with random weights.",
               "tokamak bench decode");
  std::string flavor;
  std::string dtype = "auto";
  std::string device = "auto";
  int64_t context = 1024;
  int64_t tokens = 64;
  int64_t batch = 1;
  int threads = 0;
  app.add_option("model", flavor, "NAME:FLAVOR, as llama3:8B")->required();
  app.add_option("--batch", batch, "texts that grow at once")->capture_default_str();
  app.add_option("--context", context, "tokens before those that are timed")->capture_default_str();
  app.add_option("--tokens", tokens, "tokens to make")->capture_default_str();
  app.add_option("--dtype", dtype, "float32 or bfloat16; auto = bfloat16 on a GPU")
      ->capture_default_str();
  app.add_option("--threads", threads, "of a CPU; 0 = all")->capture_default_str();
  app.add_option("--device", device, kDeviceHelp)->capture_default_str();
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(context >= 1 && tokens >= 2, "--context {} --tokens {}: wanted 1 and 2 or more",
              context, tokens);
  TOK_REQUIRE(batch >= 1, "--batch {}: wanted 1 or more", batch);
  const ModelSpec model = spec_of_word(flavor);
  const DType type = compute_dtype(dtype, device);
  const auto backend = open_backend({.device = device, .threads = threads});
  std::optional<Waiting> waiting(fmt::format("timing {} tokens", tokens));
  const DecodeBenchmark b = benchmark_decode(model, type, context, tokens, batch, *backend);
  waiting.reset();
  const double rate = static_cast<double>(b.bytes) / b.seconds;
  fmt::print("{} {}, {}, after {} tokens, {} at once, {}\n", model.name, model.flavor,
             name_of(type), context, batch, device_text(*backend));
  fmt::print("prompt   {:.3f} s\n", b.prompt_seconds);
  fmt::print("step     {:.3f} ms = {:.1f} tokens/s\n", 1e3 * b.seconds,
             static_cast<double>(batch) / b.seconds);
  fmt::print("reads    {:.3f} GB = {:.1f} GB/s", static_cast<double>(b.bytes) / 1e9, rate / 1e9);
  if (const double floor = rates_of(*backend).bytes_per_s; floor > 0.0)
    fmt::print(", {:.0f} % of the rate of its large copies", 100.0 * rate / floor);
  fmt::print("\n");
  return 0;
}

}  // namespace

int run_bench(Args args) {
  const std::string what = args.empty() ? "--help" : args[0];
  if (what == "model") return run_bench_model(args.subspan(1));
  if (what == "decode") return run_bench_decode(args.subspan(1));
  if (what == "op") return run_bench_op(args.subspan(1));
  if (what == "comm") return run_bench_comm(args.subspan(1));
  if (what == "matrix") return run_bench_matrix(args.subspan(1));
  TOK_REQUIRE(what == "--help" || what == "-h",
              "tokamak bench: no \"{}\"; there are model, decode, op, comm and matrix", what);
  fmt::print(
      "usage: tokamak bench model|decode|op|comm|matrix [options]; `tokamak bench model --help` "
      "says more\n");
  return 0;
}

}  // namespace tokamak::cli

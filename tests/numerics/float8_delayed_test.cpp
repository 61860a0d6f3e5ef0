// Tables of delayed scales against Transformer Engine's rule, bit by bit.
#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/float8/amax_history.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"

namespace tokamak {
namespace {

float number_of(const Json& json) {
  if (!json.is_string()) return json.get<float>();
  using Limits = std::numeric_limits<float>;
  return json.get<std::string>() == "inf" ? Limits::infinity() : Limits::quiet_NaN();
}

StateId declare(Graph& g, const std::string& name, DType dtype, Dims dims) {
  return g.states().declare(
      {.name = name, .type = {.dtype = dtype, .dims = std::move(dims)}, .kind = StateKind::kInput});
}

void expect_table(const Json& table) {
  const auto length = table["history_len"].get<int64_t>();
  const DType format = table["format"] == "e4m3" ? DType::kE4M3 : DType::kE5M2;
  const AmaxHistory op{.largest = {largest_of(format)},
                       .margin = table["margin"].get<int>(),
                       .most_recent = table["algo"] == "most_recent"};
  StateTable states;
  Graph g(states);
  const StateId row = declare(g, "row", DType::kF32, {1, 1 + length});
  const StateId amax = declare(g, "amax", DType::kF32, {1});
  const StateId factor = declare(g, "factor", DType::kF32, {1});
  const StateId count = declare(g, "count", DType::kF64, {1});
  const auto out = g.add(op, {g.read(row), g.read(amax), g.read(factor)});
  g.accumulate(out[1], g.read(count), AccumulateMode::kFirstMicrobatch);
  const StateLayout layout = lay_out(states);
  const auto backend = cpu::make_backend({.threads = 1});
  const Plan plan = compile(g, layout, {.target = backend->target()});
  const Plan* plans[] = {&plan};
  const Memory memory(*backend, plans);
  const StateAccess access(memory, states, layout);
  Executor executor(plan, memory, {});
  const std::vector<float> empty(static_cast<size_t>(1 + length));
  access.write(row, std::span<const float>(empty));
  access.write(factor, std::span<const float>(std::vector<float>{1.0F}));
  for (const Json& step : table["steps"]) {
    const std::vector<float> maximum{number_of(step["amax"])};
    access.write(amax, std::span<const float>(maximum));
    for (const ScheduleItem& item : plan.schedule(1)) executor.run(item);
    const std::vector<float> got = access.read<float>(row);
    EXPECT_EQ(std::bit_cast<uint32_t>(got[0]), step["scale_bits"].get<uint32_t>());
    std::vector<float> want;
    for (const Json& value : step["history"]) want.insert(want.begin(), number_of(value));
    want.resize(static_cast<size_t>(length));
    EXPECT_EQ(std::vector<float>(got.begin() + 1, got.end()), want);
  }
}

TEST(Float8Delayed, tables_have_transformer_engines_bits) {
  const auto path = std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/float8/delayed.json";
  const Json oracle = parse_json(read_file(path), "delayed.json");
  ASSERT_EQ(oracle["tables"].size(), 5U);
  for (const Json& table : oracle["tables"]) {
    ASSERT_EQ(table["steps"].size(), 14U);
    expect_table(table);
  }
}

}  // namespace
}  // namespace tokamak

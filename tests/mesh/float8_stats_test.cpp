// fp8.jsonl: what the codes of each site consist of, on one rank and on meshes.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/core/float8.h"

#include "tests/fixtures/mesh_training.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

// Lines by step and site.
using Figures = std::map<std::pair<int64_t, std::string>, Json>;

Config counting_config(const fs::path& dump, const std::string& recipe) {
  Config c = small_config(dump);
  c.model.hf_assets_path = std::string(TOK_SOURCE_DIR) + "/tests/oracles/llama_float8_tensorwise";
  c.model.converters = {"quantize.linear.float8"};
  c.quantize.linear.float8.recipe_name = recipe;
  c.checkpoint.enable = false;
  c.training.steps = 2;
  c.debug.fp8_stats = 1;
  return c;
}

Figures figures_of(const fs::path& dump) {
  Figures figures;
  for (const Json& line : lines_of(dump / "fp8.jsonl")) {
    const auto key = std::pair(line["step"].get<int64_t>(), line["site"].get<std::string>());
    EXPECT_TRUE(figures.emplace(key, line).second) << key.second << " is there twice";
  }
  return figures;
}

// The figures that fp8.jsonl should hold for tensors that share a scale.
struct Counted {
  float amax = 0.0F;
  double zeros = 0.0;
  double largest = 0.0;
};

Counted count_by_hand(const std::vector<std::vector<float>>& tensors) {
  Counted c;
  double total = 0.0;
  for (const auto& values : tensors) {
    for (const float v : values) c.amax = std::max(c.amax, std::abs(v));
  }
  const float scale = float8_scale(c.amax, E4M3::kLargest, false);
  for (const auto& values : tensors) {
    for (const float v : values) {
      const int magnitude = E4M3(v * scale).bits & 0x7F;
      c.zeros += magnitude == 0 ? 1.0 : 0.0;
      c.largest += magnitude == 0x7E ? 1.0 : 0.0;
      total += 1.0;
    }
  }
  c.zeros /= total;
  c.largest /= total;
  return c;
}

TEST(Float8Stats, are_those_of_the_masters_for_weights) {
  const ScratchFolder scratch;
  const Config c = counting_config(scratch.path(), "tensorwise");
  std::map<std::string, Counted> wanted;
  train_on(c, [&](int, Config&, TrainerOptions& options) {
    options.before_step = [&](int64_t step, const StateAccess& access) {
      if (step != 1) return;
      const auto read = [&](const std::string& name) {
        return access.read<float>(access.states().find("model.layers.1." + name + ".weight"));
      };
      wanted["layers.1.qkv.w"] = count_by_hand(
          {read("self_attn.q_proj"), read("self_attn.k_proj"), read("self_attn.v_proj")});
      wanted["layers.1.o.w"] = count_by_hand({read("self_attn.o_proj")});
      wanted["layers.1.gate_up.w"] = count_by_hand({read("mlp.gate_proj"), read("mlp.up_proj")});
      wanted["layers.1.down.w"] = count_by_hand({read("mlp.down_proj")});
    };
  });
  const Figures got = figures_of(scratch.path());
  ASSERT_EQ(wanted.size(), 4U);
  for (const auto& [site, want] : wanted) {
    ASSERT_TRUE(got.contains({1, site})) << site;
    const Json& line = got.at({1, site});
    EXPECT_NEAR(line["amax"].get<double>(), want.amax, 1e-6 * want.amax) << site;
    EXPECT_NEAR(line["scale"].get<double>(), 448.0 / want.amax, 448e-6 / want.amax) << site;
    EXPECT_EQ(line["zeros"].get<double>(), want.zeros) << site;
    EXPECT_EQ(line["largest"].get<double>(), want.largest) << site;
    EXPECT_GT(want.largest, 0.0) << site;
  }
}

// Compares the first step's figures of meshes with those of one rank, whose weights are the same.
void expect_same_sites(const std::string& recipe, const Strings& filters,
                       const std::vector<std::array<int64_t, 5>>& meshes) {
  const ScratchFolder scratch;
  const auto train = [&](const std::string& folder, const std::array<int64_t, 5>& mesh) {
    Config c = on_mesh(counting_config(scratch.path() / folder, recipe), mesh);
    c.quantize.linear.float8.filter_fqns = filters;
    train_on(c);
    return figures_of(scratch.path() / folder);
  };
  const Figures wanted = train("one", {1, 1, 1, 1, 1});
  const size_t products = filters.empty() ? 4 : 2;
  EXPECT_EQ(wanted.size(), 2 * (2 * products + 1) * 3) << recipe;
  for (const auto& mesh : meshes) {
    const std::string folder = fmt::format("{}", fmt::join(mesh, "."));
    const Figures got = train(folder, mesh);
    ASSERT_EQ(got.size(), wanted.size()) << recipe << " " << folder;
    for (const auto& [key, want] : wanted) {
      ASSERT_TRUE(got.contains(key)) << recipe << " " << folder << " " << key.second;
      if (key.first > 1) continue;
      // Ranks of tp have parts of rows, and so other scales of these.
      const bool is_same =
          key.second.ends_with(".w") && (mesh[4] == 1 || !recipe.starts_with("row"));
      const double bound = is_same ? 1e-6 : 0.05;
      for (const char* figure : {"amax", "zeros", "largest"}) {
        const auto value = want[figure].get<double>();
        const double unit = figure == std::string_view("amax") ? value : 1.0;
        EXPECT_NEAR(got.at(key)[figure].get<double>(), value, bound * unit)
            << recipe << " " << folder << " " << key.second << " " << figure;
      }
    }
  }
}

TEST(Float8Stats, have_the_same_sites_on_every_mesh_and_the_same_weights) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp"}) {
    expect_same_sites(recipe, {},
                      {{1, 1, 2, 1, 1}, {1, 2, 1, 1, 1}, {1, 1, 1, 2, 1}, {2, 1, 2, 1, 1}});
    // Half of this model's MLP is no multiple of 16 wide, and ranks of tp would share its one
    // key-value head.
    expect_same_sites(recipe, {"mlp", "k_proj", "v_proj"}, {{1, 2, 1, 1, 2}});
  }
}

TEST(Float8Stats, do_not_depend_on_recomputing_and_come_every_n_steps) {
  const ScratchFolder scratch;
  Config c = counting_config(scratch.path() / "saved", "rowwise");
  c.training.steps = 5;
  c.debug.fp8_stats = 2;
  train_on(c);
  c.job.dump_folder = (scratch.path() / "again").string();
  c.activation_checkpoint.mode = "full";
  train_on(c);
  EXPECT_EQ(read_file(scratch.path() / "again" / "fp8.jsonl"),
            read_file(scratch.path() / "saved" / "fp8.jsonl"));
  const auto lines = lines_of(scratch.path() / "saved" / "fp8.jsonl");
  EXPECT_EQ(lines.front()["step"], 2);
  EXPECT_EQ(lines.back()["step"], 4);
}

TEST(Float8Stats, show_the_true_maximum_of_what_saturates) {
  const ScratchFolder scratch;
  Config c = counting_config(scratch.path(), "delayed");
  c.training.steps = 4;
  train_on(c);
  bool has_saturated = false;
  for (const auto& [key, line] : figures_of(scratch.path())) {
    const double range = line["amax"].get<double>() * line["scale"].get<double>();
    const double most = key.second.ends_with(".g") ? 57344.0 : 448.0;
    has_saturated = has_saturated || range > 1.001 * most;
  }
  EXPECT_TRUE(has_saturated);
}

TEST(Float8Stats, leave_no_file_where_they_are_off_or_nothing_is_quantized) {
  const ScratchFolder scratch;
  Config c = counting_config(scratch.path() / "off", "tensorwise");
  c.debug.fp8_stats = 0;
  train_on(c);
  EXPECT_FALSE(path_exists(scratch.path() / "off" / "fp8.jsonl"));
  c = counting_config(scratch.path() / "plain", "tensorwise");
  c.model.converters = {};
  train_on(c);
  EXPECT_FALSE(path_exists(scratch.path() / "plain" / "fp8.jsonl"));
}

}  // namespace
}  // namespace tokamak

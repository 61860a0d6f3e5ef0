#include "tokamak/ops/vocab/cross_entropy.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

constexpr int64_t kIgnored = -100;

template <class T>
void add(CasesOf<T>& c, const std::string& name, Types in, std::vector<Fill> fill,
         std::vector<int> stays, T op = {}) {
  OpCase& added = c.good(name, op, std::move(in));
  added.fill = std::move(fill);
  added.check_gradient = false;
  added.float_stays = std::move(stays);
}

Types stats_case(int64_t N, int64_t V) {
  return {f32({N, V}), i32({N})};
}

Types grad_case(int64_t N, int64_t V) {
  return {f32({N, V}), i32({N}), f32({N, 3}), f32({1})};
}

// Statistics of logits near 0: max about 3, sum about V / 10.
const Fill kStats{.values = {3, 2, 1}};

}  // namespace

template <>
OpCases cases_of<SoftmaxStats>() {
  CasesOf<SoftmaxStats> c;
  add(c, "small", stats_case(6, 37), {{}, {.limit = 37}}, {});
  add(c, "first and last entry", stats_case(4, 130), {{}, {.values = {0, 129}}}, {});
  add(c, "large logits", stats_case(6, 50), {{.scale = 1e4}, {.limit = 50}}, {});
  add(c, "ignored", stats_case(6, 33), {{}, {.values = {kIgnored, 5}}}, {});
  add(c, "one entry", stats_case(3, 1), {}, {});
  add(c, "a large vocabulary", stats_case(3, 20011), {{}, {.limit = 20011}}, {});
  add(c, "a part of the vocabulary", stats_case(6, 20), {{}, {.limit = 60}}, {},
      {.first_column = 30});
  add(c, "padding", stats_case(6, 128), {{}, {.limit = 101}}, {}, {.valid_columns = 101});
  add(c, "padding above all entries", stats_case(6, 40), {{.shift = -300.0}, {.limit = 40}}, {},
      {.valid_columns = 37});
  add(c, "a padded part of the vocabulary", stats_case(6, 24), {{}, {.limit = 60}}, {},
      {.first_column = 30, .valid_columns = 20});
  c.bad("more valid columns than logits", {.valid_columns = 38}, stats_case(6, 37));
  c.bad("labels of another length", {}, {f32({6, 37}), i32({5})});
  c.bad("labels of int64", {}, {f32({6, 37}), i64({6})});
  return c.cases;
}

template <>
OpCases cases_of<CombineStats>() {
  CasesOf<CombineStats> c;
  const Fill stats{.scale = 0.3, .shift = 2.0};
  add(c, "two parts", {f32({2, 6, 3})}, {stats}, {});
  add(c, "one part", {f32({1, 5, 3})}, {stats}, {});
  add(c, "maxima far apart", {f32({3, 6, 3})}, {{.values = {-1000, 3, 7, 900, 2, 0}}}, {});
  c.bad("four statistics", {}, {f32({2, 6, 4})});
  return c.cases;
}

template <>
OpCases cases_of<Nll>() {
  CasesOf<Nll> c;
  const Types in{f32({6, 3}), i32({6}), f32({1})};
  const Fill stats{.scale = 0.3, .shift = 2.0};
  const Fill scale{.shift = 0.7};
  add(c, "small", in, {stats, {.limit = 9}, scale}, {2});
  add(c, "some ignored", in, {stats, {.values = {3, kIgnored}}, scale}, {2});
  add(c, "one valid", in,
      {stats, {.values = {kIgnored, 2, kIgnored, kIgnored, kIgnored, kIgnored}}, scale}, {2});
  add(c, "all ignored", in, {stats, {.values = {kIgnored}}, scale}, {2});
  add(c, "many", {f32({2500, 3}), i32({2500}), f32({1})}, {stats, {.limit = 9}, scale}, {2});
  c.bad("two statistics", {}, {f32({6, 2}), i32({6}), f32({1})});
  c.bad("a scale for each token", {}, {f32({6, 3}), i32({6}), f32({6})});
  return c.cases;
}

template <>
OpCases cases_of<CrossEntropyGrad>() {
  CasesOf<CrossEntropyGrad> c;
  const Fill scale{.shift = 0.7};
  add(c, "small", grad_case(6, 37), {{}, {.limit = 37}, kStats, scale}, {3});
  add(c, "first and last entry", grad_case(4, 130), {{}, {.values = {0, 129}}, kStats, scale}, {3});
  add(c, "a large vocabulary", grad_case(3, 20011), {{}, {.limit = 20011}, kStats, scale}, {3});
  add(c, "some ignored", grad_case(6, 33), {{}, {.values = {kIgnored, 5}}, kStats, scale}, {3});
  add(c, "all ignored", grad_case(6, 33), {{}, {.values = {kIgnored}}, kStats, scale}, {3});
  add(c, "small probabilities", grad_case(6, 64),
      {{.shift = -60.0}, {.values = {kIgnored, 5}}, kStats, scale}, {3});
  add(c, "a part of the vocabulary", grad_case(6, 20), {{}, {.limit = 60}, kStats, scale}, {3},
      {.first_column = 30});
  add(c, "padding", grad_case(6, 128), {{}, {.limit = 128}, kStats, scale}, {3},
      {.valid_columns = 101});
  add(c, "padding that ends within an access", grad_case(6, 40), {{}, {.limit = 40}, kStats, scale},
      {3}, {.valid_columns = 37});
  add(c, "a padded part of the vocabulary", grad_case(6, 24), {{}, {.limit = 60}, kStats, scale},
      {3}, {.first_column = 30, .valid_columns = 20});
  add(c, "capped", grad_case(6, 37), {{}, {.values = {kIgnored, 5, 36}}, kStats, scale}, {3},
      {.cap = 4.0});
  add(c, "capped, a padded part", grad_case(6, 24), {{}, {.limit = 60}, kStats, scale}, {3},
      {.first_column = 30, .valid_columns = 20, .cap = 4.0});
  c.bad("a cap below zero", {.cap = -1.0}, grad_case(6, 37));
  c.bad("more valid columns than logits", {.valid_columns = 38}, grad_case(6, 37));
  c.bad("statistics of another length", {}, {f32({6, 37}), i32({6}), f32({5, 3}), f32({1})});
  return c.cases;
}

}  // namespace tokamak

#include "tokamak/ops/vocab/embedding.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Embedding>() {
  CasesOf<Embedding> c;
  c.good("batched", {}, {i32({2, 6}), f32({7, 6})}).fill = {{.limit = 7}};
  c.good("one token, odd width", {}, {i32({1}), f32({3, 33})}).fill = {{.limit = 3}};
  c.good("repeated ids", {}, {i32({3, 2}), f32({5, 4})}).fill = {{.values = {4, 0, 4, 4}}};
  c.good("whole packs", {}, {i32({2, 6}), f32({7, 16})}).fill = {{.limit = 9}};
  c.good("ids outside give zeros", {}, {i32({4}), f32({5, 3})}).fill = {{.values = {-1, 5, 2, 9}}};
  c.good("a part of the rows", {.first_row = 3}, {i32({2, 6}), f32({4, 6})}).fill = {{.limit = 9}};
  c.bad("ids are floats", {}, {f32({4}), f32({5, 3})});
  c.bad("table of three dims", {}, {i32({4}), f32({5, 3, 2})});
  return c.cases;
}

template <>
OpCases cases_of<EmbeddingGrad>() {
  CasesOf<EmbeddingGrad> c;
  const auto good = [&](const std::string& name, int64_t vocab, const Types& in, Fill ids) {
    OpCase& k = c.good(name, {.vocab = vocab}, in);
    k.check_gradient = false;
    k.fill = {std::move(ids)};
  };
  good("batched", 7, {i32({2, 6}), f32({2, 6, 6})}, {.limit = 7});
  good("whole packs", 7, {i32({2, 6}), f32({2, 6, 16})}, {.limit = 9});
  good("rows of many tokens", 5, {i32({300}), f32({300, 8})}, {.values = {1, 1, 3, 1, 0, 3}});
  good("one id only", 3, {i32({5}), f32({5, 130})}, {.values = {1}});
  good("ids outside are skipped", 3, {i32({5}), f32({5, 3})}, {.values = {-1, 3, 2, 0, 2}});
  OpCase& part =
      c.good("a part of the rows", {.vocab = 4, .first_row = 3}, {i32({9}), f32({9, 6})});
  part.check_gradient = false;
  part.fill = {{.limit = 9}};
  c.bad("tokens differ", {.vocab = 7}, {i32({2, 3}), f32({3, 2, 4})});
  c.bad("no vocabulary", {}, {i32({2}), f32({2, 4})});
  return c.cases;
}

}  // namespace tokamak

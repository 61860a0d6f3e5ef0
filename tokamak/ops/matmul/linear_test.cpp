#include "tokamak/ops/matmul/linear.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Linear>() {
  CasesOf<Linear> c;
  c.good("plain", {}, {f32({6, 5}), f32({4, 5})}).flops = 2.0 * 6 * 5 * 4;
  c.good("batched with bias", {}, {f32({2, 3, 5}), f32({7, 5}), f32({7})}).flops = 2.0 * 6 * 5 * 7;
  c.good("one row", {}, {f32({1, 33}), f32({17, 33})});
  c.good("rows of 16 bytes", {}, {f32({40, 24}), f32({72, 24})});
  c.good("rows of 16 bytes with bias", {}, {f32({3, 8}), f32({16, 8}), f32({16})});
  c.good("beyond a tile", {}, {f32({67, 19}), f32({70, 19}), f32({70})});
  c.good("one long row", {}, {f32({1, 2072}), f32({33, 2072})}).check_gradient = false;
  c.good("three rows of many outputs", {}, {f32({3, 40}), f32({4101, 40}), f32({4101})})
      .check_gradient = false;
  c.bad("inner dims differ", {}, {f32({6, 5}), f32({4, 6})});
  c.bad("bias of another width", {}, {f32({6, 5}), f32({4, 5}), f32({5})});
  return c.cases;
}

template <>
OpCases cases_of<LinearGradInput>() {
  CasesOf<LinearGradInput> c;
  c.good("batched", {}, {f32({2, 3, 7}), f32({7, 5})}).check_gradient = false;
  c.good("rows of 16 bytes", {}, {f32({40, 24}), f32({24, 72})}).check_gradient = false;
  c.good("beyond a tile", {}, {f32({67, 19}), f32({19, 70})}).check_gradient = false;
  c.bad("inner dims differ", {}, {f32({6, 5}), f32({4, 6})});
  return c.cases;
}

template <>
OpCases cases_of<LinearGradWeight>() {
  CasesOf<LinearGradWeight> c;
  c.good("batched", {}, {f32({2, 3, 5}), f32({2, 3, 7})}).check_gradient = false;
  c.good("rows of 16 bytes", {}, {f32({40, 24}), f32({40, 72})}).check_gradient = false;
  c.good("beyond a tile", {}, {f32({19, 67}), f32({19, 70})}).check_gradient = false;
  c.good("some rows", {.begin = 8, .rows = 24}, {f32({40, 24}), f32({40, 72})}).check_gradient =
      false;
  c.good("rows that begin within a word", {.begin = 3, .rows = 24}, {f32({40, 24}), f32({40, 72})})
      .check_gradient = false;
  c.good("the last rows, beyond a tile", {.begin = 3, .rows = 67}, {f32({19, 67}), f32({19, 70})})
      .check_gradient = false;
  c.bad("rows past the end", {.begin = 4, .rows = 4}, {f32({6, 5}), f32({6, 7})});
  c.bad("tokens differ", {}, {f32({6, 5}), f32({5, 7})});
  return c.cases;
}

template <>
OpCases cases_of<LinearGradBias>() {
  CasesOf<LinearGradBias> c;
  c.good("batched", {}, {f32({2, 3, 5})}).check_gradient = false;
  c.good("rows of 16 bytes", {}, {f32({300, 264})}).check_gradient = false;
  c.good("many odd rows", {}, {f32({1001, 33})}).check_gradient = false;
  c.bad("two inputs", {}, {f32({6, 5}), f32({5, 7})});
  return c.cases;
}

}  // namespace tokamak

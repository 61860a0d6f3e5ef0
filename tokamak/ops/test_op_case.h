// Test cases of ops: a stem's _test.cpp lists them, and the generic tests run every one of them.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// How an input is filled: float inputs by N(0, scale) + shift, integer inputs uniformly in [0,
/// limit).
struct Fill {
  double scale = 1.0;
  double shift = 0.0;
  int64_t limit = 1;
  std::vector<int64_t> values;  ///< if given, exactly these (repeated)
};

struct OpCase {
  std::string name;
  const OpRules* rules = nullptr;
  std::shared_ptr<const void> op;
  Types in;                      ///< floats as kF32; tests run them as kF64 and kBF16 too
  std::vector<Fill> fill;        ///< by input; the default where shorter
  bool check_gradient = true;    ///< false for ops without a gradient rule
  std::vector<int> gradient_of;  ///< inputs to check; empty = every float input
  double flops = -1.0;           ///< exact count where a closed form exists
  double library_bound =
      0.0;  ///< error allowed to a GPU's library, which sums in fewer bits; 0: as to others
  double bound = 0.0;  ///< error allowed to every kernel, as codes turn where values are rounded
                       ///< first; 0: as to others
  bool keeps_greater = false;  ///< outputs that accumulate keep what is greater, and add nothing
  bool writes_part = false;    ///< only a part of output 0, if it takes an input's storage
  std::vector<int>
      float_stays;  ///< float inputs that keep their dtype in every run (fp32 scalars and the like)
};

/// GoogleTest's messages use this, hence the name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const OpCase& c, std::ostream* os) {
  *os << c.rules->name << " " << c.name;
}

/// Inputs that `infer` must refuse with an Error naming the op.
struct BadCase {
  std::string name;
  const OpRules* rules = nullptr;
  std::shared_ptr<const void> op;
  Types in;
};

// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const BadCase& c, std::ostream* os) {
  *os << c.rules->name << " " << c.name;
}

struct OpCases {
  std::vector<OpCase> good;
  std::vector<BadCase> bad;
};

template <class T>
struct CasesOf {
  OpCases cases;

  OpCase& good(const std::string& name, T op, const Types& in) {
    cases.good.push_back({.name = name,
                          .rules = &kRules<T>,
                          .op = std::make_shared<const T>(std::move(op)),
                          .in = in});
    return cases.good.back();
  }

  void bad(const std::string& name, T op, const Types& in) {
    cases.bad.push_back({.name = name,
                         .rules = &kRules<T>,
                         .op = std::make_shared<const T>(std::move(op)),
                         .in = in});
  }
};

inline TensorType f32(Dims dims) {
  return {.dtype = DType::kF32, .dims = std::move(dims)};
}

inline TensorType i32(Dims dims) {
  return {.dtype = DType::kI32, .dims = std::move(dims)};
}

inline TensorType i64(Dims dims) {
  return {.dtype = DType::kI64, .dims = std::move(dims)};
}

/// Returns the cases of op T. Each op's _test.cpp defines it; a forgotten one does not link.
template <class T>
OpCases cases_of();

}  // namespace tokamak

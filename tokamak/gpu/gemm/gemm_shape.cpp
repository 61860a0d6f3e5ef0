#include <fmt/format.h>

#include "tokamak/gpu/gemm/gemm.h"

namespace tokamak::gpu {

std::string to_string(const GemmShape& s) {
  const std::string scaling = s.scaled
                                  ? fmt::format(", {}, by {}, {},", name_of(s.scaled->a_grid),
                                                name_of(s.scaled->in_b), name_of(s.scaled->b_grid))
                                  : "";
  const std::string rows = s.a_stride > 0 ? fmt::format(", rows of {},", s.a_stride) : "";
  return fmt::format("{}x{}x{} {}{} {}{}{} to {}{}{}", s.m, s.n, s.k, s.transpose_a ? 't' : 'n',
                     s.transpose_b ? 't' : 'n', name_of(s.in), scaling, rows, name_of(s.out),
                     s.bias ? " with bias" : "",
                     s.scaled && s.scaled->fast_accumulation ? " fast" : "");
}

}  // namespace tokamak::gpu

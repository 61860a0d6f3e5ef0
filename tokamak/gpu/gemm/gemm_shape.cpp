#include <fmt/format.h>

#include "tokamak/gpu/gemm/gemm.h"

namespace tokamak::gpu {

std::string to_string(const GemmShape& s) {
  return fmt::format("{}x{}x{} {}{} {} to {}{}", s.m, s.n, s.k, s.transpose_a ? 't' : 'n',
                     s.transpose_b ? 't' : 'n', name_of(s.in), name_of(s.out),
                     s.bias ? " with bias" : "");
}

}  // namespace tokamak::gpu

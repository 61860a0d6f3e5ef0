#include "tokamak/core/error.h"
#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {

struct Gemm::Impl {};

Gemm::Gemm(const GemmShape&) {
  TOK_CHECK(false, "built without oneDNN");
}

void Gemm::run(const void*, const void*, const void*, void*, bool) const {}

bool Gemm::is_available() {
  return false;
}

std::string Gemm::instruction_set() {
  return "none";
}

}  // namespace tokamak::cpu

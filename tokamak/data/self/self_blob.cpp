#include "tokamak/data/self/self_blob.h"

asm(R"(
.section .rodata
.balign 16
tokamak_self_blob_begin:
.incbin ")" TOK_SELF_BLOB R"("
tokamak_self_blob_end:
.byte 0
.previous
)");

extern "C" {
extern const std::byte tokamak_self_blob_begin[];  // NOLINT: names from the assembler text
extern const std::byte tokamak_self_blob_end[];    // NOLINT
}

namespace tokamak {

std::span<const std::byte> self_blob() {
  return {tokamak_self_blob_begin, tokamak_self_blob_end};
}

}  // namespace tokamak

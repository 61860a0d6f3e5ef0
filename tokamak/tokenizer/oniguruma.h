// Translates patterns from Oniguruma's dialect, which `tokenizers` reads, to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// Returns a pattern for PCRE2 (with UTF, UCP and multi-line anchors) that matches what `pattern`
/// matches in Oniguruma. Throws Error "WHAT: ..." if there is none, as for classes within classes.
std::string from_oniguruma(std::string_view pattern, std::string_view what);

}  // namespace tokamak

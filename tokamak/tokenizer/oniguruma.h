// Translates patterns from Oniguruma's dialect, which `tokenizers` reads, to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// The members of a class of word characters: alphabetic characters, marks, decimal digits and
/// connectors. PCRE2's own \w has neither marks nor U+203F, but all numbers.
inline constexpr std::string_view kWordCharacters =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})"
    R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

/// Returns a pattern for PCRE2 (with UTF, UCP and multi-line anchors) that matches what `pattern`
/// matches in Oniguruma. Throws Error "WHAT: ..." if there is none, as for classes within classes.
std::string from_oniguruma(std::string_view pattern, std::string_view what);

}  // namespace tokamak

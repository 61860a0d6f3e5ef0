// Names that a user wrote, for messages: how far from a known one, and how to print them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tokamak {

/// Grows with the edits that lead from `wanted` to `known`. Dots part a name, and a right last part
/// in a wrong section is nearer than a like last part in the right one.
size_t name_distance(std::string_view wanted, std::string_view known);

/// Without the spaces and tabs around it.
std::string_view trimmed(std::string_view text);

/// With ASCII capitals as small letters.
std::string lower_case(std::string_view text);

/// The name itself if it is plain ASCII of bearable length, else an escaped, shortened form.
std::string printable(std::string_view name);

}  // namespace tokamak

// For messages: how far a name that a user wrote is from a known one, and how it is printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tokamak {

/// Grows with the edits that lead from `wanted` to `known`. Dots separate the parts of a name; the
/// right last part in a wrong section is nearer than a similar last part in the right section.
size_t name_distance(std::string_view wanted, std::string_view known);

/// Whether a user may have meant `known` by `wanted`: at most a third of the letters of the last
/// part differ and, unless that part is right, of the whole name too. Capitals do not count.
bool is_near(std::string_view wanted, std::string_view known);

/// Returns the nearest of `known` that is_near(), if any.
std::optional<std::string> nearest_name(std::string_view wanted,
                                        std::span<const std::string> known);

/// Returns "; the nearest is NAME" or, where nothing is near, "".
std::string nearest_hint(std::string_view wanted, std::span<const std::string> known);

/// Returns the text without the spaces and tabs around it.
std::string_view trimmed(std::string_view text);

/// Returns the text with its ASCII capitals in lower case.
std::string lower_case(std::string_view text);

/// Returns the text with each control character but those in `kept` written as "\x1b": texts may
/// hold names from files, and a terminal takes control characters for commands.
std::string without_controls(std::string_view text, std::string_view kept = "");

/// Returns the name itself if it is short plain ASCII, else an escaped, shortened form.
std::string printable(std::string_view name);

/// Returns a decimal number, which may have a sign and a fraction, with commas between thousands.
std::string with_commas(std::string digits);

std::string with_commas(int64_t number);

}  // namespace tokamak

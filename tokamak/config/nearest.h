// "Did you mean": the known name nearest to an unknown one.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// The nearest live or retired key, a retired one with what it became: "a.b" or "a.b (now c.d)".
std::string nearest_key(std::string_view name);

/// The name itself if it is plain ASCII of bearable length, else an escaped, shortened form.
std::string printable(std::string_view name);

}  // namespace tokamak

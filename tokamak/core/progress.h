// Reports how far a long computation has come.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace tokamak {

/// Called now and then with what is done of the total, as in ("ranks planned", 3, 576). It is empty
/// where nobody asks.
using Progress = std::function<void(std::string_view what, int64_t done, int64_t total)>;

}  // namespace tokamak

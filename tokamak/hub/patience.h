// Repeats requests that a server, or the way to it, may answer better a moment later.
#pragma once

#include <functional>
#include <string>

#include "tokamak/hub/http.h"

namespace tokamak {

inline constexpr int kTries = 5;

/// Calls `request` until its reply is one that a repetition would not change, `most` times, with
/// pauses of 0.5 s and then twice as long each time. A missing reply and the statuses 408, 429 and
/// from 500 on may change. Throws SystemError naming the address `url` after the last call.
HttpReply with_patience(const std::string& url, const std::function<HttpReply()>& request,
                        int most = kTries);

/// Returns the value of a header, by its name in lower case, or "".
std::string header_of(const HttpReply& reply, const char* name);

}  // namespace tokamak

// Parses command words of the small verbs with CLI11.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

inline constexpr const char* kTextColumnHelp =
    "field of JSON lines or column of Parquet files that holds the text; a.b: member of one";

/// Parses `args`; prints help and returns false if that was asked. Throws Error "tokamak VERB: ..."
/// on bad words.
bool parse(CLI::App& app, Args args);

/// Throws Error if a verb stands among `args`, the words of launch before its "--", where no option
/// can take it as its value.
void require_dashes(Args args);

/// Returns `text` in lines of at most 100 columns that end in a newline, broken after commas; later
/// lines begin with `indent` spaces.
std::string wrapped(std::string text, size_t indent);

/// Throws Error unless --seconds, for which something is timed, is from 0 to an hour.
void check_budget(double seconds);

}  // namespace tokamak::cli

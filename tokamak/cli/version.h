// The program's version, its commit, and the libraries that it was built with.
#pragma once

#include <string>

namespace tokamak::cli {

/// Returns "tokamak 0.1.0 (0123abcd)": the version and the commit, or its tag where it has one;
/// "+" says that the tree had changes. Without git, only the version.
std::string version_line();

/// Returns version_line() and a line of what the build has in it.
std::string version_text();

}  // namespace tokamak::cli

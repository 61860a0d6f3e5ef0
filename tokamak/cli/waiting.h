// How the worker threads of CPU kernels wait for work.
#pragma once

#include <string_view>

namespace tokamak::cli {

/// Lets OpenMP's threads sleep soon where `verb` computes on CPUs, so that other programs on the
/// same cores cost this one their share and no more: by default they spin for milliseconds, each in
/// the way of the thread that it waits for. OMP_WAIT_POLICY and GOMP_SPINCOUNT override it. libgomp
/// reads its environment before main(), so the program replaces itself once.
void bound_waiting(std::string_view verb, char** argv);

}  // namespace tokamak::cli

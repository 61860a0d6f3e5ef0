// Runs of one op alone on a backend, for the generic tests.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/backend.h"
#include "tokamak/ops/test_op_case.h"

namespace tokamak::testing {

/// Contents of one tensor, whatever its dtype.
using Numbers = std::vector<double>;

struct RunOptions {
  bool reference_only = false;
  int microbatch = 0;
  bool accumulate = false;     ///< outputs that can accumulate do
  int repeats = 1;             ///< runs on the same memory; only the first is microbatch 0
  bool fuses_readers = true;   ///< CompileOptions::fuse_readers
  bool device_graphs = false;  ///< a device records what the repeats run and replays it
  int threads = 0;             ///< of kernels; 0: all
  Backend* backend = nullptr;  ///< null: a CPU's, with the options above
  std::span<Communicator* const> groups;  ///< by id; if empty, groups of one rank
};

/// The cases of every op.
OpCases all_cases();

/// A name that GoogleTest takes.
std::string test_name(const OpRules* rules, const std::string& name);

/// |got - want| / |want|
double relative_error(const Numbers& got, const Numbers& want);

/// Returns the error allowed after three sums into an output of `dtype`: bf16 is rounded at each.
double accumulation_bound(DType dtype);

/// The case's input types with floats as `dtype`.
Types types_as(const OpCase& c, DType dtype);

/// Returns the case's inputs, reproducible and rounded to `dtype`.
std::vector<Numbers> fill_inputs(const OpCase& c, DType dtype);

/// The op's outputs for these inputs.
std::vector<Numbers> run_op(const OpCase& c, const Types& in, const std::vector<Numbers>& values,
                            const RunOptions& options = {});

/// Returns d(sum of dy . out)/d(in) by the gradient rule; empty where there is none.
std::vector<Numbers> run_gradient(const OpCase& c, const Types& in,
                                  const std::vector<Numbers>& values,
                                  const std::vector<Numbers>& dy);

}  // namespace tokamak::testing

// Communication among the ranks of a group. These ops have no kernel: exec/bound_plan.h runs
// them through a Communicator. n is the group's size.
#pragma once

#include "tokamak/core/reduce_op.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// x [..] -> [n, ..]: row r is member r's x. With `dim`, the members' x follow each other along
/// that dim, which becomes n times as long. With `overwrites`, y may go to given storage, of which
/// x is this rank's row (AccumulateMode::kNever only). A second input is not read: the gather only
/// waits for it.
struct AllGather {
  static constexpr std::string_view kName = "all_gather";
  CommGroup group;
  int dim = -1;
  bool overwrites = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return overwrites ? std::vector{0} : std::vector<int>{}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// x [n, ..] -> [..]: the sum over members of the row at this rank's place in the group; with
/// `dim`, of this rank's part (of n) along that dim. With `overwrites`, y may go to given storage,
/// whose content it replaces: no transport can add (AccumulateMode::kNever only).
struct ReduceScatter {
  static constexpr std::string_view kName = "reduce_scatter";
  CommGroup group;
  int dim = -1;
  bool overwrites = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return overwrites ? std::vector{0} : std::vector<int>{}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// y = sum or maximum over members of x, which y may replace; with `in_place` y must replace it, so
/// that State can hold the total.
struct AllReduce {
  static constexpr std::string_view kName = "all_reduce";
  CommGroup group;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0, .must = in_place}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// x [n, ..] -> [n, ..]: row r is the row of member r's x at this rank's place in the group.
struct AllToAll {
  static constexpr std::string_view kName = "all_to_all";
  CommGroup group;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// y = the x of member (rank - offset) mod n: every x moves `offset` places up.
struct Shift {
  static constexpr std::string_view kName = "shift";
  CommGroup group;
  int offset = 1;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// Takes x and has no output; the other member of a group of two gets x by its Recv.
struct Send {
  static constexpr std::string_view kName = "send";
  static constexpr bool kHasSideEffect = true;
  CommGroup group;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

/// Has no input; y of `type` is what the other member of a group of two sends.
struct Recv {
  static constexpr std::string_view kName = "recv";
  static constexpr bool kHasSideEffect = true;
  CommGroup group;
  TensorType type;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return communication_only(); }
};

}  // namespace tokamak

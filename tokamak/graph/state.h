// State is the named values that outlive a step; nothing else survives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokamak/core/tensor_type.h"
#include "tokamak/graph/placement.h"

namespace tokamak {

struct StateId {
  int32_t index = -1;
  bool operator==(const StateId&) const = default;

  bool valid() const { return index >= 0; }
};

enum class StateKind : uint8_t {
  kParameter,  ///< master weights
  kMoment,     ///< optimizer moments
  kCopy,       ///< compute copies of master weights, which updates write with them
  kGradient,   ///< accumulated over the microbatches of a step
  kInput,      ///< written by the host before a microbatch or a step: tokens, labels, learning rate
  kResult,     ///< read by the host after a step: loss, gradient norm
  kCache,      ///< KV cache of generation
  kBuffer,     ///< communication buffers: gradients on their way
};

/// How a parameter is initialized. Elements are random numbers keyed by (seed, name, element), so
/// they are the same on any mesh.
struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal };

  Kind kind = Kind::kZeros;
  double std = 0.0;
  double cut = 0.0;  ///< truncated at +-cut standard deviations; 0 = not truncated
};

struct StateDecl {
  std::string name;
  TensorType type;
  StateKind kind = StateKind::kParameter;
  Axes axes;
  Init init;
  int32_t block = -1;    ///< bucket: parameters of one block lie together
  int32_t module = 0;    ///< Label::module of the first node that asks for it
  int32_t stage = 0;     ///< Label::stage, for a bucket
  bool is_tied = false;  ///< whether stages share a bucket's contents
  /// A window has the bytes of `window_of` from element `window_begin` of its dtype on.
  StateId window_of;
  int64_t window_begin = 0;
  bool is_absent = false;  ///< belongs to another rank's stage; takes no bytes, is never touched

  /// True for parameters and moments; all else is made from them, or anew in each step.
  bool is_checkpointed() const {
    return kind == StateKind::kParameter || kind == StateKind::kMoment;
  }
};

/// The table of State that the graphs of one run share (training, validation, generation).
class StateTable {
 public:
  /// Throws Bug if the name is taken.
  StateId declare(StateDecl decl);

  StateId find(std::string_view name) const;

  /// Declares, or returns what the same declaration made before; a different type is a Bug.
  StateId declare_once(const StateDecl& decl);

  const StateDecl& operator[](StateId id) const { return decls_[id.index]; }

  int32_t size() const { return static_cast<int32_t>(decls_.size()); }

  std::vector<StateId> of_kind(StateKind kind) const;

 private:
  std::vector<StateDecl> decls_;
  std::unordered_map<std::string, int32_t> by_name_;
};

}  // namespace tokamak

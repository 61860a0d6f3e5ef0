// What the buckets of a pipeline's stages cost at the ends of a step, for its closed form: gathers
// before or beside the first forwards, reductions beside the last backwards.
#pragma once

#include <algorithm>
#include <span>

#include "tokamak/price/step/closed_form.h"

namespace tokamak::price {

/// Parameters of stages, with what buckets add so that owners have whole slices.
struct Elements {
  Elements(const StageCosts& costs, int owners);

  StageSum of;
  double tied = 0.0;  ///< of a tied table
};

/// Buckets of a kind that a rank holds, and what one of them costs at the ends of a step.
struct Bucket {
  double elements = 0.0;
  double gather_s = 0.0;  ///< 0 with one owner
  double reduce_s = 0.0;
  double shared_s = 0.0;  ///< of `reduce_s`, over the link that collectives inside stages take
  double update_s = 0.0;
};

/// Of a rank whose groups are these.
struct Buckets {
  Buckets(const StageCosts& costs, const DataSpread& spread, const DataSpread::Groups& groups,
          const Machine& machine);

  /// Of all that a stage holds, one after the other.
  double sum(const StageModules& stage, double Bucket::*seconds) const {
    return (stage.has_embedding ? embedding.*seconds : 0.0) + stage.layers * (layer.*seconds) +
           (stage.has_head ? head.*seconds : 0.0);
  }

  Bucket layer;
  Bucket embedding;
  Bucket head;
  bool gathers_share_link = false;     ///< with collectives inside stages
  std::span<const Stretch> stretches;  ///< of the costs that these are of
};

/// Of a rank's gathers, one after the other.
double gathers_s(const PipelineShape& shape, int rank, const Buckets& buckets);

/// Gathers of a rank that run beside its first forwards.
class GatherQueue {
 public:
  /// `seconds` of them, alone.
  explicit GatherQueue(double seconds) : left_s_(seconds) {}

  /// The end of a stage's forward that may begin at `begin`. REQUIRES: no earlier than the end of
  /// the one before.
  double run(const StageModules& stage, const PipelineUse::First& first, double begin,
             const Buckets& buckets, const Software& software);

 private:
  void done(double seconds) {
    done_s_ += seconds;
    left_s_ -= seconds;
  }

  void advance(double seconds) {
    now_s_ += seconds;
    done(std::min(seconds, left_s_));
  }

  double now_s_ = 0.0;  // until when it has run
  double left_s_;
  double done_s_ = 0.0;
  double due_s_ = 0.0;  // of those that the forwards so far have waited for
};

/// A stage's last backward with its reductions, which it hides in part: what comes after its
/// seconds without them.
struct ReduceTail {
  double compute_s = 0.0;  ///< until its compute has ended, which reductions slow
  double reduce_s = 0.0;   ///< until both have ended
  double all_s = 0.0;      ///< of the reductions themselves
  double alone_s = 0.0;    ///< of the backward itself
  double rate = 1.0;       ///< of reductions beside it
};

ReduceTail reduce_tail(const StageModules& stage, const PipelineUse::Last& last,
                       const Buckets& buckets, const Machine& machine);

}  // namespace tokamak::price

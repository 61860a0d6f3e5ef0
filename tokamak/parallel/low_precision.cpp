#include "tokamak/parallel/low_precision.h"

#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/vocab/lm_head_loss.h"

namespace tokamak {

bool reads_low_precision(const Node& node, size_t k) {
  return k == 1 && (is_marked<Linear>(node) || is_marked<LinearGradInput>(node) ||
                    is_marked<LmHeadLoss>(node));
}

}  // namespace tokamak

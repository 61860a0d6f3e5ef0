// Matmuls of a run in low precision, as everything but their own passes sees them. Formats, scales
// and layers are known to the folder of these passes alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

struct Config;

/// The State that counts the sites whose values saturated in a step, f64 [1], on one rank.
inline constexpr std::string_view kSaturatedSites = "saturated_sites";

/// Whether `node` is a matmul T that LowPrecision::mark() has marked.
template <class T>
bool is_marked(const Node& node) {
  const T* op = node.as<T>();
  return op != nullptr && op->low_precision;
}

/// Whether `node` is marked and reads the weight that is its input `k`.
bool reads_low_precision(const Node& node, size_t k);

/// The ranks among which one rank's weights, and its scales, are spread.
struct WeightGroups {
  CommGroup tp;        ///< hold other parts of the same weights' matrices
  CommGroup owners;    ///< hold other parts of the same weights, each of which is of one of `tp`
  CommGroup replicas;  ///< run the same blocks: all axes but pp
};

/// The lines that mark() returns for the user.
struct LowPrecisionNotes {
  std::vector<std::string> notes;  ///< which matmuls are not marked, and why
  std::string line;                ///< sums up those that are; "" if none is
};

/// A step's graph, and its variant for steps before which a scale of earlier steps is missing.
struct LoweredStep {
  Graph graph;
  std::optional<Graph> without_scales;
};

struct LowPrecisionChoice;

/// Which matmuls are computed in low precision, and how; copies share it.
class LowPrecision {
 public:
  /// Chooses no matmul.
  LowPrecision() = default;

  explicit LowPrecision(LowPrecisionChoice choice);

  explicit operator bool() const { return choice_ != nullptr; }

  /// Returns the recipe's name, or "".
  std::string_view recipe() const;

  /// Whether its scales are those of microscaling formats, which want sm_100 or newer.
  bool is_mx() const;

  /// Both dims of a weight must be multiples of this; 1 for none.
  int64_t multiple() const;

  /// Whether ranks gather weights that only marked matmuls read in low precision.
  bool gathers() const;

  /// Whether matmuls of one input may be one.
  bool merges() const;

  /// Whether kernels that compute values also quantize them.
  bool fuses() const;

  /// Returns why a target cannot run such matmuls, and what to do, or "".
  std::string why_not(const Target& target) const;

  /// Returns this choice for all blocks, the first and the last ones included.
  LowPrecision in_all_blocks() const;

  /// Marks matmuls of a graph of global shapes, and their gradients. Throws Error if no matmul of
  /// the model can be marked.
  LowPrecisionNotes mark(Graph& graph, const Mesh& mesh, DType compute) const;

  /// Returns a rank's graph with the passes' own ops in place of marked ones.
  Graph lower(const Graph& graph, const WeightGroups& groups) const;

  /// Does the same for a graph with an update.
  LoweredStep lower_step(const Graph& graph, const WeightGroups& groups) const;

 private:
  std::shared_ptr<const LowPrecisionChoice> choice_;
};

/// Returns what model.converters choose. Throws Error that names the key if keys exclude each
/// other.
LowPrecision low_precision_of(const Config& config);

/// The keys that spend memory to save time.
struct LowPrecisionTrades {
  bool keeps_transposed = false;  ///< weights stay in both layouts for a step
  bool long_loss_chunks = false;  ///< of tokens, as long as with a head in the compute dtype
};

LowPrecisionTrades trades_of(const Config& config);
void set_trades(Config& config, const LowPrecisionTrades& trades);

/// Whether the keys choose low precision for the head.
bool lowers_head(const Config& config);

/// Puts the rows of the table of scales, as checkpoints have them, in place of pieces of its State.
/// One of the ranks that hold them owns them.
void set_scale_pieces(const StateTable& states, bool is_owner, std::vector<TensorPiece>& pieces);

/// Throws Error if a checkpoint has scales of another kind than `piece`; `folder` is its name.
void require_saved_scales(const TensorPiece& piece, const TensorType& found,
                          const std::string& folder);

/// Returns the line for a checkpoint without scales.
std::string missing_scales_text();

}  // namespace tokamak

#include "mesh_run.h"

#include <cmath>
#include <mutex>

#include "tokamak/checkpoint/slice.h"
#include "tokamak/comm/thread_world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/communicators.h"
#include "tokamak/exec/executor.h"
#include "tokamak/train/initialize.h"

namespace tokamak {
namespace {

constexpr int32_t kIgnored = -100;

// Token i of window w of the stream.
int32_t token(const MeshCase& c, int64_t window, int64_t i) {
  const auto word = philox(c.seed + 7, static_cast<uint64_t>(window), static_cast<uint64_t>(i));
  return static_cast<int32_t>(word[0] % static_cast<uint64_t>(c.model.vocab_size));
}

bool is_labelled(const MeshCase& c, int64_t window, int64_t i) {
  return philox(c.seed + 8, static_cast<uint64_t>(window), static_cast<uint64_t>(i))[1] % 8 != 0;
}

class RankRun {
 public:
  RankRun(const MeshCase& c, World& world, Backend& backend)
      : c_(c),
        run_(c.model, shape_of(c, world.rank()), backend.target()),
        memory_(backend, std::array{&run_.plan()}),
        access_(memory_, run_.states(), run_.layout()),
        communicators_(world, run_.plan().groups) {
    executor_.emplace(run_.plan(), memory_, communicators_.groups(), &world);
    TOK_CHECK(memory_.bytes() == run_.plan().peak_bytes(), "{} bytes for {}", memory_.bytes(),
              run_.plan().peak_bytes());
    check_plan(run_.plan());
  }

  void initialize_pieces() {
    initialize(access_, run_.pieces(), c_.seed);
    make_copies(run_, memory_);
  }

  void step(int64_t t, double* loss, double* norm) {
    const double step = static_cast<double>(t + 1);
    const OptimizerOptions opt;
    const double scalars[] = {c_.lr, 1.0 - std::pow(opt.beta1, step),
                              1.0 - std::pow(opt.beta2, step)};
    access_.write(run_.step().scalars, std::span<const double>(scalars));
    int64_t labels = 0;
    for (int64_t r = 0; r < c_.global_batch; ++r) {
      for (int64_t i = 0; i < c_.seq_len; ++i)
        labels += is_labelled(c_, t * c_.global_batch + r, i) ? 1 : 0;
    }
    const float scale[] = {1.0F / static_cast<float>(labels)};
    access_.write(run_.step().loss_scale, std::span<const float>(scale));
    int64_t loaded = -1;
    for (const ScheduleItem& item : run_.plan().schedule(static_cast<int>(c_.num_microbatches))) {
      const Segment& segment = run_.plan().segments[static_cast<size_t>(item.segment)];
      if (segment.runs == Segment::Runs::kPerMicrobatch && item.microbatch != loaded) {
        loaded = item.microbatch;
        write_batch(t, loaded);
      }
      executor_->run(item);
    }
    *loss = access_.read<double>(run_.step().loss)[0];
    *norm = access_.read<double>(run_.step().grad_norm)[0];
  }

  // All pieces of parameters, or of first moments under their parameters' names.
  void collect(StateKind kind, std::map<std::string, std::vector<float>>& into, std::mutex& mutex) {
    const std::scoped_lock lock(mutex);
    const std::string prefix = kind == StateKind::kMoment ? moment_name('m', "") : "";
    for (const TensorPiece& piece : run_.pieces()) {
      if (piece.kind != kind || piece.tensor.rfind(prefix, 0) != 0) continue;
      std::vector<float>& whole = into[piece.tensor.substr(prefix.size())];
      whole.resize(static_cast<size_t>(piece.type.numel()), std::nanf(""));
      for_each_run(piece, [&](int64_t to, int64_t from, int64_t n) {
        std::vector<float> part(static_cast<size_t>(n));
        access_.read_at(piece.state, (piece.offset + from) * 4,
                        std::as_writable_bytes(std::span(part)));
        for (int64_t k = 0; k < n; ++k) {
          float& slot = whole[static_cast<size_t>(to + k)];
          const float value = part[static_cast<size_t>(k)];
          // Replicas must agree bit for bit.
          TOK_CHECK(std::isnan(slot) || slot == value, "{} differs between ranks", piece.tensor);
          slot = value;
        }
      });
    }
  }

  // Counts the elements of this rank's compute copies that updates keep; each must have the bits of
  // its master's cast.
  int64_t count_copies() const {
    const StateTable& states = run_.states();
    int64_t count = 0;
    for (const StateId id : states.of_kind(StateKind::kParameter)) {
      const StateDecl& master = states[id];
      const size_t dot = master.name.find('.');
      const bool is_bucket = master.name.rfind("weights.", 0) == 0;
      const std::string name = is_bucket ? master.name.substr(dot + 1) : master.name;
      StateId copy = states.find("copy_slice." + name);
      if (!copy.valid()) copy = states.find("copy." + name);
      if (!copy.valid() || master.is_absent) continue;
      const std::vector<float> want = access_.read<float>(id);
      const std::vector<BF16> got = access_.read<BF16>(copy);
      TOK_CHECK(got.size() == want.size(), "{} has {} elements", states[copy].name, got.size());
      for (size_t i = 0; i < want.size(); ++i)
        TOK_CHECK(got[i].bits == BF16(want[i]).bits, "{} differs from its master", name);
      count += std::ssize(got);
    }
    return count;
  }

  Communicator::TrafficByKind traffic() const {
    Communicator::TrafficByKind sum;
    const auto add = [](Communicator::Traffic& a, const Communicator::Traffic& b) {
      a.calls += b.calls;
      a.bytes += b.bytes;
    };
    for (const Communicator* g : communicators_.groups()) {
      add(sum.all_gather, g->traffic().all_gather);
      add(sum.reduce_scatter, g->traffic().reduce_scatter);
      add(sum.all_reduce, g->traffic().all_reduce);
      add(sum.all_to_all, g->traffic().all_to_all);
      add(sum.broadcast, g->traffic().broadcast);
      add(sum.send, g->traffic().send);
    }
    return sum;
  }

 private:
  // Runs of elements: position in the whole tensor, in the piece, count.
  template <class F>
  static void for_each_run(const TensorPiece& piece, F&& run) {
    for_each_shared_run(whole_slice(piece.type.dims),
                        {.box = {.begin = piece.box_begin, .end = piece.box_end},
                         .begin = piece.begin,
                         .end = piece.end},
                        run);
  }

  void write_batch(int64_t t, int64_t m) {
    const Mesh& mesh = run_.mesh();
    const MeshCoordinates at = mesh.coordinates(run_.rank());
    const int64_t dp = mesh.degree({MeshAxis::kDpReplicate, MeshAxis::kDpShard});
    const int64_t dp_rank = at[1] * mesh.degree(MeshAxis::kDpShard) + at[2];
    const int64_t cp = mesh.degree(MeshAxis::kCp);
    const int64_t rows = c_.global_batch / dp / c_.num_microbatches;
    const int64_t first = t * c_.global_batch + dp_rank * (c_.global_batch / dp) + m * rows;
    const int64_t S = padded_seq_len(c_.seq_len, mesh);
    std::vector<int64_t> places;
    if (cp == 1) {
      for (int64_t i = 0; i < S; ++i) places.push_back(i);
    } else {
      const int64_t half = S / (2 * cp);
      for (const int64_t chunk : {int64_t{at[3]}, 2 * cp - 1 - at[3]}) {
        for (int64_t i = 0; i < half; ++i) places.push_back(chunk * half + i);
      }
    }
    std::vector<int32_t> tokens;
    std::vector<int32_t> labels;
    std::vector<int32_t> positions;
    std::vector<int64_t> indices;
    for (int64_t r = 0; r < rows; ++r) {
      indices.push_back(first + r);
      for (const int64_t i : places) {
        const bool real = i < c_.seq_len;
        tokens.push_back(real ? token(c_, first + r, i) : 0);
        labels.push_back(real && is_labelled(c_, first + r, i) ? token(c_, first + r, i + 1)
                                                               : kIgnored);
        positions.push_back(static_cast<int32_t>(i));
      }
    }
    const StepState& s = run_.step();
    write(s.tokens, tokens);
    write(s.labels, labels);
    write(s.positions, positions);
    if (s.rows.valid()) access_.write(s.rows, std::span<const int64_t>(indices));
  }

  void write(StateId id, const std::vector<int32_t>& values) {
    access_.write(id, std::span<const int32_t>(values));
  }

  const MeshCase& c_;
  PlannedRun run_;
  Memory memory_;
  StateAccess access_;
  Communicators communicators_;
  std::optional<Executor> executor_;
};

}  // namespace

RunShape shape_of(const MeshCase& c, int rank) {
  DistributeOptions distribute = c.distribute;
  distribute.rank = rank;
  distribute.num_microbatches = c.num_microbatches;
  const int64_t dp = distribute.mesh.degree({MeshAxis::kDpReplicate, MeshAxis::kDpShard});
  return {.training = {.batch = c.global_batch / c.num_microbatches / dp,
                       .seq_len = c.seq_len,
                       .compute = c.compute,
                       .seed = c.seed,
                       .logits_multiple = c.logits_multiple},
          .recompute = c.recompute,
          .distribute = distribute};
}

static void check_all_ranks(const MeshCase& c) {
  const auto backend = cpu::make_backend({.threads = 1});
  std::vector<std::unique_ptr<PlannedRun>> runs;
  std::vector<const Plan*> plans;
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    runs.push_back(std::make_unique<PlannedRun>(c.model, shape_of(c, rank), backend->target()));
    plans.push_back(&runs.back()->plan());
  }
  check_ranks(plans, static_cast<int>(c.num_microbatches));
}

MeshResult run_mesh(const MeshCase& c) {
  check_all_ranks(c);
  MeshResult result;
  std::mutex mutex;
  run_ranks(c.distribute.mesh.size(), [&](World& world) {
    const auto backend = cpu::make_backend({.threads = 1});
    RankRun run(c, world, *backend);
    run.initialize_pieces();
    run.collect(StateKind::kParameter, result.initial, mutex);
    for (int64_t t = 0; t < c.steps; ++t) {
      double loss = 0.0;
      double norm = 0.0;
      run.step(t, &loss, &norm);
      const int64_t copies = run.count_copies();
      const std::scoped_lock lock(mutex);
      if (static_cast<int64_t>(result.loss.size()) == t) {
        result.loss.push_back(loss);
        result.grad_norm.push_back(norm);
      }
      result.copied_elements = std::max(result.copied_elements, copies);
      TOK_CHECK(result.loss[static_cast<size_t>(t)] == loss &&
                    result.grad_norm[static_cast<size_t>(t)] == norm,
                "ranks disagree at step {}: loss {} and {}, norm {} and {}", t + 1,
                result.loss[static_cast<size_t>(t)], loss, result.grad_norm[static_cast<size_t>(t)],
                norm);
    }
    run.collect(StateKind::kParameter, result.parameters, mutex);
    run.collect(StateKind::kMoment, result.first_moments, mutex);
    if (world.rank() == 0) result.traffic = run.traffic();
  });
  return result;
}

}  // namespace tokamak

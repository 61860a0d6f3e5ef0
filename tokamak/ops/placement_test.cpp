// Every strategy of every op on 2 and 3 ranks, with even and uneven cuts: shards in, what
// `localize` makes of the op, outputs put together again equal the whole.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak::testing {
namespace {

// What one rank holds of a cut dim, in order.
using Parts = std::vector<Range>;

// A way to cut a dim of `units` units among ranks: by rank.
using Cut = std::vector<Parts>;

Numbers take(const Numbers& x, const Dims& dims, int dim, const Parts& parts) {
  int64_t outer = 1;
  int64_t inner = 1;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d)
    (d < dim ? outer : inner) *= d == dim ? 1 : dims[d];
  const int64_t extent = dims[dim];
  Numbers mine;
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : parts) {
      const auto row = x.begin() + (o * extent + r.begin) * inner;
      mine.insert(mine.end(), row, row + r.size() * inner);
    }
  }
  return mine;
}

Cut contiguous(const std::vector<int64_t>& sizes) {
  Cut cut;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    cut.push_back({{.begin = begin, .end = begin + size}});
    begin += size;
  }
  return cut;
}

std::vector<Cut> cuts_of(int64_t units, int ranks) {
  std::vector<Cut> cuts;
  std::vector<int64_t> sizes(ranks, units / ranks);
  if (units % ranks == 0) cuts.push_back(contiguous(sizes));
  std::fill(sizes.begin(), sizes.end(), 1);
  sizes[0] = units - ranks + 1;
  if (units > ranks) cuts.push_back(contiguous(sizes));
  return cuts;
}

// How context parallel ranks hold a sequence.
Cut zigzag(int64_t units, int ranks) {
  Cut cut;
  const int64_t chunk = units / (2 * ranks);
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t back = 2 * ranks - 1 - r;
    cut.push_back({{.begin = r * chunk, .end = (r + 1) * chunk},
                   {.begin = back * chunk, .end = (back + 1) * chunk}});
  }
  return cut;
}

bool is_zigzag(const OpCase& c) {
  if (c.rules == &kRules<Attention>) return static_cast<const Attention*>(c.op.get())->zigzag;
  return static_cast<const AttentionGrad*>(c.op.get())->forward.zigzag;
}

std::vector<Cut> context_cuts(const OpCase& c, int64_t units, int ranks) {
  if (units % (2 * ranks) != 0) return {};
  if (is_zigzag(c)) return {zigzag(units, ranks)};
  return {contiguous(std::vector<int64_t>(ranks, units / ranks))};
}

// Operands of one strategy cut in the same places, scaled to each one's extent.
class Sharding {
 public:
  Sharding(const Strategy& strategy, const Types& in, const Types& out)
      : strategy_(strategy), in_(in), out_(out) {
    visit([&](Shard s, const TensorType& type) {
      const int64_t extent = type.dims[s.dim];
      units_ = units_ == 0 ? extent : std::gcd(units_, extent);
    });
  }

  // 0: nothing is cut.
  int64_t units() const { return units_; }

  Parts parts(Shard s, const TensorType& type, const Parts& of_units) const {
    const int64_t scale = type.dims[s.dim] / units_;
    Parts parts = of_units;
    for (Range& r : parts) r = {.begin = r.begin * scale, .end = r.end * scale};
    return parts;
  }

  AnyOp localize(const OpCase& c, const Cut& cut, int rank) const {
    const int size = static_cast<int>(cut.size());
    LocalContext context{.axis = strategy_.only.value_or(MeshAxis::kTp),
                         .group = {.id = 0, .size = size, .rank = rank},
                         .strategy = strategy_};
    describe(strategy_.in, in_, cut, rank, context.in, context.in_ranges);
    describe(strategy_.out, out_, cut, rank, context.out, context.out_ranges);
    const auto changed = c.rules->localize(c.op.get(), context);
    return changed ? *changed : AnyOp{.rules = c.rules, .op = c.op};
  }

 private:
  template <class F>
  void visit(F&& f) const {
    for (size_t i = 0; i < in_.size(); ++i) {
      if (strategy_.in[i].is_cut()) f(strategy_.in[i], in_[i]);
    }
    for (size_t k = 0; k < out_.size(); ++k) {
      if (strategy_.out[k].is_cut()) f(strategy_.out[k], out_[k]);
    }
  }

  // In ranges of the order that ranks hold: the whole, one rank after the other.
  void describe(const std::vector<Shard>& shards, const Types& types, const Cut& cut, int rank,
                std::vector<Range>& mine, std::vector<std::vector<Range>>& all) const {
    for (size_t i = 0; i < shards.size(); ++i) {
      std::vector<Range> ranges;
      int64_t begin = 0;
      for (const Parts& of_units : cut) {
        if (!shards[i].is_cut()) break;
        int64_t size = 0;
        for (const Range& r : parts(shards[i], types[i], of_units)) size += r.size();
        ranges.push_back({.begin = begin, .end = begin + size});
        begin += size;
      }
      mine.push_back(ranges.empty() ? Range{} : ranges[rank]);
      all.push_back(std::move(ranges));
    }
  }

  const Strategy& strategy_;
  const Types& in_;
  const Types& out_;
  int64_t units_ = 0;
};

// In which type a strategy runs, and how near it must be to the whole in double.
struct How {
  DType dtype = DType::kF64;
  bool reference_only = true;
  double bound = 1e-6;
};

class Placements : public ::testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    if (c().rules->has_side_effect) GTEST_SKIP() << "speaks to another rank";
    values_ = fill_inputs(c(), DType::kBF16);
    whole_ = run_op(c(), in_, values_, {.reference_only = true});
  }

  const OpCase& c() const { return GetParam(); }

  // The outputs of every rank.
  std::vector<std::vector<Numbers>> run(const Strategy& s, const Sharding& sharding, const Cut& cut,
                                        const How& how) const {
    std::vector<std::vector<Numbers>> results(cut.size());
    const auto run_rank = [&](int rank, std::span<Communicator* const> groups) {
      OpCase local = c();
      const AnyOp op = sharding.localize(c(), cut, rank);
      local.rules = op.rules;
      local.op = op.op;
      Types types = types_as(c(), how.dtype);
      const auto mine = shards(s, sharding, cut, rank, types);
      // Threads of ranks would wait for those of kernels.
      const RunOptions options{.reference_only = how.reference_only,
                               .threads = groups.empty() ? 0 : 1,
                               .groups = groups};
      results[rank] = run_op(local, types, mine, options);
    };
    const int size = static_cast<int>(cut.size());
    if (!communicates(sharding, cut)) {
      for (int rank = 0; rank < size; ++rank) run_rank(rank, {});
      return results;
    }
    run_ranks(size, [&](World& world) {
      std::vector<int> ranks(cut.size());
      std::iota(ranks.begin(), ranks.end(), 0);
      const auto group = world.make_group("all", ranks);
      Communicator* const groups[] = {group.get()};
      run_rank(world.rank(), groups);
    });
    return results;
  }

  // Composites are run in the types and by the kernels of training too.
  void check(const Strategy& s, const Sharding& sharding, const Cut& cut) const {
    check(s, sharding, cut, How{});
    if (!communicates(sharding, cut)) return;
    check(s, sharding, cut, {.dtype = DType::kF32, .reference_only = false, .bound = 1e-5});
    check(s, sharding, cut, {.dtype = DType::kBF16, .reference_only = false, .bound = 1e-2});
  }

  const Types in_ = types_as(c(), DType::kF64);
  const Types out_ = c().rules->infer(c().op.get(), in_);

 private:
  bool communicates(const Sharding& sharding, const Cut& cut) const {
    const AnyOp first = sharding.localize(c(), cut, 0);
    return first.rules->is_composite && first.op != c().op;
  }

  void check(const Strategy& s, const Sharding& sharding, const Cut& cut, const How& how) const {
    const auto got = run(s, sharding, cut, how);
    for (size_t k = 0; k < out_.size(); ++k) {
      for (size_t rank = 0; rank < cut.size(); ++rank) {
        Numbers mine = got[rank][k];
        Numbers want = whole_[k];
        if (s.out[k].is_cut()) {
          want = take(whole_[k], out_[k].dims, s.out[k].dim,
                      sharding.parts(s.out[k], out_[k], cut[rank]));
        } else if (s.out[k] == kPartialSum) {
          std::fill(mine.begin(), mine.end(), 0.0);
          for (const auto& part : got) {
            for (size_t j = 0; j < mine.size(); ++j) mine[j] += part[k][j];
          }
        }
        ASSERT_EQ(mine.size(), want.size()) << "output " << k;
        EXPECT_LT(relative_error(mine, want), how.bound)
            << name_of(how.dtype) << " output " << k << " rank " << rank << " of " << cut.size();
      }
    }
  }

  std::vector<Numbers> shards(const Strategy& s, const Sharding& sharding, const Cut& cut, int rank,
                              Types& types) const {
    auto mine = values_;
    const auto last = static_cast<int>(cut.size()) - 1;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (s.in[i] == kPartialSum) {
        const double share = rank < last ? 0.25 : 1.0 - 0.25 * last;
        for (double& x : mine[i]) x *= share;
      } else if (s.in[i].is_cut()) {
        const Parts parts = sharding.parts(s.in[i], in_[i], cut[rank]);
        mine[i] = take(values_[i], in_[i].dims, s.in[i].dim, parts);
        int64_t& extent = types[i].dims[s.in[i].dim];
        extent = 0;
        for (const Range& r : parts) extent += r.size();
      }
    }
    return mine;
  }

  std::vector<Numbers> values_;
  std::vector<Numbers> whole_;
};

TEST_P(Placements, equal_the_whole) {
  for (const Strategy& s : c().rules->place(c().op.get(), in_)) {
    ASSERT_EQ(s.in.size(), in_.size());
    ASSERT_EQ(s.out.size(), out_.size());
    const Sharding sharding(s, in_, out_);
    for (const int ranks : {2, 3}) {
      if (sharding.units() == 0) {
        check(s, sharding, Cut(static_cast<size_t>(ranks)));
        continue;
      }
      const auto cuts = s.only == MeshAxis::kCp ? context_cuts(c(), sharding.units(), ranks)
                                                : cuts_of(sharding.units(), ranks);
      for (const Cut& cut : cuts) check(s, sharding, cut);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Placements, ::testing::ValuesIn(all_cases().good),
                         [](const auto& of) { return test_name(of.param.rules, of.param.name); });

}  // namespace
}  // namespace tokamak::testing

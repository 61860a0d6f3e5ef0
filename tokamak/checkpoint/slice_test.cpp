#include "tokamak/checkpoint/slice.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}

  int64_t upto(int64_t most) {
    return static_cast<int64_t>(random_u32(seed_, 1, next_++) % static_cast<uint64_t>(most + 1));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

Slice random_slice(Dice& dice, const Dims& dims) {
  Slice slice{.box = whole_box(dims), .begin = 0, .end = 0};
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dice.upto(2) < 2) continue;
    slice.box.begin[i] = dice.upto(dims[i]);
    slice.box.end[i] = slice.box.begin[i] + dice.upto(dims[i] - slice.box.begin[i]);
  }
  const int64_t count = numel(slice.box);
  slice.begin = dice.upto(1) == 0 ? 0 : dice.upto(count);
  slice.end = dice.upto(1) == 0 ? count : slice.begin + dice.upto(count - slice.begin);
  return slice;
}

// The global element of each element of a slice, by counting.
std::vector<int64_t> elements_of(const Slice& slice, const Dims& dims) {
  const Dims strides = row_major(dims);
  const Dims box = extents(slice.box);
  std::vector<int64_t> elements;
  for (int64_t at = slice.begin; at < slice.end; ++at) {
    int64_t rest = at;
    int64_t element = 0;
    for (size_t i = dims.size(); i-- > 0;) {
      element += (slice.box.begin[i] + rest % box[i]) * strides[i];
      rest /= box[i];
    }
    elements.push_back(element);
  }
  return elements;
}

TEST(Slice, shared_runs_equal_counting) {
  const std::vector<Dims> shapes{{}, {40}, {11, 13}, {5, 7, 6}, {1, 9, 1, 8}, {3, 4, 3, 5}};
  int64_t num_shared = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Dice dice(seed);
    const Dims& dims = shapes[seed % shapes.size()];
    const Slice from = random_slice(dice, dims);
    const Slice to = random_slice(dice, dims);
    ASSERT_EQ(slice_problem(from, dims), "");
    const auto from_elements = elements_of(from, dims);
    const auto to_elements = elements_of(to, dims);
    std::vector<int64_t> got(to_elements.size(), -1);
    for_each_shared_run(from, to, [&](int64_t f, int64_t t, int64_t count) {
      ASSERT_GT(count, 0);
      num_shared += count;
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(got.at(static_cast<size_t>(t + i)), -1);
        got[t + i] = from_elements.at(static_cast<size_t>(f + i));
      }
    });
    for (size_t i = 0; i < got.size(); ++i) {
      const bool shared = std::find(from_elements.begin(), from_elements.end(), to_elements[i]) !=
                          from_elements.end();
      ASSERT_EQ(got[i], shared ? to_elements[i] : -1) << "seed " << seed;
    }
  }
  EXPECT_GT(num_shared, 10'000);
}

TEST(Slice, whole_tensors_are_one_run) {
  int runs = 0;
  for_each_shared_run(whole_slice({4, 5, 6}), whole_slice({4, 5, 6}),
                      [&](int64_t f, int64_t t, int64_t count) {
                        ++runs;
                        EXPECT_EQ(f, 0);
                        EXPECT_EQ(t, 0);
                        EXPECT_EQ(count, 120);
                      });
  EXPECT_EQ(runs, 1);
}

TEST(Slice, problems_are_told) {
  const Dims dims{4, 6};
  EXPECT_EQ(slice_problem(whole_slice(dims), dims), "");
  EXPECT_NE(slice_problem(whole_slice({4}), dims), "");
  EXPECT_NE(slice_problem({.box = {.begin = {0, 0}, .end = {4, 7}}, .begin = 0, .end = 1}, dims),
            "");
  EXPECT_NE(slice_problem({.box = {.begin = {3, 0}, .end = {2, 6}}, .begin = 0, .end = 0}, dims),
            "");
  EXPECT_NE(slice_problem({.box = whole_box(dims), .begin = 0, .end = 25}, dims), "");
  EXPECT_NE(slice_problem({.box = whole_box(dims), .begin = 5, .end = 4}, dims), "");
}

TEST(Slice, a_cover_holds_every_element_once) {
  const Dims dims{4, 6};
  const Box left{.begin = {0, 0}, .end = {4, 2}};
  const Box right{.begin = {0, 2}, .end = {4, 6}};
  const Slice right_front{.box = right, .begin = 0, .end = 7};
  const Slice right_back{.box = right, .begin = 7, .end = 16};
  EXPECT_EQ(cover_problem(std::vector{slice_of(left), right_front, right_back}, dims), "");
  EXPECT_EQ(cover_problem(std::vector{whole_slice({})}, {}), "");
  EXPECT_EQ(cover_problem(std::vector<Slice>{}, {0, 3}), "");
  EXPECT_EQ(cover_problem(std::vector{slice_of(left), right_front}, dims),
            "its pieces hold 15 of 24 elements");
  const Slice shifted{.box = right, .begin = 6, .end = 15};
  EXPECT_EQ(cover_problem(std::vector{slice_of(left), right_front, shifted}, dims),
            "two of its pieces overlap");
  const Box middle{.begin = {0, 1}, .end = {4, 5}};
  EXPECT_EQ(cover_problem(std::vector{slice_of(left), slice_of(middle)}, dims),
            "two of its boxes overlap");
}

}  // namespace
}  // namespace tokamak

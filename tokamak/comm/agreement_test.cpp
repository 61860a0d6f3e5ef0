#include "tokamak/comm/agreement.h"

#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

/// What agree() tells all of the ranks, which must be one text; "" where they agree.
std::string disagreement(const std::vector<std::vector<AgreementItem>>& said) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(static_cast<int>(said.size()), [&](World& world) {
    std::string text;
    try {
      agree(world, said[world.rank()]);
    } catch (const Error& error) {
      text = error.what();
    }
    const std::lock_guard lock(mutex);
    errors.push_back(text);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

TEST(Agreement, IsSilentWhereAllSayTheSame) {
  EXPECT_EQ(disagreement({{{"seed", "1"}, {"graph", ""}}, {{"seed", "1"}, {"graph", ""}}}), "");
  EXPECT_EQ(disagreement({{{"seed", "1"}}}), "");
}

TEST(Agreement, NamesKeysValuesAndRanks) {
  const std::vector<AgreementItem> a{{"training.seed", "1"}, {"data", "x"}};
  const std::vector<AgreementItem> b{{"training.seed", "7"}, {"data", "x"}};
  EXPECT_EQ(disagreement({a, a, a, b, a}),
            "ranks disagree: training.seed is 1 on ranks 0-2, 4 and 7 on rank 3");
  EXPECT_EQ(disagreement({{{"a", "1"}, {"b", "2"}}, {{"a", "2"}}}),
            "ranks disagree: a is 1 on rank 0 and 2 on rank 1; b is 2 on rank 0 and absent on rank "
            "1");
}

TEST(Agreement, CutsALongList) {
  std::vector<std::vector<AgreementItem>> said(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 40; ++i) {
      said[rank].push_back({"key" + std::to_string(i), std::to_string(rank)});
    }
  }
  const std::string text = disagreement(said);
  EXPECT_NE(text.find("key9 is"), std::string::npos) << text;
  EXPECT_EQ(text.find("key10 is"), std::string::npos) << text;
  EXPECT_NE(text.find("; and 30 more keys"), std::string::npos) << text;
}

}  // namespace
}  // namespace tokamak

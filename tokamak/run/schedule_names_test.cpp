#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/config/key_table.h"
#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

TEST(ScheduleNames, AreAllAmongTheValuesOfTheKey) {
  const std::vector<std::string> listed =
      allowed_list(*find_key("parallelism.pipeline_parallel_schedule"));
  for (const std::string& name : schedule_names())
    EXPECT_EQ(std::count(listed.begin(), listed.end(), name), 1) << name;
}

}  // namespace
}  // namespace tokamak

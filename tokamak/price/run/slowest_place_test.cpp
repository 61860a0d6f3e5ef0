#include "tokamak/price/run/slowest_place.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/price/machine/machine_key.h"
#include "tokamak/price/run/test_request.h"

namespace tokamak {
namespace {

// Of three groups of 8 the second lies in two domains of 12.
TEST(SlowestPlace, IsOfTheRankWhoseGroupsLieWorst) {
  PriceRequest request = request_of(
      {"--model.flavor=1B", "--training.seq_len=2048", "--training.local_batch_size=4",
       "--parallelism.tensor_parallel_degree=8", "--parallelism.data_parallel_shard_degree=3"},
      24);
  const Mesh mesh = mesh_of(request.degrees);
  EXPECT_EQ(slowest_place(mesh, price::load_machine("h100"), CausalWork::kEven), 0);
  const double whole_s = seconds_of(request);
  price::set_number(request.machine, "nvlink.num_devices", 12.0);
  EXPECT_EQ(slowest_place(mesh, request.machine, CausalWork::kEven), 8);
  const PricedRun worst = price_run(request);
  EXPECT_EQ(worst.planned.ranks().front().rank, 8);
  EXPECT_GT(worst.step.seconds, 1.3 * whole_s);
  request.all_ranks = true;
  EXPECT_NEAR(seconds_of(request), worst.step.seconds, 0.02 * worst.step.seconds);
}

// Of two groups of 6 the second lies in two nodes of 8, and of its ranks the last four have their
// other owner in another node.
TEST(SlowestPlace, IsOfTheRankWhoseOwnersLieWorst) {
  PriceRequest request =
      request_of({"--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=1",
                  "--parallelism.tensor_parallel_degree=6"},
                 12);
  EXPECT_EQ(slowest_place(mesh_of(request.degrees), request.machine, CausalWork::kEven), 8);
  const double worst_s = seconds_of(request);
  request.all_ranks = true;
  EXPECT_NEAR(worst_s, seconds_of(request), 0.06 * worst_s);

  // Owners lie alike: the first of the group stands for it.
  PriceRequest alike = request_of(
      {"--model.flavor=1B", "--training.seq_len=2048", "--training.local_batch_size=4",
       "--parallelism.tensor_parallel_degree=4", "--parallelism.data_parallel_shard_degree=3"},
      12);
  price::set_number(alike.machine, "nvlink.num_devices", 6.0);
  EXPECT_EQ(slowest_place(mesh_of(alike.degrees), alike.machine, CausalWork::kEven), 4);
  const double alike_s = seconds_of(alike);
  alike.all_ranks = true;
  EXPECT_NEAR(seconds_of(alike), alike_s, 0.02 * alike_s);
}

// Of groups of 3 owners the third lies in two nodes of 8; of 16 ranks of tp the fifth in two racks.
TEST(SlowestPlace, IsOfTheRankWhoseGroupsAreCut) {
  struct Case {
    const char* machine;
    Degrees degrees;
  };

  for (const Case& c :
       {Case{"h100", {.dp_replicate = 8, .dp_shard = 3}},
        Case{"h100", {.dp_replicate = 4, .dp_shard = 3, .tp = 2}},
        Case{"h100", {.dp_replicate = 4, .dp_shard = 6}}, Case{"h100", {.cp = 4, .tp = 6}},
        Case{"gb200", {.cp = 5, .tp = 16}}, Case{"gb200", {.cp = 9, .tp = 16}},
        Case{"gb200", {.dp_replicate = 5, .dp_shard = 16}},
        Case{"gb200", {.pp = 3, .dp_replicate = 5, .dp_shard = 8}}}) {
    const Degrees& d = c.degrees;
    SCOPED_TRACE(mesh_text(d));
    PriceRequest request =
        request_of({"--model.flavor=1B", "--training.seq_len=4320",
                    fmt::format("--training.local_batch_size={}", 2 * d.pp),
                    fmt::format("--parallelism.pipeline_parallel_degree={}", d.pp),
                    fmt::format("--parallelism.data_parallel_replicate_degree={}", d.dp_replicate),
                    fmt::format("--parallelism.data_parallel_shard_degree={}", d.dp_shard),
                    fmt::format("--parallelism.context_parallel_degree={}", d.cp),
                    fmt::format("--parallelism.tensor_parallel_degree={}", d.tp)},
                   d.world());
    request.machine = price::load_machine(c.machine);
    const double worst_s = seconds_of(request);
    request.all_ranks = true;
    EXPECT_NEAR(seconds_of(request), worst_s, 0.02 * worst_s);
  }
}

// In order of the sequence the last rank attends to all of it.
TEST(SlowestPlace, IsOfTheRankThatAttendsMost) {
  for (const char* method : {"allgather", "alltoall"}) {
    PriceRequest request = request_of(
        {"--model.flavor=1B", "--training.seq_len=32768", "--parallelism.context_parallel_degree=4",
         "--parallelism.tensor_parallel_degree=2",
         "--parallelism.context_parallel_load_balancer=none",
         std::string("--parallelism.context_parallel_rotate_method=") + method},
        8);
    const PricedRun last = price_run(request);
    EXPECT_EQ(last.planned.ranks().front().rank, 6);
    request.all_ranks = true;
    EXPECT_NEAR(seconds_of(request), last.step.seconds, 0.005 * last.step.seconds) << method;
    request.config.parallelism.context_parallel_load_balancer = "headtail";
    EXPECT_LT(seconds_of(request), 0.9 * last.step.seconds) << method;
  }
}

}  // namespace
}  // namespace tokamak

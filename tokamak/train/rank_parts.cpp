#include "tokamak/train/rank_parts.h"

#include <algorithm>

#include "tokamak/core/bytes.h"
#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/run/op_table.h"
#include "tokamak/run/plan_proof.h"
#include "tokamak/train/predecessor.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

std::string digest_of(std::string_view text) {
  return fmt::format("{:016x}", hash_of(std::as_bytes(std::span(text))));
}

std::vector<const Plan*> plans_of(const PlannedRun& run) {
  std::vector<const Plan*> all{&run.plan()};
  if (run.validation_plan() != nullptr) all.push_back(run.validation_plan());
  return all;
}

std::vector<const Plan*> plans_that_fit(const PlannedRun& run, const Backend& backend,
                                        int64_t ranks_per_host) {
  const auto free = backend.free_bytes();
  TOK_REQUIRE(
      !free || run.peak_bytes() <= *free,
      "not enough GPU memory: the plan wants {} bytes, {} are free; use fewer sequences per "
      "microbatch (training.local_batch_size), more recompute "
      "(activation_checkpoint.mode) or more shards "
      "(parallelism.data_parallel_shard_degree)\n{}",
      run.peak_bytes(), *free, memory_table(run));
  if (free && run.host_bytes() > 0) {
    require_host_memory(run.host_bytes(), ranks_per_host,
                        "not enough host memory for what training.enable_cpu_offload moves there; "
                        "optimizer.state_dtype = \"bfloat16\" halves the moments, and "
                        "training.offload_above_gib keeps on the device what fits");
  }
  if (!free) {
    require_host_memory(run.peak_bytes() + run.host_bytes(), ranks_per_host,
                        "not enough memory for the plan; use fewer sequences per microbatch "
                        "(training.local_batch_size), more recompute "
                        "(activation_checkpoint.mode) or more shards");
  }
  return plans_of(run);
}

// Dying ranks may take seconds to unpin gigabytes of the host before they give a device's memory
// back; nobody waits for them where the plan fits in what they leave. Returns the seconds.
double await_room(const PlannedRun& run, const Backend& backend) {
  constexpr int64_t kForConnections = int64_t{8} << 30;
  const auto free = backend.free_bytes();
  if (free && *free >= run.peak_bytes() + kForConnections) return 0.0;
  return await_predecessors();
}

// Ranks that compute with other instructions get other bits: it then matters which rank does what.
void compare_arithmetic(const TrainerOptions& o, World& world, const Backend& backend) {
  const std::vector<std::string> all = world.all_gather_text(backend.arithmetic());
  const auto other =
      std::ranges::find_if(all, [&](const std::string& text) { return text != all[0]; });
  if (other == all.end() || world.rank() != 0 || !o.logging.print) return;
  o.logging.print("WARNING",
                  fmt::format("ranks compute on unlike devices, so that results depend on which "
                              "rank does what: rank 0 is a {}, rank {} is a {}",
                              all[0], other - all.begin(), *other));
}

void agree_on(const TrainerOptions& o, const RankParts& parts, World& world) {
  if (world.size() == 1) return;
  std::vector<AgreementItem> items = o.agreement;
  items.push_back({"the model", digest_of(to_hf_config(o.model, o.shape.training.master, {}))});
  items.push_back({"the program", digest_of(read_file("/proc/self/exe"))});
  std::string sources;
  for (const auto& source : parts.loader.state().sources)
    sources += fmt::format("{:016x} ", source.hash);
  items.push_back({"the data", digest_of(sources)});
  fail_together(world, [&] { agree(world, items); });
}

// Each rank gives what the others notice of its step, one of each kind as a whole; rank 0 runs
// these together.
void prove_together(const PlannedRun& run, World& world) {
  all_together(world, [&] { prove_plans(run); });
  if (world.size() == 1) return;
  const std::string own = step_lines(run);
  std::vector<uint64_t> digests;
  for (const std::string& digest : world.all_gather_text(digest_of(own)))
    digests.push_back(std::stoull(digest, nullptr, 16));
  const RankKinds kinds = find_kinds(run.mesh(), digests);
  const std::vector<int> firsts = kinds.first_ranks();
  const bool is_first = std::ranges::find(firsts, world.rank()) != firsts.end();
  const std::vector<std::string> all = world.all_gather_text(is_first ? own : "");
  on_rank_zero(world, [&] {
    std::vector<std::string> lines;
    for (const int rank : firsts) lines.push_back(all[rank]);
    prove_ranks(kinds, lines);
  });
}

void say_remarks(const TrainerOptions& o, const RankParts& parts, World& world) {
  if (world.rank() != 0 || !o.logging.print) return;
  for (const std::string& line : parts.loader.remarks()) o.logging.print("WARNING", line);
  if (!parts.validation_loader) return;
  for (const std::string& line : parts.validation_loader->remarks())
    o.logging.print("WARNING", line);
}

}  // namespace

RankParts::RankParts(const TrainerOptions& o, Backend& backend)
    : run(o.model, o.shape, backend.target()),
      awaited_s(await_room(run, backend)),
      memory(backend, plans_that_fit(run, backend, o.ranks_per_host)),
      access(memory, run.states(), run.layout()),
      loader(o.data) {
  TOK_CHECK(memory.bytes() == run.peak_bytes(), "{} bytes for {}", memory.bytes(),
            run.peak_bytes());
  if (o.validation) validation_loader = std::make_unique<Loader>(o.validation->data);
}

std::vector<const Plan*> RankParts::plans() const {
  return plans_of(run);
}

// Texts sort by the bytes that they begin with.
std::string memory_line(const RankParts& parts, World& world) {
  const int64_t planned = parts.run.peak_bytes();
  Backend& backend = parts.memory.backend();
  const bool is_host = backend.streams() == nullptr;
  const int64_t allocated = backend.allocated_bytes() - (is_host ? parts.run.host_bytes() : 0);
  std::string text = fmt::format("{:020}{:.2f} GiB planned, {:.2f} GiB allocated", planned,
                                 gib(planned), gib(allocated));
  if (parts.run.host_bytes() > 0) {
    text += fmt::format("; {:.2f} GiB of the host's for what is offloaded",
                        gib(parts.run.host_bytes()));
  }
  const auto all = world.all_gather_text(text);
  const auto most = std::ranges::max_element(all);
  return fmt::format("Memory of rank {}: {}", most - all.begin(), most->substr(20));
}

std::unique_ptr<RankParts> make_parts(const TrainerOptions& o, World& world, Backend& backend,
                                      StartPhases& phases) {
  std::unique_ptr<RankParts> parts;
  all_together(world, [&] { parts = std::make_unique<RankParts>(o, backend); });
  agree_on(o, *parts, world);
  phases.end("plan and memory");
  prove_together(parts->run, world);
  phases.end("proof of the plans");
  compare_arithmetic(o, world, backend);
  say_remarks(o, *parts, world);
  phases.end("plan and memory");
  phases.take_out("plan and memory", "ranks that die", parts->awaited_s);
  return parts;
}

}  // namespace tokamak

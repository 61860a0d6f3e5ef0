#include "tokamak/train/report/step_profile.h"

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/run/profile_trace.h"

namespace tokamak {

bool StepProfile::is_traced(int64_t step) const {
  if (o_.traces_folder.empty()) return false;
  return (step - 1) % o_.freq >= o_.freq - o_.active;
}

std::filesystem::path StepProfile::path_of(const std::filesystem::path& folder, int64_t step,
                                           std::string_view what) const {
  const auto at = folder / fmt::format("iteration_{}", step);
  make_folders(at);
  return at / fmt::format("rank{}_{}", rank_, what);
}

void StepProfile::write(const std::function<void()>& work) const {
  try {
    work();
  } catch (const SystemError& error) {
    log_.say(fmt::format("A report is left out: {}", error.what()), "WARNING");
  }
}

void StepProfile::write_trace(int64_t step, const std::vector<TaskSpan>& spans) const {
  write([&] {
    const auto path = path_of(o_.traces_folder, step, "trace.json");
    write_file_atomic(path, chrome_trace(spans, run_.plan(), rank_));
    write_file_atomic(path_of(o_.traces_folder, step, "ops.txt"),
                      op_report(spans, o_.rates, run_.plan().groups));
    log_.say(fmt::format("Wrote the trace {}", path.string()));
  });
}

// The run allocates exactly its plan, so the plan's table is the snapshot.
void StepProfile::write_memory(int64_t step) const {
  if (o_.memory_folder.empty() || step % o_.freq != 0) return;
  write([&] {
    const auto path = path_of(o_.memory_folder, step, "memory.txt");
    write_file_atomic(path, memory_table(run_));
    log_.say(fmt::format("Wrote the memory table {}", path.string()));
  });
}

}  // namespace tokamak

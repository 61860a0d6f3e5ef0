#include "tokamak/core/file_call.h"

#include <map>
#include <mutex>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// The calls of all threads, by number. A watcher thread reads them, so they are not any one's own.
struct Calls {
  std::mutex mutex;
  uint64_t last = 0;
  uint64_t ended = 0;
  std::map<uint64_t, const FileCall*> open;
};

Calls& calls() {
  static auto* const kCalls = new Calls;  // threads may outlive main()
  return *kCalls;
}

}  // namespace

FileCall::FileCall(const char* call, const std::filesystem::path& path) : call_(call), path_(path) {
  const std::lock_guard lock(calls().mutex);
  number_ = ++calls().last;
  calls().open.emplace(number_, this);
}

FileCall::~FileCall() {
  const std::lock_guard lock(calls().mutex);
  calls().open.erase(number_);
  ++calls().ended;
}

UnreturnedCall oldest_file_call() {
  const std::lock_guard lock(calls().mutex);
  if (calls().open.empty()) return {};
  const auto& [number, call] = *calls().open.begin();
  return {.number = number, .text = fmt::format("{} of {}", call->call_, call->path_.string())};
}

uint64_t num_file_calls() {
  const std::lock_guard lock(calls().mutex);
  return calls().last + calls().ended;
}

}  // namespace tokamak

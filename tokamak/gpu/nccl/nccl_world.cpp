#include "tokamak/gpu/nccl/nccl_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/device.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/loaded/library.h"
#include "tokamak/gpu/nccl/nccl_communicator.h"

namespace tokamak::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLook = 200ms;
// How long a wait continues after a peer's fault is seen, so that the rank at fault reports first.
constexpr auto kGrace = 2s;

// Watches the calls in flight: the thread that makes them may be blocked in a full launch queue or
// in a wait for the device.
class Watchdog {
 public:
  Watchdog(World& control, int device) : control_(control), device_(device) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void set_timeout(std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }

  void add(NcclCommunicator& comm) {
    const std::lock_guard lock(mutex_);
    comms_.push_back(&comm);
    opening_.reset();
  }

  void remove(NcclCommunicator& comm) {
    const std::lock_guard lock(mutex_);
    std::erase(comms_, &comm);
  }

  /// From here to add() the calling thread waits for the other members of a new group.
  void open(const std::string& group) {
    const std::lock_guard lock(mutex_);
    opening_ = group;
    last_move_ = Clock::now();
  }

 private:
  void run(const std::stop_token& stop) {
    cudaSetDevice(device_);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, stop, kLook, [] { return false; }) && !stop.stop_requested()) {
      const std::string fault = look();
      if (fault.empty()) continue;
      end_job(fmt::format("{}; the last collectives:{}", fault, control_.describe_flights()));
      return;
    }
  }

  std::string look() {
    const auto now = Clock::now();
    bool is_open = opening_.has_value();
    bool has_moved = false;
    for (NcclCommunicator* comm : comms_) {
      const auto progress = comm->poll();
      is_open |= progress.is_open;
      has_moved |= progress.has_moved;
      std::string error = comm->find_error();
      if (!error.empty()) return error;
    }
    if (has_moved || !is_open) last_move_ = now;
    const std::string fault = is_open ? control_.find_fault() : "";
    if (fault.empty()) fault_since_.reset();
    if (!fault.empty() && !fault_since_) fault_since_ = now;
    if (fault_since_ && now - *fault_since_ >= kGrace) return fault;
    if (now - last_move_ < timeout_) return "";
    const double seconds = std::chrono::duration<double>(timeout_).count();
    if (opening_)
      return fmt::format("rank {} waits for the others of group \"{}\" for {} s", control_.rank(),
                         *opening_, seconds);
    return fmt::format("rank {}: no collective on its GPU has ended for {} s", control_.rank(),
                       seconds);
  }

  // Ends the ranks where they are processes; in one process the others' kernels must end first.
  void end_job(const std::string& why) {
    try {
      control_.abort(static_cast<int>(ExitCode::kTryAgain), "machine: " + why);
    } catch (const SystemError&) {
      for (NcclCommunicator* comm : comms_) comm->abort(why);
    }
  }

  World& control_;
  int device_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::chrono::milliseconds timeout_ = 300s;
  std::vector<NcclCommunicator*> comms_;
  std::optional<std::string> opening_;
  std::optional<Clock::time_point> fault_since_;
  Clock::time_point last_move_ = Clock::now();
  std::jthread thread_;  // last member: it uses the others
};

class NcclWorld final : public World {
 public:
  NcclWorld(World& control, int device, const NcclOptions& options)
      : control_(control), device_(device), options_(options), watchdog_(control, device) {}

  int rank() const override { return control_.rank(); }

  int size() const override { return control_.size(); }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> ranks) override {
    return make(name, ranks, {.max_ctas = options_.max_ctas});
  }

  std::unique_ptr<Communicator> make_message_group(const std::string& name,
                                                   std::span<const int> ranks) override {
    return make(name, ranks, {.max_ctas = options_.max_ctas, .sends_messages = true});
  }

  std::unique_ptr<Communicator> make_gather_group(const std::string& name,
                                                  std::span<const int> ranks,
                                                  const GatheredMemory& memory) override {
    return make(
        name, ranks,
        {.max_ctas = options_.max_ctas, .memory = options_.copy_engine ? &memory : nullptr});
  }

  void barrier() override { control_.barrier(); }

  std::vector<std::string> all_gather_text(const std::string& mine) override {
    return control_.all_gather_text(mine);
  }

  std::string broadcast_text(const std::string& text, int root) override {
    return control_.broadcast_text(text, root);
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    control_.set_timeout(timeout);
    watchdog_.set_timeout(timeout);
  }

  void abort(int code, const std::string& why) override { control_.abort(code, why); }

  FlightPage& flights() override { return control_.flights(); }

  std::string describe_flights() const override { return control_.describe_flights(); }

  std::string find_fault() const override { return control_.find_fault(); }

 private:
  struct GroupUse {
    int max_ctas = 0;
    bool sends_messages = false;
    const GatheredMemory* memory = nullptr;  // copy engines gather in it; null: kernels gather
  };

  std::unique_ptr<Communicator> make(const std::string& name, std::span<const int> ranks,
                                     const GroupUse& use) {
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    TOK_CHECK(me != ranks.end(), "rank {} is not in group \"{}\"", rank(), name);
    HostGroup group{.name = name,
                    .world_ranks = {ranks.begin(), ranks.end()},
                    .rank = static_cast<int>(me - ranks.begin())};
    TOK_CUDA(cudaSetDevice(device_));
    ncclComm_t nccl = group.world_ranks.size() > 1 ? connect(group, use) : nullptr;
    auto comm = std::make_unique<NcclCommunicator>(std::move(group), nccl, flights());
    watchdog_.add(*comm);
    comm->at_end([this, c = comm.get()] { watchdog_.remove(*c); });
    return comm;
  }

  ncclComm_t connect(const HostGroup& group, GroupUse use) {
    const auto host = control_.make_group(group.name + " (setup)", group.world_ranks);
    ncclUniqueId id{};
    if (group.rank == 0) TOK_NCCL(ncclGetUniqueId(&id));
    host->broadcast(&id, sizeof id, DType::kU8, 0, nullptr);
    // A copy engine reads a peer's part at the offset where its own rank has its part. A member
    // whose plan gathers nothing in this group takes part in the comparison, too.
    const GatheredMemory* memory = use.memory;
    if (!is_common(memory == nullptr ? 0 : memory->layout, *host)) memory = nullptr;
    if (use.sends_messages && use.max_ctas == 0)
      use.max_ctas = is_common(std::hash<std::string>{}(control_.flights().host), *host)
                         ? options_.message_ctas
                         : options_.network_message_ctas;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (use.max_ctas > 0) config.maxCTAs = use.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (memory != nullptr) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#else
    TOK_REQUIRE(memory == nullptr,
                "parallelism.copy_engine_all_gather: wanted NCCL 2.28, this program has {}",
                nccl_version());
#endif
    watchdog_.open(group.name);
    ncclComm_t comm = nullptr;
    const ncclResult_t made = ncclCommInitRankConfig(
        &comm, static_cast<int>(group.world_ranks.size()), id, group.rank, &config);
    if (made != ncclSuccess) require_room(group.name);
    check_nccl(made, "ncclCommInitRankConfig");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (memory != nullptr) {
      for (const std::span<std::byte> arena : memory->arenas) {
        ncclWindow_t window = nullptr;
        TOK_NCCL(ncclCommWindowRegister(comm, arena.data(), arena.size(), &window,
                                        NCCL_WIN_COLL_SYMMETRIC));
      }
    }
#endif
    if (group.world_ranks.size() == 2) connect_pair(comm, 1 - group.rank);
    return comm;
  }

  // Where NCCL could not make a communicator, memory is the likely reason if little is left.
  static void require_room(const std::string& group) {
    constexpr size_t kRoom = size_t{2} << 30U;
    size_t free = 0;
    size_t total = 0;
    TOK_CUDA(cudaMemGetInfo(&free, &total));
    TOK_REQUIRE(free >= kRoom,
                "not enough GPU memory for NCCL's buffers of group \"{}\": {:.2f} GiB are left "
                "besides the plan, and a group takes 0.8 to 1.5 GiB; use fewer sequences per "
                "microbatch (training.local_batch_size), more recompute "
                "(activation_checkpoint.mode) or more shards",
                group, static_cast<double>(free) / kGiB);
  }

  static bool is_common(uint64_t mine, Communicator& host) {
    std::vector<uint64_t> all(host.size());
    host.all_gather(&mine, all.data(), sizeof mine, DType::kU8, nullptr);
    return std::all_of(all.begin(), all.end(), [&](uint64_t x) { return x == mine; });
  }

  // NCCL connects a pair at its first message: the host waits for the peer's host, which may wait
  // for its device, which waits for this rank's next message. So a pair exchanges a message here.
  static void connect_pair(ncclComm_t comm, int peer) {
    void* bytes = nullptr;
    cudaStream_t stream = nullptr;
    TOK_CUDA(cudaMalloc(&bytes, 2));
    TOK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TOK_NCCL(ncclGroupStart());
    TOK_NCCL(ncclSend(bytes, 1, ncclUint8, peer, comm, stream));
    TOK_NCCL(ncclRecv(static_cast<std::byte*>(bytes) + 1, 1, ncclUint8, peer, comm, stream));
    TOK_NCCL(ncclGroupEnd());
    TOK_CUDA(cudaStreamSynchronize(stream));
    TOK_CUDA(cudaStreamDestroy(stream));
    TOK_CUDA(cudaFree(bytes));
  }

  World& control_;
  int device_;
  NcclOptions options_;
  Watchdog watchdog_;
};

}  // namespace

void* allocate_symmetric(int64_t bytes) {
  void* memory = nullptr;
  return ncclMemAlloc(&memory, static_cast<size_t>(bytes)) == ncclSuccess ? memory : nullptr;
}

void free_symmetric(void* memory) {
  ncclMemFree(memory);
}

bool has_copy_engine_gathers() {
  return NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) && is_here(CudaLibrary::kNccl);
}

std::string nccl_version() {
  if (!is_here(CudaLibrary::kNccl)) return "";
  int v = 0;
  TOK_NCCL(ncclGetVersion(&v));
  return dotted_version(static_cast<size_t>(v));
}

std::unique_ptr<World> make_nccl_world(World& control, Backend& gpu, const NcclOptions& options) {
  TOK_REQUIRE(is_here(CudaLibrary::kNccl), "{} ranks on GPUs need NCCL: {}", control.size(),
              why_missing(CudaLibrary::kNccl));
  const auto* device = dynamic_cast<const Device*>(gpu.streams());
  TOK_CHECK(device != nullptr, "{} is no GPU backend", gpu.target().backend);
  return std::make_unique<NcclWorld>(control, device->index(), options);
}

}  // namespace tokamak::gpu

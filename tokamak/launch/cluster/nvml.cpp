#include "tokamak/launch/cluster/nvml.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace tokamak::launch {
namespace {

// Types and numbers of nvml.h, whose functions are found by name.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverStart = 0;
constexpr int kMultiprocessorClock = 1;
constexpr unsigned char kFabricCompleted = 3;

struct FabricInfo {
  unsigned char cluster[16];
  int status;
  unsigned int clique;
  unsigned char state;
};

class Library {
 public:
  Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    is_ready_ = handle_ != nullptr && call("nvmlInit_v2");
  }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  ~Library() {
    if (is_ready_) call("nvmlShutdown");
    if (handle_ != nullptr) dlclose(handle_);
  }

  bool is_ready() const { return is_ready_; }

  /// Whether the library has the function and the call succeeds.
  template <class... Args>
  bool call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(handle_, name));
    return function != nullptr && function(args...) == kSuccess;
  }

 private:
  void* handle_;
  bool is_ready_ = false;
};

struct Xid {
  int number;
  const char* meaning;
};

// Those of NVIDIA's Xid catalogue whose cause is hardware or the driver, not the program.
constexpr Xid kXids[] = {{48, "memory error that ECC could not correct"},
                         {64, "a bad memory row could not be retired"},
                         {74, "NVLink error"},
                         {79, "the GPU has fallen off the bus"},
                         {92, "many corrected memory errors"},
                         {95, "uncontained memory error"},
                         {119, "the GPU's system processor does not answer"},
                         {120, "error of the GPU's system processor"}};

std::string kernel_log() {
  const int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return "";
  std::string log;
  char record[8192];
  constexpr size_t kMost = 4 << 20;
  for (ssize_t count = 0; log.size() < kMost && (count = read(fd, record, sizeof record)) > 0;)
    log.append(record, static_cast<size_t>(count));
  close(fd);
  return log;
}

std::string domain_of(const FabricInfo& info) {
  const bool is_in_one =
      info.state == kFabricCompleted && info.status == kSuccess &&
      std::any_of(std::begin(info.cluster), std::end(info.cluster), [](auto c) { return c != 0; });
  if (!is_in_one) return "";
  std::string text;
  for (const unsigned char byte : info.cluster) text += fmt::format("{:02x}", byte);
  return fmt::format("{}.{}", text, info.clique);
}

void add_faults(const Library& nvml, Device device, GpuHealth& health) {
  unsigned int corrected = 0;
  unsigned int uncorrected = 0;
  unsigned int is_pending = 0;
  unsigned int has_failed = 0;
  if (nvml.call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &is_pending,
                &has_failed)) {
    if (has_failed != 0) health.faults.emplace_back("a memory row could not be remapped");
    if (is_pending != 0)
      health.faults.emplace_back("memory rows are to be remapped; the GPU wants a reset");
  }
  constexpr unsigned long long kSlowdown = 0x8;
  constexpr unsigned long long kTooHot = 0x40;
  constexpr unsigned long long kPowerBrake = 0x80;
  unsigned long long reasons = 0;
  if (!nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons)) return;
  if ((reasons & kTooHot) != 0) health.faults.emplace_back("it slows down because it is too hot");
  if ((reasons & kPowerBrake) != 0) health.faults.emplace_back("its power is braked from outside");
  if (reasons == kSlowdown) health.faults.emplace_back("the hardware slows it down");
}

}  // namespace

std::vector<std::string> xid_faults(const std::string& log, const std::string& bus) {
  std::vector<std::string> faults;
  const std::string key = "Xid (PCI:" + bus.substr(0, bus.find('.')) + "): ";
  std::set<int> seen;
  for (size_t at = log.find(key); at != std::string::npos; at = log.find(key, at + 1)) {
    const int number = std::atoi(log.c_str() + at + key.size());
    for (const Xid& xid : kXids) {
      if (xid.number == number && seen.insert(number).second)
        faults.push_back(fmt::format("Xid {}: {}", number, xid.meaning));
    }
  }
  return faults;
}

std::optional<GpuHealth> gpu_health(const std::string& bus) {
  const Library nvml;
  Device device = nullptr;
  if (!nvml.is_ready() || !nvml.call("nvmlDeviceGetHandleByPciBusId_v2", bus.c_str(), &device))
    return std::nullopt;
  GpuHealth health;
  char driver[96] = "";
  if (nvml.call("nvmlSystemGetDriverVersion", &driver[0], unsigned{sizeof driver}))
    health.driver = driver;
  unsigned int mhz = 0;
  if (nvml.call("nvmlDeviceGetClockInfo", device, kMultiprocessorClock, &mhz))
    health.clock_mhz = mhz;
  if (nvml.call("nvmlDeviceGetMaxClockInfo", device, kMultiprocessorClock, &mhz))
    health.most_clock_mhz = mhz;
  unsigned long long errors = 0;
  if (nvml.call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverStart, &errors))
    health.ecc_errors = static_cast<int64_t>(errors);
  FabricInfo fabric{};
  if (nvml.call("nvmlDeviceGetGpuFabricInfo", device, &fabric))
    health.nvlink_domain = domain_of(fabric);
  add_faults(nvml, device, health);
  for (std::string& fault : xid_faults(kernel_log(), bus))
    health.faults.push_back(std::move(fault));
  return health;
}

}  // namespace tokamak::launch

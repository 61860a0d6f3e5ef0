#include "tokamak/core/error.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"

namespace tokamak::gpu {

DeviceInfo describe_device(int device) {
  TOK_CHECK(false, "GPU {}: {}", device, why_none());
}

int current_device() {
  TOK_CHECK(false, "{}", why_none());
}

MemoryInUse memory_in_use() {
  TOK_CHECK(false, "{}", why_none());
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  return {};
}

}  // namespace tokamak::gpu

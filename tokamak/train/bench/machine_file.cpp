#include "tokamak/train/bench/machine_file.h"

#include <fstream>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

std::optional<MachineFile> load_file(const std::string& path, int threads) {
  if (!path_exists(path)) return std::nullopt;
  try {
    const Json json = parse_json(read_file(path), path);
    MachineFile m{.cpu = json_member<std::string>(json, "cpu", path)};
    m.threads = static_cast<int>(json_member<int64_t>(json, "threads", path));
    m.gemm_flops_f32 = json_member<double>(json, "gemm_flops_f32", path);
    m.gemm_flops_bf16 = json_member<double>(json, "gemm_flops_bf16", path);
    m.copy_bytes_per_s = json_member<double>(json, "copy_bytes_per_s", path);
    if (m.threads == threads && m.cpu == cpu_name()) return m;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path machine_file_path(const std::string& host) {
  return cache_folder() / (host.empty() ? "machine.json" : "machine." + host + ".json");
}

std::filesystem::path save_machine_file(const MachineFile& m, const std::string& host) {
  auto path = machine_file_path(host);
  make_folders(path.parent_path());
  const OrderedJson json{{"cpu", m.cpu},
                         {"threads", m.threads},
                         {"gemm_flops_f32", m.gemm_flops_f32},
                         {"gemm_flops_bf16", m.gemm_flops_bf16},
                         {"copy_bytes_per_s", m.copy_bytes_per_s}};
  write_file_atomic(path, json.dump(2) + "\n");
  return path;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::optional<MachineFile> load_machine_file(int threads, const std::string& host) {
  if (!host.empty()) {
    if (const auto own = load_file(machine_file_path(host), threads)) return own;
  }
  return load_file(machine_file_path(), threads);
}

std::optional<MachineFile> load_machine_file(int threads) {
  return load_machine_file(threads, host_name());
}

}  // namespace tokamak

#include "tokamak/launch/cluster/rank_report.h"

#include "tokamak/core/json.h"

namespace tokamak::launch {

std::string to_json(const RankReport& r) {
  OrderedJson json{{"rank", r.rank},
                   {"local_rank", r.local_rank},
                   {"host", r.host},
                   {"is_gpu", r.is_gpu},
                   {"device", r.device},
                   {"memory_bytes", r.memory_bytes},
                   {"free_bytes", r.free_bytes},
                   {"gemm_flops", r.gemm_flops},
                   {"copy_bytes_per_s", r.copy_bytes_per_s},
                   {"ring_bytes_per_s", r.ring_bytes_per_s},
                   {"pair_bytes_per_s", r.pair_bytes_per_s},
                   {"pair_rank", r.pair_rank},
                   {"disk_bytes", r.disk_bytes},
                   {"shares_folder", r.shares_folder},
                   {"folder_error", r.folder_error},
                   {"clock_mhz", r.clock_mhz},
                   {"most_clock_mhz", r.most_clock_mhz},
                   {"faults", r.faults},
                   {"nvlink_domain", r.nvlink_domain},
                   {"versions", r.versions}};
  json["ecc_errors"] = r.ecc_errors ? OrderedJson(*r.ecc_errors) : OrderedJson();
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RankReport report_of_json(const std::string& text) {
  const std::string what = "report of a rank";
  const Json json = parse_json(text, what);
  RankReport r{.rank = json_member<int64_t>(json, "rank", what),
               .local_rank = json_member<int64_t>(json, "local_rank", what),
               .host = json_member<std::string>(json, "host", what),
               .is_gpu = json_member<bool>(json, "is_gpu", what),
               .device = json_member<std::string>(json, "device", what),
               .memory_bytes = json_member<int64_t>(json, "memory_bytes", what),
               .free_bytes = json_member<int64_t>(json, "free_bytes", what),
               .gemm_flops = json_member<double>(json, "gemm_flops", what),
               .copy_bytes_per_s = json_member<double>(json, "copy_bytes_per_s", what),
               .ring_bytes_per_s = json_member<double>(json, "ring_bytes_per_s", what),
               .pair_bytes_per_s = json_member<double>(json, "pair_bytes_per_s", what),
               .pair_rank = json_member<int64_t>(json, "pair_rank", what),
               .disk_bytes = json_member<int64_t>(json, "disk_bytes", what),
               .shares_folder = json_member<bool>(json, "shares_folder", what),
               .folder_error = json_member<std::string>(json, "folder_error", what),
               .clock_mhz = json_member<int64_t>(json, "clock_mhz", what),
               .most_clock_mhz = json_member<int64_t>(json, "most_clock_mhz", what)};
  if (!json["ecc_errors"].is_null()) r.ecc_errors = json_member<int64_t>(json, "ecc_errors", what);
  r.faults = json["faults"].get<std::vector<std::string>>();
  r.nvlink_domain = json_member<std::string>(json, "nvlink_domain", what);
  r.versions = json["versions"].get<std::map<std::string, std::string>>();
  return r;
}

}  // namespace tokamak::launch

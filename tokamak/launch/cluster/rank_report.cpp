#include "tokamak/launch/cluster/rank_report.h"

#include <type_traits>

#include "tokamak/core/json.h"

namespace tokamak::launch {
namespace {

/// Calls use(name, member) for each member.
template <class Report, class Use>
void for_each_member(Report& r, const Use& use) {
  use("rank", r.rank);
  use("local_rank", r.local_rank);
  use("host", r.host);
  use("is_gpu", r.is_gpu);
  use("device", r.device);
  use("memory_bytes", r.memory_bytes);
  use("free_bytes", r.free_bytes);
  use("gemm_flops", r.gemm_flops);
  use("copy_bytes_per_s", r.copy_bytes_per_s);
  use("ring_bytes_per_s", r.ring_bytes_per_s);
  use("pair_bytes_per_s", r.pair_bytes_per_s);
  use("pair_rank", r.pair_rank);
  use("disk_bytes", r.disk_bytes);
  use("shares_folder", r.shares_folder);
  use("folder_error", r.folder_error);
  use("clock_mhz", r.clock_mhz);
  use("most_clock_mhz", r.most_clock_mhz);
  use("faults", r.faults);
  use("nvlink_domain", r.nvlink_domain);
  use("versions", r.versions);
}

}  // namespace

std::string to_json(const RankReport& r) {
  OrderedJson json;
  for_each_member(r, [&](const char* name, const auto& member) { json[name] = member; });
  json["ecc_errors"] = r.ecc_errors ? OrderedJson(*r.ecc_errors) : OrderedJson();
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RankReport report_of_json(const std::string& text) {
  const std::string what = "report of a rank";
  const Json json = parse_json(text, what);
  RankReport r;
  for_each_member(r, [&](const char* name, auto& member) {
    using T = std::remove_reference_t<decltype(member)>;
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      member = json_member<T>(json, name, what);
    } else {
      member = json[name].template get<T>();
    }
  });
  if (!json["ecc_errors"].is_null()) r.ecc_errors = json_member<int64_t>(json, "ecc_errors", what);
  return r;
}

}  // namespace tokamak::launch

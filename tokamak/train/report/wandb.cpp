#include "tokamak/train/report/wandb.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <wandb.pb.h>
#include <zlib.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host_name.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// The file is LevelDB's log format with a header of its own and zlib's CRC.
class LogWriter {
 public:
  void add(const wandb::Record& given) {
    wandb::Record record = given;
    record.set_num(++count_);
    const std::string data = record.SerializeAsString();
    size_t at = 0;
    bool is_first = true;
    do {
      size_t room = kBlock - bytes_.size() % kBlock;
      if (room < kHeader) {
        bytes_.append(room, '\0');
        room = kBlock;
      }
      const size_t n = std::min(data.size() - at, room - kHeader);
      const bool is_last = at + n == data.size();
      const char type = is_first ? (is_last ? kFull : kFirst) : (is_last ? kLast : kMiddle);
      append(type, data.substr(at, n));
      at += n;
      is_first = false;
    } while (at < data.size());
  }

  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr size_t kBlock = 32768;
  static constexpr size_t kHeader = 7;
  static constexpr char kFull = 1;
  static constexpr char kFirst = 2;
  static constexpr char kMiddle = 3;
  static constexpr char kLast = 4;

  void append(char type, const std::string& part) {
    const std::string checked = type + part;
    const auto crc = static_cast<uint32_t>(::crc32(
        0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
    for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>(crc >> (8 * i));
    for (int i = 0; i < 2; ++i) bytes_ += static_cast<char>(part.size() >> (8 * i));
    bytes_ += checked;
  }

  std::string bytes_ = std::string(":W&B\xe1\xbe\0", 7);
  int64_t count_ = 0;
};

// Values by name, by step.
using History = std::map<int64_t, std::map<std::string, std::string>>;

void add_lines(const fs::path& path, const std::string& prefix, History& history) {
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const Json line = parse_json(std::string_view(text).substr(at, end - at), path.string());
    at = end + 1;
    auto& values = history[json_member<int64_t>(line, "step", path.string())];
    for (const auto& [name, value] : line.items()) {
      if (name != "step" && value.is_number()) values[prefix + name] = value.dump();
    }
  }
}

// Eight letters and digits.
std::string id_of(const fs::path& run) {
  const std::string name = fs::absolute(run).lexically_normal().string();
  uint64_t hash = hash_of(std::as_bytes(std::span(name)));
  std::string id;
  for (int i = 0; i < 8; ++i, hash /= 36) id += "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
  return id;
}

wandb::Item item_of(const std::string& name, const std::string& value) {
  wandb::Item item;
  item.add_nested_key(name);
  item.set_value_json(value);
  return item;
}

wandb::Record run_record(const fs::path& run, const std::string& id, const std::string& project,
                         std::time_t start) {
  wandb::Record record;
  wandb::RunRecord& r = *record.mutable_run();
  r.set_run_id(id);
  r.set_project(project);
  r.set_display_name(fs::absolute(run).lexically_normal().filename().string());
  r.set_host(host_name());
  r.mutable_start_time()->set_seconds(start);
  wandb::ConfigItem& made_by = *r.mutable_config()->add_update();
  made_by.set_key("_wandb");
  made_by.set_value_json("{}");
  const fs::path model = run / "checkpoint" / "config.json";
  if (!path_exists(model)) return record;
  wandb::ConfigItem& item = *r.mutable_config()->add_update();
  item.set_key("model");
  item.set_value_json(parse_json(read_file(model, kSmallFileBytes), model.string()).dump());
  return record;
}

}  // namespace

WandbRun write_wandb_run(const fs::path& run, const fs::path& out, const std::string& project) {
  const fs::path metrics = run / "metrics.jsonl";
  TOK_REQUIRE(path_exists(metrics), "{}: no such file; name the job.dump_folder of a run",
              metrics.string());
  History history;
  add_lines(metrics, "", history);
  if (path_exists(run / "validation.jsonl"))
    add_lines(run / "validation.jsonl", "validation/", history);
  TOK_REQUIRE(!history.empty(), "{}: no step was logged", metrics.string());
  const auto written = std::chrono::time_point_cast<std::chrono::seconds>(
      std::chrono::file_clock::to_sys(fs::last_write_time(metrics)));
  const std::time_t start = std::chrono::system_clock::to_time_t(written);
  const std::string id = id_of(run);

  LogWriter log;
  wandb::Record header;
  header.mutable_header()->mutable_version_info()->set_producer("tokamak");
  header.mutable_header()->mutable_version_info()->set_min_consumer("0.70.0");
  log.add(header);
  log.add(run_record(run, id, project, start));
  for (const auto& [step, values] : history) {
    wandb::Record record;
    wandb::HistoryRecord& h = *record.mutable_history();
    *h.add_item() = item_of("_step", fmt::format("{}", step));
    for (const auto& [name, value] : values) *h.add_item() = item_of(name, value);
    h.mutable_step()->set_num(step);
    log.add(record);
  }
  wandb::Record summary;
  *summary.mutable_summary()->add_update() =
      item_of("_step", fmt::format("{}", history.rbegin()->first));
  for (const auto& [name, value] : history.rbegin()->second)
    *summary.mutable_summary()->add_update() = item_of(name, value);
  log.add(summary);
  wandb::Record exit;
  exit.mutable_exit()->set_exit_code(0);
  log.add(exit);

  WandbRun made{
      .folder = out / fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", fmt::localtime(start), id),
      .steps = static_cast<int64_t>(history.size())};
  make_folders(made.folder);
  write_file_atomic(made.folder / fmt::format("run-{}.wandb", id), log.bytes());
  return made;
}

}  // namespace tokamak

#include "tokamak/train/report/tensorboard.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include <fmt/chrono.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"

#include "tensorboard.pb.h"

namespace tokamak {
namespace {

using WallClock = std::chrono::system_clock;

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// The mask keeps the crc of a string that embeds crcs well spread.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

template <class T>
void append_little_endian(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

double unix_seconds(WallClock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

std::filesystem::path event_path(const std::filesystem::path& folder, WallClock::time_point now) {
  make_folders(folder);
  const std::string name = host_name();
  const auto seconds = static_cast<int64_t>(unix_seconds(now));
  for (int serial = 0;; ++serial) {
    auto path = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds,
                                     name.empty() ? "host" : name, getpid(), serial);
    if (!path_exists(path)) return path;
  }
}

class ScalarList {
 public:
  void add(std::string_view tag, std::optional<double> value) {
    if (value) scalars_.push_back({tag, *value});
  }

  std::vector<Scalar> take() { return std::move(scalars_); }

 private:
  std::vector<Scalar> scalars_;
};

}  // namespace

std::vector<Scalar> to_scalars(const StepMetrics& m) {
  ScalarList list;
  list.add("loss_metrics/global_avg_loss", m.loss);
  list.add("loss_metrics/global_max_loss", m.max_loss.value_or(m.loss));
  list.add("grad_norm", m.grad_norm);
  list.add("n_tokens_seen", static_cast<double>(m.tokens_seen));
  list.add("lr", m.lr);
  list.add("throughput(tps)", m.tps);
  list.add("tflops", m.tflops);
  list.add("mfu(%)", m.mfu);
  list.add("time_metrics/end_to_end(s)", m.step_time_s);
  list.add("time_metrics/data_loading(s)", m.seconds.data);
  if (m.seconds.data && m.step_time_s && *m.step_time_s > 0.0) {
    list.add("time_metrics/data_loading(%)", 100.0 * *m.seconds.data / *m.step_time_s);
  }
  list.add("time_metrics/forward(s)", m.seconds.forward);
  list.add("time_metrics/backward(s)", m.seconds.backward);
  list.add("time_metrics/exposed_comm(s)", m.seconds.exposed_comm);
  list.add("time_metrics/optimizer(s)", m.seconds.optimizer);
  list.add("time_metrics/checkpoint(s)", m.seconds.checkpoint);
  list.add("checkpoint/failed_saves", static_cast<double>(m.failed_saves));
  list.add("memory/max_active(GiB)", m.memory_gib);
  list.add("memory/max_active(%)", m.memory_percent);
  list.add("memory/max_reserved(GiB)", m.memory_gib);
  list.add("memory/max_reserved(%)", m.memory_percent);
  return list.take();
}

std::vector<Scalar> to_scalars(const ValidationMetrics& m) {
  ScalarList list;
  list.add("validation_metrics/loss", m.loss);
  list.add("validation_metrics/throughput(tps)", m.tps);
  list.add("validation_metrics/memory/max_active(GiB)", m.memory_gib);
  list.add("validation_metrics/memory/max_active(%)", m.memory_percent);
  list.add("validation_metrics/memory/max_reserved(GiB)", m.memory_gib);
  list.add("validation_metrics/memory/max_reserved(%)", m.memory_percent);
  return list.take();
}

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8U) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFFU];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  append_little_endian(record, uint64_t{bytes.size()});
  append_little_endian(record, masked_crc(record));
  record.append(bytes);
  append_little_endian(record, masked_crc(bytes));
  return record;
}

std::filesystem::path tensorboard_folder(const std::filesystem::path& dump_folder,
                                         const std::filesystem::path& save_tb_folder,
                                         WallClock::time_point start) {
  const auto time = fmt::localtime(WallClock::to_time_t(start));
  return dump_folder / save_tb_folder / fmt::format("{:%Y%m%d-%H%M}", time);
}

EventFile::EventFile(const std::filesystem::path& folder, WallClock::time_point now)
    : path_(event_path(folder, now)), file_(path_) {
  tensorboard::Event event;
  event.set_wall_time(unix_seconds(now));
  event.set_file_version("brain.Event:2");
  file_.write(tf_record(event.SerializeAsString()));
}

void EventFile::add(int64_t step, std::span<const Scalar> scalars, WallClock::time_point now) {
  tensorboard::Event event;
  event.set_wall_time(unix_seconds(now));
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    auto& value = *event.mutable_summary()->add_value();
    value.set_tag(std::string(scalar.tag));
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  file_.write(tf_record(event.SerializeAsString()));
}

}  // namespace tokamak

#include "tokamak/train/state/step_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/json.h"
#include "tokamak/train/state/step_slot.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// One thread copies and hashes this much at a time, while it lies in the core's cache.
constexpr int64_t kPartBytes = int64_t{1} << 20;
// A thread takes this much memory at a time, so that others who map memory do not wait long.
constexpr int64_t kTakenBytes = int64_t{4} << 20;
constexpr int kMostTakers = 4;
// A rank's answer while its memory is not all there yet.
constexpr const char* kTakes = "takes";
constexpr int64_t kLeastText = 4 * StepSlot::kPage;  // train state besides the loader's

// A part of a piece, and its place in the file's data.
struct Part {
  const TensorPiece* piece = nullptr;
  int64_t first_byte = 0;  // of the piece
  int64_t bytes = 0;
  int64_t at = 0;

  int64_t first_in_state() const { return piece->offset * size_of(piece->type.dtype) + first_byte; }
};

int64_t bytes_of(const TensorPiece& piece) {
  return piece.numel() * size_of(piece.type.dtype);
}

int64_t data_bytes_of(std::span<const TensorPiece> pieces) {
  int64_t bytes = 0;
  for (const TensorPiece& piece : pieces) bytes += bytes_of(piece);
  return bytes;
}

int64_t in_pages(int64_t bytes) {
  return (bytes + StepSlot::kPage - 1) / StepSlot::kPage * StepSlot::kPage;
}

// Where a file's data begin, after its header and its text.
int64_t data_offset(int64_t text_bytes) {
  return StepSlot::kPage + kLeastText + in_pages(text_bytes);
}

int64_t file_bytes_of(std::span<const TensorPiece> pieces, int64_t text_bytes) {
  return data_offset(text_bytes) + in_pages(data_bytes_of(pieces));
}

std::vector<Part> parts_of(std::span<const TensorPiece> pieces) {
  std::vector<Part> parts;
  int64_t at = 0;
  for (const TensorPiece& piece : pieces) {
    const int64_t bytes = bytes_of(piece);
    for (int64_t first = 0; first < bytes; first += kPartBytes) {
      const int64_t count = std::min(kPartBytes, bytes - first);
      parts.push_back({.piece = &piece, .first_byte = first, .bytes = count, .at = at});
      at += count;
    }
  }
  return parts;
}

uint64_t hash_of_hashes(const std::vector<uint64_t>& hashes) {
  return hash_of(std::as_bytes(std::span(hashes)));
}

}  // namespace

int64_t bytes_of_step_memory(std::span<const TensorPiece> pieces, int64_t text_bytes) {
  return 2 * file_bytes_of(pieces, text_bytes);
}

// Memory that is taken while training has begun.
struct StepMemory::Taking {
  std::atomic<bool> is_done = false;
  std::string problem;
  std::jthread thread;  // last, so that it ends before what it writes is destroyed
};

struct StepMemory::Work {
  std::atomic<int64_t> num_to_copy = 0;
  std::atomic<bool> is_copied = false;
  std::exception_ptr failure;

  void copied() {
    is_copied = true;
    is_copied.notify_all();
  }

  std::jthread thread;  // last, so that it ends before what it writes is destroyed
};

StepMemory::StepMemory(World& world, const StateAccess& access, std::span<const TensorPiece> pieces,
                       StepMemoryOptions options)
    : world_(world),
      access_(access),
      pieces_(pieces),
      o_(std::move(options)),
      identity_(make_identity()) {
  open();
}

StepMemory::~StepMemory() = default;

std::filesystem::path StepMemory::path_of(size_t slot) const {
  return o_.folder / fmt::format("rank-{}.{}", world_.rank(), slot);
}

// Returns "" where both files have their memory already, kTakes where there is room for it, or what
// is lacking.
std::string StepMemory::open_slots() {
  int64_t wanted = bytes_of_step_memory(pieces_, o_.text_bytes);
  // A CPU's State is allocated, but not filled yet.
  const int64_t taken = access_.streams() == nullptr ? access_.backend().allocated_bytes() : 0;
  const int64_t free = host_memory().free / o_.ranks_of_host - taken;
  try {
    for (size_t i = 0; i < slots_.size(); ++i)
      slots_[i] =
          std::make_unique<StepSlot>(path_of(i), file_bytes_of(pieces_, o_.text_bytes),
                                     data_offset(o_.text_bytes), access_.backend(), o_.num_threads);
    if (slots_[0]->had_memory() && slots_[1]->had_memory()) return "";
    for (const auto& slot : slots_) wanted -= slot->held_bytes();
    const auto room = static_cast<int64_t>(std::filesystem::space(o_.folder).available);
    const int64_t share = (room - StepSlot::kLeftBytes) / o_.ranks_of_host;
    if (std::min(free, share) < wanted)
      return fmt::format("wants {} bytes of host memory, {} are free", wanted,
                         std::max<int64_t>(0, std::min(free, share)));
  } catch (const SystemError& error) {
    return fmt::format("cannot {}", error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fmt::format("cannot use {}", error.what());
  }
  return kTakes;
}

void StepMemory::open() {
  const auto answers = all_together(world_, [&] { return open_slots(); });
  if (drop_if_lacking(answers)) return;
  is_ready_ =
      std::ranges::all_of(answers, [](const std::string& answer) { return answer.empty(); });
  if (answers[world_.rank()].empty()) return;
  taking_ = std::make_unique<Taking>();
  taking_->thread =
      std::jthread([this](const std::stop_token& stop) { take_memory(*taking_, stop); });
  // State that is small is kept from the first step on.
  const auto end = std::chrono::steady_clock::now() + o_.patience;
  while (!taking_->is_done && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void StepMemory::take_memory(Taking& taking, const std::stop_token& stop) const {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread and those that it starts, on Linux
  std::atomic<bool> has_failed = false;
  const auto take = [&](const StepSlot& slot, size_t i) {
    if (stop.stop_requested() || has_failed) return;
    const int64_t at = static_cast<int64_t>(i) * kTakenBytes;
    try {
      slot.take(at, std::min(kTakenBytes, slot.bytes() - at));
    } catch (const SystemError& error) {
      if (!has_failed.exchange(true)) taking.problem = fmt::format("cannot {}", error.what());
    }
  };
  for (const auto& slot : slots_) {
    in_parallel(static_cast<size_t>((slot->bytes() + kTakenBytes - 1) / kTakenBytes),
                std::min(o_.num_threads, kMostTakers), [&](size_t i) { take(*slot, i); });
  }
  taking.is_done = true;
}

// Gives both files up if a rank's answer says what it lacks.
bool StepMemory::drop_if_lacking(const std::vector<std::string>& answers) {
  const auto lack = std::ranges::find_if(
      answers, [](const std::string& answer) { return !answer.empty() && answer != kTakes; });
  if (lack == answers.end()) return false;
  taking_.reset();
  slots_ = {};
  std::error_code code;
  for (size_t i = 0; i < slots_.size(); ++i) std::filesystem::remove(path_of(i), code);
  if (world_.rank() == 0)
    o_.say(fmt::format("--keep-last-step: rank {} {}; a restart goes on from the last checkpoint",
                       lack - answers.begin(), *lack),
           "WARNING");
  return true;
}

// Whether all ranks have their memory. Collective until they have.
bool StepMemory::is_ready() {
  if (is_ready_ || !slots_[0]) return is_ready_;
  const bool is_taking = taking_ && !taking_->is_done;
  const std::string mine = is_taking || !taking_ ? "" : taking_->problem;
  const auto answers = world_.all_gather_text(is_taking ? kTakes : mine);
  if (std::ranges::find(answers, kTakes) != answers.end()) return false;
  if (drop_if_lacking(answers)) return false;
  taking_.reset();
  is_ready_ = true;
  return true;
}

// Another run, or a rank of another mesh, has another identity.
std::string StepMemory::make_identity() const {
  std::string text = fmt::format("{} {} of {}", o_.config_digest, world_.rank(), world_.size());
  for (const TensorPiece& piece : pieces_)
    text += fmt::format(" {}:{}:{}:{}:{}", piece.tensor, static_cast<int>(piece.type.dtype),
                        piece.state.index, piece.offset, piece.numel());
  return fmt::format("{:016x}", hash_of(std::as_bytes(std::span(text))));
}

void StepMemory::keep(const TrainState& state) {
  if (!is_ready()) return;
  seal();
  access_.backend().settle();
  StepSlot& slot = *slots_[std::exchange(next_, 1 - next_)];
  slot.clear();
  work_ = std::make_unique<Work>();
  const std::string text = Json{
      {"step", state.step},
      {"updates", state.updates},
      {"tokens_seen", state.tokens_seen},
      {"schedule_step", state.schedule_step},
      {"seed", state.seed},
      {"loader", state.loader},
      {"identity", identity_}}.dump();
  work_->thread = std::jthread([this, &slot, &work = *work_, step = state.step, text] {
    try {
      const uint64_t hash = copy_to(slot.data(), work);
      slot.seal(step, text, data_bytes_of(pieces_), hash);
      slot.pin_more();
    } catch (...) {
      work.failure = std::current_exception();
    }
    work.copied();
  });
}

// Returns the hash of the copy.
uint64_t StepMemory::copy_to(std::byte* data, Work& work) const {
  const std::vector<Part> parts = parts_of(pieces_);
  std::vector<uint64_t> hashes(parts.size());
  work.num_to_copy = std::ssize(parts);
  in_parallel(parts.size(), o_.num_threads, [&](size_t i) {
    const Part& part = parts[i];
    const std::span to(data + part.at, static_cast<size_t>(part.bytes));
    access_.read_beside(part.piece->state, part.first_in_state(), to);
    if (--work.num_to_copy == 0) work.copied();
    hashes[i] = hash_of(to);
  });
  return hash_of_hashes(hashes);
}

bool StepMemory::is_copying() const {
  return work_ && !work_->is_copied;
}

void StepMemory::await_copy() {
  if (work_) work_->is_copied.wait(false);
}

void StepMemory::seal() {
  if (!work_) return;
  const auto work = std::exchange(work_, nullptr);
  work->thread.join();
  if (work->failure) std::rethrow_exception(work->failure);
}

void StepMemory::forget() {
  seal();
  for (const auto& slot : slots_) {
    if (slot && (is_ready_ || slot->had_memory())) slot->clear();
  }
}

// Returns the steps that all ranks hold, newest first.
std::vector<int64_t> StepMemory::common_steps() {
  std::set<int64_t, std::greater<>> mine;
  for (const auto& slot : slots_) {
    if (!is_ready_ && !slot->had_memory()) continue;
    const auto header = slot->header(data_bytes_of(pieces_));
    if (header && slot->train_state(*header).at("identity") == identity_) mine.insert(header->step);
  }
  const auto texts = world_.all_gather_text(fmt::format(" {} ", fmt::join(mine, " ")));
  std::vector<int64_t> common;
  for (const int64_t step : mine) {
    if (std::ranges::all_of(texts, [&](const std::string& text) {
          return text.find(fmt::format(" {} ", step)) != std::string::npos;
        }))
      common.push_back(step);
  }
  return common;
}

std::optional<TrainState> StepMemory::restore() {
  if (!slots_[0]) return std::nullopt;
  seal();
  for (const int64_t step : common_steps()) {
    const auto holds = [&](const auto& slot) {
      const auto header = slot->header(data_bytes_of(pieces_));
      return header && header->step == step;
    };
    const size_t i = holds(slots_[0]) ? 0 : 1;
    const StepHeader header = *slots_[i]->header(data_bytes_of(pieces_));
    const auto damaged = all_together(world_, [&]() -> std::string {
      return load_from(slots_[i]->data()) == header.data_hash ? "" : "damaged";
    });
    const auto bad = std::ranges::find(damaged, "damaged");
    if (bad == damaged.end()) {
      next_ = 1 - i;
      const Json json = slots_[i]->train_state(header);
      return TrainState{.step = step,
                        .updates = json.value("updates", step),
                        .tokens_seen = json.at("tokens_seen").get<int64_t>(),
                        .schedule_step = json.value("schedule_step", step),
                        .seed = json.at("seed").get<uint64_t>(),
                        .loader = json.at("loader").get<std::string>()};
    }
    clear_state();
    if (world_.rank() == 0)
      o_.say(fmt::format("Step {} in memory is damaged on rank {}", step, bad - damaged.begin()),
             "WARNING");
  }
  return std::nullopt;
}

// Returns the hash of what it has loaded; each part is hashed while the core's cache holds it.
uint64_t StepMemory::load_from(const std::byte* data) const {
  const std::vector<Part> parts = parts_of(pieces_);
  std::vector<uint64_t> hashes(parts.size());
  access_.backend().settle();
  in_parallel(parts.size(), o_.num_threads, [&](size_t i) {
    const Part& part = parts[i];
    const std::span from(data + part.at, static_cast<size_t>(part.bytes));
    hashes[i] = hash_of(from);
    access_.write_beside(part.piece->state, part.first_in_state(), from);
  });
  return hash_of_hashes(hashes);
}

// What is loaded next may not fill all pieces.
void StepMemory::clear_state() const {
  for (const TensorPiece& piece : pieces_)
    access_.clear_at(piece.state, piece.offset * size_of(piece.type.dtype), bytes_of(piece));
}

}  // namespace tokamak

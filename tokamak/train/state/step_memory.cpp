#include "tokamak/train/state/step_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/checkpoint/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/json.h"
#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

// One thread copies and hashes so much at a time, while it lies in the core's cache.
constexpr int64_t kPartBytes = int64_t{1} << 20;
// The device is told of so much at a time that it may write to it.
constexpr int64_t kPinnedBytes = int64_t{32} << 20;
constexpr int64_t kPage = 4096;
constexpr int64_t kLeastText = 4 * kPage;  // train state besides the loader's

// The beginning of a file. Its own hash is that of all that follows the hash, and of the text.
struct Header {
  uint64_t hash = 0;  // 0 = the copy is not whole
  int64_t step = 0;
  int64_t text_bytes = 0;
  int64_t data_bytes = 0;
  uint64_t data_hash = 0;  // of the hashes of all parts
};

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
  return (bytes + kPage - 1) / kPage * kPage;
}

// Where a file's data begin, after its header and its text.
int64_t data_offset(int64_t text_bytes) {
  return kPage + kLeastText + in_pages(text_bytes);
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

// One file, mapped.
class StepMemory::Slot {
 public:
  // Opens the file, or makes it with all of its memory. Throws SystemError.
  Slot(const std::filesystem::path& path, int64_t bytes, int64_t data_at, Backend& backend,
       int num_threads)
      : backend_(backend), bytes_(bytes), data_at_(data_at) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) throw_errno("open " + path.string());

    struct stat info {};

    // Memory that is short later would be a SIGBUS.
    int error = ::fstat(fd, &info) != 0 ? errno : 0;
    if (error == 0 && info.st_size != bytes && ::ftruncate(fd, 0) != 0) error = errno;
    if (error == 0) error = ::posix_fallocate(fd, 0, bytes);
    void* const memory = error != 0 ? MAP_FAILED
                                    : ::mmap(nullptr, static_cast<size_t>(bytes),
                                             PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (error == 0 && memory == MAP_FAILED) error = errno;
    ::close(fd);
    if (error != 0) {
      ::unlink(path.c_str());
      errno = error;
      throw_errno(fmt::format("take {} bytes in {}", bytes, path.string()));
    }
    base_ = static_cast<std::byte*>(memory);
    in_parallel(static_cast<size_t>((bytes_ + kPinnedBytes - 1) / kPinnedBytes), num_threads,
                [&](size_t i) {
                  const int64_t at = static_cast<int64_t>(i) * kPinnedBytes;
                  backend_.pin(base_ + at, std::min(kPinnedBytes, bytes_ - at));
                });
  }

  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  ~Slot() {
    for (int64_t at = 0; at < bytes_; at += kPinnedBytes) backend_.unpin(base_ + at);
    ::munmap(base_, static_cast<size_t>(bytes_));
  }

  std::byte* data() const { return base_ + data_at_; }

  void clear() {
    Header& header = *reinterpret_cast<Header*>(base_);
    std::atomic_ref(header.hash).store(0, std::memory_order_seq_cst);
  }

  void seal(int64_t step, const std::string& text, int64_t data_bytes, uint64_t data_hash) {
    TOK_CHECK(std::ssize(text) <= data_at_ - kPage, "{} bytes of train state", text.size());
    std::memcpy(base_ + kPage, text.data(), text.size());
    Header& header = *reinterpret_cast<Header*>(base_);
    header.step = step;
    header.text_bytes = std::ssize(text);
    header.data_bytes = data_bytes;
    header.data_hash = data_hash;
    std::atomic_ref(header.hash).store(own_hash(header), std::memory_order_seq_cst);
  }

  // Returns the header if the copy was finished and holds so many bytes of data.
  std::optional<Header> header(int64_t data_bytes) const {
    Header header;
    std::memcpy(&header, base_, sizeof header);
    const bool has_sizes = header.hash != 0 && header.text_bytes >= 0 &&
                           header.text_bytes <= data_at_ - kPage && header.data_bytes == data_bytes;
    if (!has_sizes || header.hash != own_hash(header)) return std::nullopt;
    return header;
  }

  Json train_state(const Header& header) const {
    const auto* const text = reinterpret_cast<const char*>(base_ + kPage);
    return parse_json({text, static_cast<size_t>(header.text_bytes)}, "the last step in memory");
  }

 private:
  uint64_t own_hash(const Header& header) const {
    const auto whole = std::as_bytes(std::span(&header, 1)).subspan(sizeof header.hash);
    const std::array hashes{hash_of(whole),
                            hash_of({base_ + kPage, static_cast<size_t>(header.text_bytes)})};
    return hash_of(std::as_bytes(std::span(hashes))) | 1U;
  }

  Backend& backend_;
  std::byte* base_ = nullptr;
  int64_t bytes_;
  int64_t data_at_;
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
  open_slots();
}

StepMemory::~StepMemory() = default;

void StepMemory::open_slots() {
  const auto path = [&](size_t i) {
    return o_.folder / fmt::format("rank-{}.{}", world_.rank(), i);
  };
  const auto lacks = all_together(world_, [&]() -> std::string {
    const int64_t wanted = bytes_of_step_memory(pieces_, o_.text_bytes);
    std::error_code code;
    const bool is_there = std::filesystem::exists(path(0), code);
    // A CPU's State is allocated, but not filled yet.
    const int64_t taken = access_.streams() == nullptr ? access_.backend().allocated_bytes() : 0;
    const int64_t free = free_host_bytes() / o_.ranks_of_host - taken;
    if (!is_there && free < wanted)
      return fmt::format("wants {} bytes of host memory, {} are free", wanted,
                         std::max<int64_t>(0, free));
    try {
      for (size_t i = 0; i < slots_.size(); ++i)
        slots_[i] =
            std::make_unique<Slot>(path(i), file_bytes_of(pieces_, o_.text_bytes),
                                   data_offset(o_.text_bytes), access_.backend(), o_.num_threads);
    } catch (const SystemError& error) {
      return fmt::format("cannot {}", error.what());
    }
    return "";
  });
  const auto lack =
      std::find_if(lacks.begin(), lacks.end(), [](const auto& text) { return !text.empty(); });
  if (lack == lacks.end()) return;
  slots_ = {};
  std::error_code code;
  for (size_t i = 0; i < slots_.size(); ++i) std::filesystem::remove(path(i), code);
  if (world_.rank() == 0)
    o_.say(fmt::format("--keep-last-step: rank {} {}; a restart goes on from the last checkpoint",
                       lack - lacks.begin(), *lack),
           "WARNING");
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
  if (!slots_[0]) return;
  seal();
  access_.backend().settle();
  Slot& slot = *slots_[std::exchange(next_, 1 - next_)];
  slot.clear();
  work_ = std::make_unique<Work>();
  const std::string text = Json{
      {"step", state.step},
      {"tokens_seen", state.tokens_seen},
      {"seed", state.seed},
      {"loader", state.loader},
      {"identity", identity_}}.dump();
  work_->thread = std::jthread([this, &slot, &work = *work_, step = state.step, text] {
    try {
      const uint64_t hash = copy_to(slot.data(), work);
      slot.seal(step, text, data_bytes_of(pieces_), hash);
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
    if (slot) slot->clear();
  }
}

// Returns the steps that all ranks hold, newest first.
std::vector<int64_t> StepMemory::common_steps() {
  std::set<int64_t, std::greater<>> mine;
  for (const auto& slot : slots_) {
    const auto header = slot->header(data_bytes_of(pieces_));
    if (header && slot->train_state(*header).at("identity") == identity_) mine.insert(header->step);
  }
  const auto texts = world_.all_gather_text(fmt::format(" {} ", fmt::join(mine, " ")));
  std::vector<int64_t> common;
  for (const int64_t step : mine) {
    if (std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
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
    const Header header = *slots_[i]->header(data_bytes_of(pieces_));
    const auto damaged = all_together(world_, [&]() -> std::string {
      return hash_of_copy(slots_[i]->data()) == header.data_hash ? "" : "damaged";
    });
    const auto bad = std::find(damaged.begin(), damaged.end(), "damaged");
    if (bad == damaged.end()) {
      load_from(slots_[i]->data());
      next_ = 1 - i;
      const Json json = slots_[i]->train_state(header);
      return TrainState{.step = step,
                        .tokens_seen = json.at("tokens_seen").get<int64_t>(),
                        .seed = json.at("seed").get<uint64_t>(),
                        .loader = json.at("loader").get<std::string>()};
    }
    if (world_.rank() == 0)
      o_.say(fmt::format("Step {} in memory is damaged on rank {}", step, bad - damaged.begin()),
             "WARNING");
  }
  return std::nullopt;
}

uint64_t StepMemory::hash_of_copy(const std::byte* data) const {
  const std::vector<Part> parts = parts_of(pieces_);
  std::vector<uint64_t> hashes(parts.size());
  in_parallel(parts.size(), o_.num_threads, [&](size_t i) {
    hashes[i] = hash_of({data + parts[i].at, static_cast<size_t>(parts[i].bytes)});
  });
  return hash_of_hashes(hashes);
}

void StepMemory::load_from(const std::byte* data) const {
  const std::vector<Part> parts = parts_of(pieces_);
  access_.backend().settle();
  in_parallel(parts.size(), o_.num_threads, [&](size_t i) {
    access_.write_beside(parts[i].piece->state, parts[i].first_in_state(),
                         {data + parts[i].at, static_cast<size_t>(parts[i].bytes)});
  });
}

}  // namespace tokamak

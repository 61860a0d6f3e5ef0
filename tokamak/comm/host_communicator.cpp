#include "tokamak/comm/host_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tokamak/comm/reduce.h"
#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host.h"

namespace tokamak {
namespace {

/// Payloads up to this size travel in one message with their call.
constexpr int64_t kInlineBytes = 4096;
/// The staging memory for other members' elements while they are reduced.
constexpr int64_t kStagingBytes = int64_t{8} << 20;

const std::byte* bytes_of(const void* data) {
  return static_cast<const std::byte*>(data);
}

std::byte* bytes_of(void* data) {
  return static_cast<std::byte*>(data);
}

void copy_bytes(const std::byte* in, std::byte* out, int64_t bytes) {
  if (in != out && bytes > 0) std::memmove(out, in, bytes);
}

}  // namespace

/// Marks a call as entered, and as finished unless it throws.
class HostCommunicator::CallRecord {
 public:
  CallRecord(FlightPage& page, FlightLane& lane, CollectiveKind kind, DType dtype, int64_t count)
      : lane_(lane), errors_(std::uncaught_exceptions()) {
    lane.enter(kind, dtype, count, page.num_calls.fetch_add(1, std::memory_order_relaxed) + 1);
  }

  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  ~CallRecord() {
    if (std::uncaught_exceptions() == errors_) lane_.finish();
  }

 private:
  FlightLane& lane_;
  int errors_;
};

HostCommunicator::HostCommunicator(HostGroup group, std::unique_ptr<ByteTransport> transport,
                                   FlightPage& page)
    : group_(std::move(group)),
      transport_(std::move(transport)),
      page_(&page),
      lane_(page.add_lane(group_.name)),
      checks_messages_(!environment_variable(kCheckMessagesVariable).empty()),
      sent_(group_.world_ranks.size()),
      received_(group_.world_ranks.size()) {
  TOK_CHECK(group_.rank >= 0 && group_.rank < size(), "rank {} of {}", group_.rank, size());
  TOK_CHECK(size() == 1 || transport_ != nullptr, "group \"{}\" has no transport", group_.name);
}

std::vector<int> HostCommunicator::others() const {
  std::vector<int> members;
  for (int i = 1; i < size(); ++i) members.push_back((rank() + i) % size());
  return members;
}

void HostCommunicator::count_traffic(Traffic& traffic, int64_t bytes) {
  ++traffic.calls;
  traffic.bytes += bytes;
}

HostCommunicator::Call HostCommunicator::next_call(CollectiveKind kind, int64_t count,
                                                   DType dtype) {
  return {.kind = kind, .dtype = dtype, .count = count, .number = ++group_calls_};
}

std::string HostCommunicator::describe(const Call& call) const {
  const std::string slices = call.slices == 1 ? "" : fmt::format("{} x ", call.slices);
  std::string text = fmt::format("{} {} of {}{} {}", name_of(call.kind), call.number, slices,
                                 call.count, name_of(call.dtype));
  if (call.kind == CollectiveKind::kAllReduce) {
    text += call.op == ReduceOp::kSum ? " (sum)" : " (max)";
  }
  if (call.root >= 0) {
    const bool known = call.root < size();
    text += fmt::format(" from rank {}", known ? group_.world_ranks[call.root] : call.root);
  }
  return text;
}

void HostCommunicator::check_same(const Call& mine, const Call& theirs, int member) {
  if (mine == theirs) return;
  transport_->fail(fmt::format(
      "ranks differ in group \"{}\": rank {} entered {}, rank {} entered {}", group_.name,
      group_.world_ranks[rank()], describe(mine), group_.world_ranks[member], describe(theirs)));
}

void HostCommunicator::exchange_checked(const Call& call, std::span<const Send> sends,
                                        std::span<const Receive> receives) {
  constexpr int64_t kRoom = static_cast<int64_t>(sizeof(Call)) + kInlineBytes;
  const auto inlined = [](int64_t bytes) { return bytes <= kInlineBytes ? bytes : 0; };
  first_out_.resize(std::max(first_out_.size(), sends.size() * kRoom));
  first_in_.resize(std::max(first_in_.size(), receives.size() * kRoom));
  std::vector<Send> first_sends;
  std::vector<Receive> first_receives;
  std::vector<Send> rest_sends;
  std::vector<Receive> rest_receives;
  const auto hashes = hashes_of(sends);
  for (const Send& send : sends) {
    std::byte* message = first_out_.data() + static_cast<int64_t>(first_sends.size()) * kRoom;
    Call labelled = call;
    if (call.kind == CollectiveKind::kSendRecv) labelled.number = ++sent_[send.to];
    std::memcpy(message, &labelled, sizeof labelled);
    copy_bytes(send.data, message + sizeof labelled, inlined(send.bytes));
    first_sends.push_back({.to = send.to,
                           .data = message,
                           .bytes = static_cast<int64_t>(sizeof labelled) + inlined(send.bytes)});
    if (send.bytes > kInlineBytes) rest_sends.push_back(send);
  }
  for (const Receive& receive : receives) {
    std::byte* message = first_in_.data() + static_cast<int64_t>(first_receives.size()) * kRoom;
    first_receives.push_back({.from = receive.from, .data = message, .bytes = kRoom});
    if (receive.bytes > kInlineBytes) rest_receives.push_back(receive);
  }
  transport_->exchange(first_sends, first_receives, [&](size_t i) {
    Call expected = call;
    if (call.kind == CollectiveKind::kSendRecv) expected.number = ++received_[receives[i].from];
    Call theirs;
    std::memcpy(&theirs, first_receives[i].data, sizeof theirs);
    check_same(expected, theirs, receives[i].from);
    copy_bytes(first_receives[i].data + sizeof theirs, receives[i].data,
               inlined(receives[i].bytes));
  });
  if (!rest_sends.empty() || !rest_receives.empty()) {
    transport_->exchange(rest_sends, rest_receives, {});
  }
  check_contents(hashes, sends, receives);
}

void HostCommunicator::exchange_sized(std::span<const Send> sends,
                                      std::span<const Receive> receives) {
  const auto hashes = hashes_of(sends);
  transport_->exchange(sends, receives, {});
  check_contents(hashes, sends, receives);
}

std::vector<uint64_t> HostCommunicator::hashes_of(std::span<const Send> sends) const {
  std::vector<uint64_t> hashes;
  if (!checks_messages_) return hashes;
  for (const Send& send : sends)
    hashes.push_back(hash_of({send.data, static_cast<size_t>(send.bytes)}));
  return hashes;
}

// Shared memory has no check of its own, and that of a network ends at its adapter.
void HostCommunicator::check_contents(std::span<const uint64_t> hashes, std::span<const Send> sends,
                                      std::span<const Receive> receives) {
  if (!checks_messages_) return;
  std::vector<uint64_t> theirs(receives.size());
  std::vector<Send> out;
  std::vector<Receive> in;
  for (size_t i = 0; i < sends.size(); ++i) {
    const auto bytes = std::as_bytes(hashes.subspan(i, 1));
    out.push_back({.to = sends[i].to, .data = bytes.data(), .bytes = std::ssize(bytes)});
  }
  for (size_t i = 0; i < receives.size(); ++i) {
    const auto bytes = std::as_writable_bytes(std::span(theirs).subspan(i, 1));
    in.push_back({.from = receives[i].from, .data = bytes.data(), .bytes = std::ssize(bytes)});
  }
  transport_->exchange(out, in, [&](size_t i) {
    const Receive& message = receives[i];
    if (hash_of({message.data, static_cast<size_t>(message.bytes)}) == theirs[i]) return;
    transport_->fail(fmt::format(
        "{} bytes from rank {} to rank {} in group \"{}\" were changed on their way", message.bytes,
        group_.world_ranks[message.from], group_.world_ranks[rank()], group_.name));
  });
}

int64_t HostCommunicator::slices_at_once(int64_t slices, int64_t slice_bytes) const {
  const int64_t room = kStagingBytes / std::max(slice_bytes * size(), int64_t{1});
  return std::clamp(room, int64_t{1}, slices);
}

// A single slice is received in place; several from one member come as one message through staging.
void HostCommunicator::all_gather_slices(const void* in, void* out, int64_t slices, int64_t count,
                                         DType dtype, CommStream) {
  const CallRecord record(*page_, *lane_, CollectiveKind::kAllGather, dtype, slices * count);
  const int64_t bytes = count * size_of(dtype);
  const auto place = [&](int64_t slice, int member) {
    return bytes_of(out) + (slice * size() + member) * bytes;
  };
  for (int64_t s = 0; s < slices; ++s) {
    copy_bytes(bytes_of(in) + s * bytes, place(s, rank()), bytes);
  }
  count_traffic(traffic_.all_gather, (size() - 1) * slices * bytes);
  if (size() == 1) return;
  Call call = next_call(CollectiveKind::kAllGather, count, dtype);
  call.slices = slices;
  const int64_t most = slices_at_once(slices, bytes);
  if (most > 1)
    staging_.resize(std::max(staging_.size(), static_cast<size_t>(most * bytes * (size() - 1))));
  for (int64_t first = 0; first < slices; first += most) {
    const int64_t here = std::min(most, slices - first);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (const int member : others()) {
      std::byte* room = staging_.data() + static_cast<int64_t>(receives.size()) * most * bytes;
      sends.push_back({.to = member, .data = bytes_of(in) + first * bytes, .bytes = here * bytes});
      receives.push_back(
          {.from = member, .data = here == 1 ? place(first, member) : room, .bytes = here * bytes});
    }
    exchange_checked(call, sends, receives);
    for (const Receive& got : receives) {
      for (int64_t s = 0; here > 1 && s < here; ++s) {
        copy_bytes(got.data + s * bytes, place(first + s, got.from), bytes);
      }
    }
  }
}

void HostCommunicator::reduce_pieces(const Call& call, const std::byte* in,
                                     std::span<const Slice> pieces, std::byte* out) {
  const int64_t width = size_of(call.dtype);
  const auto peers = others();
  int64_t longest = 0;
  for (const Slice& piece : pieces) longest = std::max(longest, piece.count);
  const int64_t chunk =
      std::clamp(kStagingBytes / width / size(), int64_t{1}, std::max(longest, int64_t{1}));
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(chunk * width * (size() - 1))));
  std::vector<const std::byte*> parts(size());
  // There is at least one round, so that calls without elements are checked too.
  for (int64_t first = 0; first == 0 || first < longest; first += chunk) {
    const auto count_of = [&](int member) {
      return std::clamp(pieces[member].count - first, int64_t{0}, chunk);
    };
    const int64_t mine = count_of(rank());
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (const int member : peers) {
      std::byte* room = staging_.data() + static_cast<int64_t>(receives.size()) * chunk * width;
      sends.push_back({.to = member,
                       .data = in + (pieces[member].first + first) * width,
                       .bytes = count_of(member) * width});
      receives.push_back({.from = member, .data = room, .bytes = mine * width});
      parts[member] = room;
    }
    if (first == 0) {
      exchange_checked(call, sends, receives);
    } else {
      exchange_sized(sends, receives);
    }
    parts[rank()] = in + (pieces[rank()].first + first) * width;
    reduce_in_order(parts, out + first * width, mine, call.dtype, call.op);
  }
}

// If there are several slices, they are packed by member.
void HostCommunicator::reduce_scatter_slices(const void* in, void* out, int64_t slices,
                                             int64_t count, DType dtype, CommStream) {
  const CallRecord record(*page_, *lane_, CollectiveKind::kReduceScatter, dtype, slices * count);
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.reduce_scatter, (size() - 1) * slices * bytes);
  if (size() == 1) return copy_bytes(bytes_of(in), bytes_of(out), slices * bytes);
  Call call = next_call(CollectiveKind::kReduceScatter, count, dtype);
  call.slices = slices;
  const int64_t most = slices_at_once(slices, bytes);
  if (most > 1)
    packed_.resize(std::max(packed_.size(), static_cast<size_t>(most * bytes * size())));
  for (int64_t first = 0; first < slices; first += most) {
    const int64_t here = std::min(most, slices - first);
    const std::byte* source = bytes_of(in) + first * size() * bytes;
    std::vector<Slice> pieces;
    for (int member = 0; member < size(); ++member) {
      pieces.push_back({.first = member * here * count, .count = here * count});
      for (int64_t s = 0; here > 1 && s < here; ++s) {
        copy_bytes(source + (s * size() + member) * bytes,
                   packed_.data() + (member * here + s) * bytes, bytes);
      }
    }
    reduce_pieces(call, here == 1 ? source : packed_.data(), pieces, bytes_of(out) + first * bytes);
  }
}

void HostCommunicator::all_reduce_whole(const Call& call, const std::byte* in, std::byte* out) {
  const int64_t bytes = call.count * size_of(call.dtype);
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(bytes * (size() - 1))));
  std::vector<const std::byte*> parts(size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int member : others()) {
    std::byte* room = staging_.data() + static_cast<int64_t>(receives.size()) * bytes;
    sends.push_back({.to = member, .data = in, .bytes = bytes});
    receives.push_back({.from = member, .data = room, .bytes = bytes});
    parts[member] = room;
  }
  exchange_checked(call, sends, receives);
  parts[rank()] = in;
  reduce_in_order(parts, out, call.count, call.dtype, call.op);
}

void HostCommunicator::all_reduce(const void* in, void* out, int64_t count, DType dtype,
                                  ReduceOp op, CommStream) {
  const CallRecord record(*page_, *lane_, CollectiveKind::kAllReduce, dtype, count);
  const int64_t width = size_of(dtype);
  count_traffic(traffic_.all_reduce, 2 * (size() - 1) * count * width / size());
  if (size() == 1) return copy_bytes(bytes_of(in), bytes_of(out), count * width);
  Call call = next_call(CollectiveKind::kAllReduce, count, dtype);
  call.op = op;
  if (count * width <= kInlineBytes) return all_reduce_whole(call, bytes_of(in), bytes_of(out));

  std::vector<Slice> slices;
  const int64_t share = (count + size() - 1) / size();
  for (int member = 0; member < size(); ++member) {
    const int64_t first = std::min(member * share, count);
    slices.push_back({.first = first, .count = std::min(share, count - first)});
  }
  std::byte* const result = bytes_of(out);
  const Slice mine = slices[rank()];
  reduce_pieces(call, bytes_of(in), slices, result + mine.first * width);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int member : others()) {
    const Slice& theirs = slices[member];
    sends.push_back(
        {.to = member, .data = result + mine.first * width, .bytes = mine.count * width});
    receives.push_back(
        {.from = member, .data = result + theirs.first * width, .bytes = theirs.count * width});
  }
  exchange_sized(sends, receives);
}

void HostCommunicator::all_to_all(const void* in, void* out, int64_t count, DType dtype,
                                  CommStream) {
  const CallRecord record(*page_, *lane_, CollectiveKind::kAllToAll, dtype, count);
  const int64_t bytes = count * size_of(dtype);
  copy_bytes(bytes_of(in) + rank() * bytes, bytes_of(out) + rank() * bytes, bytes);
  count_traffic(traffic_.all_to_all, (size() - 1) * bytes);
  if (size() == 1) return;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int member : others()) {
    sends.push_back({.to = member, .data = bytes_of(in) + member * bytes, .bytes = bytes});
    receives.push_back({.from = member, .data = bytes_of(out) + member * bytes, .bytes = bytes});
  }
  exchange_checked(next_call(CollectiveKind::kAllToAll, count, dtype), sends, receives);
}

void HostCommunicator::broadcast(void* data, int64_t count, DType dtype, int root, CommStream) {
  TOK_CHECK(root >= 0 && root < size(), "broadcast from {} of {}", root, size());
  const CallRecord record(*page_, *lane_, CollectiveKind::kBroadcast, dtype, count);
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.broadcast, rank() == root && size() > 1 ? bytes : 0);
  if (size() == 1) return;
  Call call = next_call(CollectiveKind::kBroadcast, count, dtype);
  call.root = root;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int member : others()) {
    sends.push_back({.to = member, .data = bytes_of(data), .bytes = rank() == root ? bytes : 0});
    receives.push_back(
        {.from = member, .data = bytes_of(data), .bytes = member == root ? bytes : 0});
  }
  exchange_checked(call, sends, receives);
}

void HostCommunicator::send_recv(const void* out, int to, void* in, int from, int64_t count,
                                 DType dtype, CommStream) {
  TOK_CHECK(to >= -1 && to < size() && from >= -1 && from < size(), "{} sends to {}, gets from {}",
            rank(), to, from);
  TOK_CHECK((to == rank()) == (from == rank()), "rank {} of \"{}\" sends to {}, gets from {}",
            rank(), group_.name, to, from);
  const CallRecord record(*page_, *lane_, CollectiveKind::kSendRecv, dtype, count);
  const int64_t bytes = count * size_of(dtype);
  const bool is_own = to == rank();
  count_traffic(traffic_.send, to >= 0 && !is_own ? bytes : 0);
  if (is_own) return copy_bytes(bytes_of(out), bytes_of(in), bytes);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (to >= 0) sends.push_back({.to = to, .data = bytes_of(out), .bytes = bytes});
  if (from >= 0) receives.push_back({.from = from, .data = bytes_of(in), .bytes = bytes});
  const Call call{.kind = CollectiveKind::kSendRecv, .dtype = dtype, .count = count};
  exchange_checked(call, sends, receives);
}

void HostCommunicator::barrier() {
  const CallRecord record(*page_, *lane_, CollectiveKind::kBarrier, DType::kU8, 0);
  if (size() == 1) return;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int member : others()) {
    sends.push_back({.to = member});
    receives.push_back({.from = member});
  }
  exchange_checked(next_call(CollectiveKind::kBarrier, 0, DType::kU8), sends, receives);
}

}  // namespace tokamak

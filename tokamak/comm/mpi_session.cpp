#include "tokamak/comm/mpi_session.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fmt/ranges.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kDataTag = 1;
constexpr int kGroupTag = 2;
constexpr int kHelloTag = 3;
/// MPI counts are int, so longer messages are sent in pieces.
constexpr int64_t kPieceBytes = int64_t{1} << 30;
/// How long a hopeless wait continues, so that the rank at fault reports first.
constexpr auto kGrace = 500ms;

// MPI ends the process inside MPI_Init with its own exit code if it cannot connect the ranks.
std::atomic<bool> is_in_init = false;

void end_in_init() {
  if (!is_in_init) return;
  fmt::print(stderr, "tokamak: machine: MPI_Init has failed; MPI says why above\n");
  std::fflush(nullptr);
  _exit(static_cast<int>(ExitCode::kTryAgain));
}

/// srun starts tasks also where nothing connects them. Open MPI would end the process with pages of
/// its own; one that was built for PMI2 has to be named by OMPI_MCA_pmix.
void require_connection(const LaunchEnvironment& environment) {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
#ifdef OPEN_MPI
  const bool is_offered = is_set("PMIX_RANK") || is_set("OMPI_MCA_pmix");
#else
  const bool is_offered = is_set("PMIX_RANK") || is_set("PMI_RANK") || is_set("PMI_FD");
#endif
  TOK_REQUIRE(environment.source != "Slurm" || is_offered,
              "srun has started {} tasks without PMIx, so MPI cannot connect them: srun --mpi=pmix "
              "(srun --mpi=list shows what there is), or start by mpirun",
              environment.world_size);
}

}  // namespace

/// A wait for peers that spins briefly, then gives up its time slice, then sleeps, and knows when
/// to look around.
struct MpiSession::Waiting {
  const std::string& group;
  bool is_crowded = false;
  Clock::time_point since = Clock::now();
  Clock::time_point next_look = since + 200ms;
  std::optional<Clock::time_point> hopeless_since;
  int tries = 0;

  void restart() {
    since = Clock::now();
    next_look = since + 200ms;
    tries = 0;
  }

  /// Returns whether it is time to look around.
  bool pause() {
    ++tries;
    if (!is_crowded && tries < 200) return false;
    const auto now = Clock::now();
    if (now - since < (is_crowded ? 500us : 2000us)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(50us);
    }
    if (now < next_look) return false;
    next_look = now + 200ms;
    return true;
  }
};

/// The requests of one exchange, receives first.
class MpiSession::Pending {
 public:
  std::vector<MPI_Request> requests;
  std::vector<int> peers;        ///< by request, in the group
  std::vector<size_t> receives;  ///< by request, for those that receive
  std::vector<int> done;         ///< the output of MPI_Testsome
  int num_open = 0;

  template <class Start>
  void add(int peer, int64_t bytes, const Start& start) {
    int64_t first = 0;
    do {
      const int64_t piece = std::min(kPieceBytes, bytes - first);
      requests.push_back(MPI_REQUEST_NULL);
      peers.push_back(peer);
      start(first, static_cast<int>(piece), &requests.back());
      ++num_open;
      first += piece;
    } while (first < bytes);
  }

  /// Returns the members whose requests are open.
  std::vector<int> open_peers() const {
    std::vector<int> open;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] != MPI_REQUEST_NULL) open.push_back(peers[i]);
    }
    return open;
  }
};

MpiSession::MpiSession(const LaunchEnvironment& environment, WorldOptions options)
    : timeout_(options.timeout) {
  connect(environment);
  open_flights();
}

void MpiSession::connect(const LaunchEnvironment& environment) {
  require_connection(environment);
  static const bool kHasHandler = std::atexit(&end_in_init) == 0;
  static_cast<void>(kHasHandler);
  int offered = 0;
  is_in_init = true;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &offered), "MPI_Init_thread");
  is_in_init = false;
  TOK_REQUIRE(offered >= MPI_THREAD_SERIALIZED,
              "this MPI was built without threads; wanted MPI_THREAD_SERIALIZED");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world_, &rank_);
  MPI_Comm_size(world_, &size_);
  if (size_ != environment.world_size || rank_ != environment.rank) {
    throw Error(fmt::format(
        "{} started this process as rank {} of {}, but MPI sees rank {} of {}: the two cannot "
        "talk; "
        "under Slurm try srun --mpi=pmix (srun --mpi=list shows what there is), or start by mpirun",
        environment.source, environment.rank, environment.world_size, rank_, size_));
  }
}

void MpiSession::check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(fmt::format("rank {}: {}: {}", rank_, call, text.data()));
}

void MpiSession::open_flights() {
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  int local_size = 0;
  int local_rank = 0;
  MPI_Comm_size(host, &local_size);
  MPI_Comm_rank(host, &local_rank);
  is_crowded_ = local_size > static_cast<int>(std::thread::hardware_concurrency());

  const char* const given = std::getenv(kFlightFolderVariable);
  std::array<char, 4096> folder{};
  if (local_rank == 0) {
    std::string name = given != nullptr ? given : "";
    if (given == nullptr) {
      name = std::filesystem::temp_directory_path() / "tokamak-ranks-XXXXXX";
      if (mkdtemp(name.data()) == nullptr) throw_errno("mkdtemp " + name);
    } else {
      make_folders(name);
    }
    TOK_REQUIRE(name.size() < folder.size(), "{} is too long", kFlightFolderVariable);
    std::copy(name.begin(), name.end(), folder.begin());
  }
  check(MPI_Bcast(folder.data(), static_cast<int>(folder.size()), MPI_BYTE, 0, host), "MPI_Bcast");
  own_file_ = FlightFile::create(folder.data(), rank_);

  std::vector<int> local_ranks(local_size);
  check(MPI_Allgather(&rank_, 1, MPI_INT, local_ranks.data(), 1, MPI_INT, host), "MPI_Allgather");
  for (const int rank : local_ranks) {
    if (rank != rank_) neighbours_.emplace(rank, FlightFile::open(folder.data(), rank));
  }
  // Open files do not need their names. A launcher that gave the folder reads it after the end.
  check(MPI_Barrier(host), "MPI_Barrier");
  if (given == nullptr && local_rank == 0) std::filesystem::remove_all(folder.data());
  check(MPI_Comm_free(&host), "MPI_Comm_free");
}

std::string MpiSession::describe_flights() const {
  std::map<int, std::string> lines;
  lines[rank_] = describe(page());
  for (const auto& [rank, file] : neighbours_) lines[rank] = describe(file.page());
  std::string text;
  for (const auto& [rank, line] : lines) text += "\n  " + line;
  if (static_cast<int>(lines.size()) < size_) text += "\n  (other hosts' ranks are not shown)";
  return text;
}

void MpiSession::check_running() const {
  if (!has_failed_) return;
  const std::lock_guard lock(failure_mutex_);
  throw SystemError(failure_);
}

void MpiSession::fail(const std::string& why) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = why;
  }
  has_failed_ = true;
  if (own_file_) page().phase = RankPhase::kFailed;
  throw SystemError(why);
}

std::string MpiSession::find_fault(std::span<const int> peers) const {
  for (const auto& [rank, file] : neighbours_) {
    const FlightPage& theirs = file.page();
    const bool is_peer = std::ranges::find(peers, rank) != peers.end();
    switch (theirs.phase.load()) {
      case RankPhase::kFailed:
        return fmt::format("rank {} has failed", rank);
      case RankPhase::kLeaving:
        if (is_peer) return fmt::format("rank {} has come to its end", rank);
        break;
      case RankPhase::kRunning:
        if (!file.is_owner_alive()) return fmt::format("rank {} on {} has died", rank, theirs.host);
        break;
    }
  }
  return "";
}

void MpiSession::look_around(Waiting& waiting, std::span<const int> peers) {
  const auto now = Clock::now();
  const auto waits = [&] {
    return fmt::format("rank {} waits for rank {} in group \"{}\"", rank_, peers.front(),
                       waiting.group);
  };
  const std::string fault = find_fault(peers);
  if (fault.empty()) {
    waiting.hopeless_since.reset();
    const std::chrono::duration<double> limit = timeout_.load();
    if (now - waiting.since < limit) return;
    fail(fmt::format("{} for {} s; the last collectives:{}", waits(), limit.count(),
                     describe_flights()));
  }
  if (!waiting.hopeless_since) waiting.hopeless_since = now;
  if (now - *waiting.hopeless_since < kGrace) return;
  fail(fmt::format("{}; {}; the last collectives:{}", fault, waits(), describe_flights()));
}

void MpiSession::start(const Channel& channel, std::span<const ByteTransport::Send> sends,
                       std::span<const ByteTransport::Receive> receives, Pending& pending) {
  const std::lock_guard lock(mutex_);
  check_running();
  for (size_t i = 0; i < receives.size(); ++i) {
    const auto& in = receives[i];
    pending.add(in.from, in.bytes, [&](int64_t first, int bytes, MPI_Request* request) {
      pending.receives.push_back(i);
      check(
          MPI_Irecv(in.data + first, bytes, MPI_BYTE, in.from, channel.tag, channel.comm, request),
          "MPI_Irecv");
    });
  }
  for (const auto& out : sends) {
    pending.add(out.to, out.bytes, [&](int64_t first, int bytes, MPI_Request* request) {
      check(
          MPI_Isend(out.data + first, bytes, MPI_BYTE, out.to, channel.tag, channel.comm, request),
          "MPI_Isend");
    });
  }
  pending.done.resize(pending.requests.size());
}

std::span<const int> MpiSession::test(Pending& pending) {
  const std::lock_guard lock(mutex_);
  check_running();
  int num_done = 0;
  check(MPI_Testsome(static_cast<int>(pending.requests.size()), pending.requests.data(), &num_done,
                     pending.done.data(), MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  pending.num_open -= num_done;
  return std::span(pending.done).first(num_done);
}

void MpiSession::exchange(const Channel& channel, std::span<const ByteTransport::Send> sends,
                          std::span<const ByteTransport::Receive> receives,
                          const ByteTransport::Arrival& arrived) {
  Pending pending;
  start(channel, sends, receives, pending);
  Waiting waiting{.group = channel.group, .is_crowded = is_crowded_};
  while (pending.num_open > 0) {
    const auto done = test(pending);
    for (const int request : done) {
      const auto index = static_cast<size_t>(request);
      if (arrived && index < pending.receives.size()) arrived(pending.receives[index]);
    }
    if (!done.empty()) {
      waiting.restart();
    } else if (waiting.pause()) {
      std::vector<int> peers;
      for (const int member : pending.open_peers()) peers.push_back(channel.world_ranks[member]);
      look_around(waiting, peers);
    }
  }
}

void MpiSession::check_hellos(const Channel& channel) {
  struct Hello {
    char group[64] = {};
    uint64_t ranks_hash = 0;
  };

  Hello mine;
  std::copy_n(channel.group.data(), std::min(channel.group.size(), sizeof mine.group - 1),
              mine.group);
  for (const int rank : channel.world_ranks)
    mine.ranks_hash = mine.ranks_hash * 1'000'003 + rank + 1;
  Channel all{.comm = world_, .tag = kHelloTag, .group = channel.group};
  for (int rank = 0; rank < size_; ++rank) all.world_ranks.push_back(rank);
  const int first = channel.world_ranks.front();
  auto* const mine_bytes = reinterpret_cast<std::byte*>(&mine);
  if (rank_ != first) {
    exchange(all, std::array{ByteTransport::Send{first, mine_bytes, sizeof mine}}, {}, {});
    exchange(all, {}, std::array{ByteTransport::Receive{first, mine_bytes, sizeof mine}}, {});
    return;
  }
  std::vector<Hello> theirs(channel.world_ranks.size());
  std::vector<ByteTransport::Send> answers;
  std::vector<ByteTransport::Receive> hellos;
  for (const int rank : channel.world_ranks) {
    if (rank == rank_) continue;
    answers.push_back({rank, mine_bytes, sizeof mine});
    hellos.push_back({rank, reinterpret_cast<std::byte*>(&theirs[hellos.size()]), sizeof mine});
  }
  exchange(all, {}, hellos, [&](size_t i) {
    if (mine.ranks_hash == theirs[i].ranks_hash && channel.group == theirs[i].group) return;
    fail(fmt::format("ranks differ: rank {} makes group \"{}\" where rank {} makes \"{}\"{}", rank_,
                     mine.group, hellos[i].from, theirs[i].group,
                     channel.group == theirs[i].group ? " of other ranks" : ""));
  });
  exchange(all, answers, {}, {});
}

MpiSession::Channel MpiSession::open_channel(const std::string& group, std::span<const int> ranks) {
  Channel channel{.tag = kDataTag, .group = group, .world_ranks = {ranks.begin(), ranks.end()}};
  // MPI_Comm_create_group blocks, so all members first announce themselves.
  check_hellos(channel);
  const std::lock_guard lock(mutex_);
  check_running();
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check(MPI_Comm_group(world_, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members),
        "MPI_Group_incl");
  check(MPI_Comm_create_group(world_, members, kGroupTag, &channel.comm), "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(channel.comm, MPI_ERRORS_RETURN);
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  return channel;
}

void MpiSession::close_channel(Channel& channel) {
  const std::lock_guard lock(mutex_);
  if (!has_failed_) MPI_Comm_free(&channel.comm);
}

void MpiSession::finalize() {
  const std::lock_guard lock(mutex_);
  MPI_Comm_free(&world_);
  MPI_Finalize();
}

}  // namespace tokamak

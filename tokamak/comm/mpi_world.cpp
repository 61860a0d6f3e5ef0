#include <cstdio>
#include <exception>

#include "tokamak/comm/host_world.h"
#include "tokamak/comm/mpi_functions.h"
#include "tokamak/comm/mpi_session.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

bool is_connected() {
  int is_begun = 0;
  int is_ended = 0;
  MPI_Initialized(&is_begun);
  MPI_Finalized(&is_ended);
  return is_begun != 0 && is_ended == 0;
}

std::string rank_of_mpi() {
  if (!is_connected()) return "";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return fmt::format("rank {} on {}: ", rank, read_launch_environment().host);
}

void abort_mpi(int code) {
  if (is_connected()) MPI_Abort(MPI_COMM_WORLD, code);
}

class MpiTransport final : public ByteTransport {
 public:
  MpiTransport(MpiSession& session, MpiSession::Channel channel)
      : session_(&session), channel_(std::move(channel)) {}

  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  ~MpiTransport() override { session_->close_channel(channel_); }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                const Arrival& arrived) override {
    session_->exchange(channel_, sends, receives, arrived);
  }

  [[noreturn]] void fail(const std::string& why) override { session_->fail(why); }

 private:
  MpiSession* session_;
  MpiSession::Channel channel_;
};

class MpiWorld final : public HostWorld {
 public:
  explicit MpiWorld(std::unique_ptr<MpiSession> session)
      : HostWorld(session->rank(), session->size(), session->page()),
        session_(std::move(session)),
        errors_(std::uncaught_exceptions()) {}

  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  ~MpiWorld() override {
    // A launcher ends the other ranks when one rank exits without MPI_Finalize.
    if (std::uncaught_exceptions() > errors_ || session_->has_failed()) {
      page().phase = RankPhase::kFailed;
    } else {
      leave();
    }
    close_control();
  }

  void set_timeout(std::chrono::milliseconds timeout) override { session_->set_timeout(timeout); }

  std::string describe_flights() const override { return session_->describe_flights(); }

  std::string find_fault() const override { return session_->find_fault({}); }

  void abort(int code, const std::string& why) override {
    page().phase = RankPhase::kFailed;
    fmt::print(stderr, "tokamak: {}{}\n", rank_of_mpi(), why);
    std::fflush(nullptr);
    abort_mpi(code);
  }

 private:
  std::unique_ptr<ByteTransport> make_transport(const std::string& name, std::span<const int> ranks,
                                                int) override {
    return std::make_unique<MpiTransport>(*session_, session_->open_channel(name, ranks));
  }

  void leave() {
    try {
      page().phase = RankPhase::kLeaving;
      barrier();
      close_control();
      session_->finalize();
    } catch (const std::exception& error) {
      abort(static_cast<int>(ExitCode::kTryAgain), error.what());
    }
  }

  std::unique_ptr<MpiSession> session_;
  int errors_;
};

std::unique_ptr<World> connect_world(const LaunchEnvironment& environment, WorldOptions options) {
  return std::make_unique<MpiWorld>(std::make_unique<MpiSession>(environment, options));
}

}  // namespace
}  // namespace tokamak

const tokamak::MpiFunctions* tokamak_mpi_functions() {
  static constexpr tokamak::MpiFunctions kFunctions{.make_world = tokamak::connect_world,
                                                    .connected_rank = tokamak::rank_of_mpi,
                                                    .abort_ranks = tokamak::abort_mpi};
  return &kFunctions;
}

// The common base of worlds on host memory: groups are HostCommunicators, and the control plane is
// one communicator over all ranks.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokamak/comm/host_communicator.h"

namespace tokamak {

class HostWorld : public World {
 public:
  int rank() const override { return rank_; }

  int size() const override { return size_; }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> ranks) override;
  void barrier() override;
  std::vector<std::string> all_gather_text(const std::string& mine) override;
  std::string broadcast_text(const std::string& text, int root) override;

  FlightPage& flights() override { return *page_; }

  std::string describe_flights() const override;

  std::string find_fault() const override { return ""; }

 protected:
  /// The page outlives the world and all its communicators.
  HostWorld(int rank, int size, FlightPage& page);

  /// Connects the members of a new group of two or more; `member` is this rank's place in it.
  virtual std::unique_ptr<ByteTransport> make_transport(const std::string& name,
                                                        std::span<const int> ranks, int member) = 0;

  FlightPage& page() const { return *page_; }

  /// Ends the use of the control plane before the things that its transport uses are destroyed.
  void close_control() { control_.reset(); }

 private:
  std::unique_ptr<HostCommunicator> make_host_group(const std::string& name,
                                                    std::span<const int> ranks);
  /// Returns the control plane, made on first use because a constructor cannot call make_transport.
  HostCommunicator& control();

  int rank_;
  int size_;
  FlightPage* page_;
  std::unique_ptr<HostCommunicator> control_;
};

}  // namespace tokamak

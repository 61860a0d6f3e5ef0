#include "tokamak/comm/host_world.h"

#include <algorithm>
#include <numeric>

#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak {

HostWorld::HostWorld(int rank, int size, FlightPage& page)
    : rank_(rank), size_(size), page_(&page) {
  if (gethostname(page.host, sizeof page.host - 1) != 0) page.host[0] = '\0';
  page.rank = rank;
}

std::unique_ptr<HostCommunicator> HostWorld::make_host_group(const std::string& name,
                                                             std::span<const int> ranks) {
  const auto me = std::ranges::find(ranks, rank_);
  TOK_CHECK(me != ranks.end(), "rank {} is not in group \"{}\"", rank_, name);
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  TOK_CHECK(sorted.front() >= 0 && sorted.back() < size_ &&
                std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
            "group \"{}\" names a rank twice or one beyond {}", name, size_);
  HostGroup group{.name = name,
                  .world_ranks = {ranks.begin(), ranks.end()},
                  .rank = static_cast<int>(me - ranks.begin())};
  auto transport = ranks.size() > 1 ? make_transport(name, ranks, group.rank) : nullptr;
  return std::make_unique<HostCommunicator>(std::move(group), std::move(transport), *page_);
}

std::unique_ptr<Communicator> HostWorld::make_group(const std::string& name,
                                                    std::span<const int> ranks) {
  return make_host_group(name, ranks);
}

HostCommunicator& HostWorld::control() {
  if (!control_) {
    std::vector<int> all(size_);
    std::iota(all.begin(), all.end(), 0);
    control_ = make_host_group("world", all);
  }
  return *control_;
}

std::string HostWorld::describe_flights() const {
  return "\n  " + describe(*page_);
}

void HostWorld::barrier() {
  control().barrier();
}

std::vector<std::string> HostWorld::all_gather_text(const std::string& mine) {
  const auto size = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(size_);
  control().all_gather(&size, sizes.data(), 1, DType::kI64, nullptr);
  const int64_t room = *std::ranges::max_element(sizes);
  std::string padded = mine;
  padded.resize(room);
  std::string all(static_cast<size_t>(room * size_), '\0');
  control().all_gather(padded.data(), all.data(), room, DType::kU8, nullptr);
  std::vector<std::string> texts;
  for (int64_t r = 0; r < size_; ++r) {
    texts.push_back(all.substr(static_cast<size_t>(r * room), static_cast<size_t>(sizes[r])));
  }
  return texts;
}

std::string HostWorld::broadcast_text(const std::string& text, int root) {
  auto size = static_cast<int64_t>(text.size());
  control().broadcast(&size, 1, DType::kI64, root, nullptr);
  std::string all = rank_ == root ? text : std::string(static_cast<size_t>(size), '\0');
  control().broadcast(all.data(), size, DType::kU8, root, nullptr);
  return all;
}

}  // namespace tokamak

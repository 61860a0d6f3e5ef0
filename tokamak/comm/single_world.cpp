#include <optional>

#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/host_world.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

class SingleWorld final : public HostWorld {
 public:
  explicit SingleWorld(std::unique_ptr<FlightPage> page)
      : HostWorld(0, 1, *page), page_(std::move(page)) {}

  explicit SingleWorld(FlightFile file) : HostWorld(0, 1, file.page()), file_(std::move(file)) {}

  ~SingleWorld() override { close_control(); }

  void set_timeout(std::chrono::milliseconds) override {}

  void abort(int, const std::string& why) override { throw SystemError(why); }

 private:
  std::unique_ptr<ByteTransport> make_transport(const std::string& name, std::span<const int>,
                                                int) override {
    TOK_CHECK(false, "group \"{}\" of one rank", name);
    return nullptr;
  }

  std::unique_ptr<FlightPage> page_;
  std::optional<FlightFile> file_;  ///< in place of `page_`
};

}  // namespace

std::unique_ptr<World> make_single_world() {
  return std::make_unique<SingleWorld>(std::make_unique<FlightPage>());
}

std::unique_ptr<World> make_single_world(const std::filesystem::path& flight_folder) {
  make_folders(flight_folder);
  return std::make_unique<SingleWorld>(FlightFile::create(flight_folder, 0));
}

}  // namespace tokamak

// What ranks and mpirun write on stderr, without the part that says nothing.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace tokamak::cli {

/// Leaves out mpirun's banners about ranks that ended early (the launcher says it better) and lines
/// of ours that another rank has said before.
class LaunchFilter {
 public:
  /// What of the whole lines so far should be shown now; keeps an unfinished line for later.
  std::string pass(std::string_view text);

  /// The rest at the end of the stream.
  std::string finish();

 private:
  std::string pass_line(const std::string& line);

  std::string line_;
  std::string banner_;  ///< of mpirun, from its opening rule of dashes on
  bool in_banner_ = false;
  std::set<std::string> said_;
  bool is_repeated_ = false;  ///< the last statement
};

}  // namespace tokamak::cli

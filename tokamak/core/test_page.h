// Reads pages back, for tests.
#pragma once

#include <string>

#include "tokamak/core/json.h"

namespace tokamak {

/// Returns the data of a page of html_page().
inline Json page_data(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return parse_json(std::string_view(page).substr(at, page.find("</script>", at) - at), "page");
}

}  // namespace tokamak

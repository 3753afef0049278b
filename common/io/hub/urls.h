#pragma once

// The addresses of a hub's API.

#include <string>

#include "common/io/hub/names.h"

namespace titan::hub {

// `endpoint` has no '/' at its end. A revision with slashes is one word of the path.
std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision);
// `cursor`: of the page before, encoded as it came; empty for the first one. `folder`: only what is below it.
std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor, const std::string& folder = "");
std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit, const std::string& file);

// The parameter `cursor` of the address that a Link header calls next; "" when there is none.
std::string next_cursor(const std::string& link_header);

}  // namespace titan::hub

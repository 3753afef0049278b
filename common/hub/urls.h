#pragma once

// The addresses of a hub's API, and what one may say about an address.

#include <string>

#include "common/hub/names.h"

namespace titan::hub {

// Percent-encoded but for what is unreserved and, with `keep_slashes`, '/'.
std::string percent_encoded(const std::string& text, bool keep_slashes);

// `endpoint` has no '/' at its end. A revision with slashes is one word of the path.
std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision);
// `cursor`: of the page before, encoded as it came; empty for the first one. `folder`: only what is below it.
std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor, const std::string& folder = "");
std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit, const std::string& file);

// "scheme://host:port" with the port always there, in small letters; "" when it is no http or https address, or one
// with a user in it. Two addresses are of one server when these are equal and not empty.
std::string origin(const std::string& url);
// Whether what is sent there stays on this machine.
bool is_loopback(const std::string& url);

// Where a redirect leads that an answer from `url` names: absolute, or a path on the same server; blanks are encoded.
// "" when it is neither.
std::string redirected(const std::string& url, const std::string& location);

// The parameter `cursor` of the address that a Link header calls next; "" when there is none.
std::string next_cursor(const std::string& link_header);

}  // namespace titan::hub

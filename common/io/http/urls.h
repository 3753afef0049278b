#pragma once

// Encodes and compares addresses, and resolves redirects.

#include <string>

namespace titan::http {

// Percent-encodes everything except unreserved characters and, with `keep_slashes`, '/'.
std::string percent_encoded(const std::string& text, bool keep_slashes);

// Returns "scheme://host:port" in lower case, always with the port; "" unless it is an http or https address without a
// user. Two addresses have the same server when their origins are equal and not empty.
std::string origin(const std::string& url);
// Returns whether `url` has a loopback host, so that data sent there stays on this machine.
bool is_loopback(const std::string& url);

// Returns the target of a redirect from `url`: an absolute address, or a path on the same server, with blanks and
// non-ASCII bytes encoded. "" when `location` is neither.
std::string redirected(const std::string& url, const std::string& location);

}  // namespace titan::http

#pragma once

// What one may say about an address.

#include <string>

namespace titan::http {

// Percent-encoded but for what is unreserved and, with `keep_slashes`, '/'.
std::string percent_encoded(const std::string& text, bool keep_slashes);

// "scheme://host:port" with the port always there, in small letters; "" when it is no http or https address, or one
// with a user in it. Two addresses are of one server when these are equal and not empty.
std::string origin(const std::string& url);
// Whether what is sent there stays on this machine.
bool is_loopback(const std::string& url);

// Where a redirect leads that an answer from `url` names: absolute, or a path on the same server; blanks are encoded.
// "" when it is neither.
std::string redirected(const std::string& url, const std::string& location);

}  // namespace titan::http

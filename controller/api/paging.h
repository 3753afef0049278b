#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace titan::api {

// AIP-158: sizes default to 50 and are capped at 1000; tokens are opaque and bound to the request's other arguments.
struct PageRequest {
  int size = 50;
  std::string after;  // The argument of write_token(); empty on the first page.
};

// `bound_to`: the other arguments as text. Errors: InvalidArgument for a negative size, or a token of another request.
absl::StatusOr<PageRequest> read_page(int size, const std::string& token, const std::string& bound_to);
std::string write_token(const std::string& after, const std::string& bound_to);

}  // namespace titan::api

#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/io/http/http.h"

namespace titan::http {

// What an answer of 400 and above means, and what to do about it. Unavailable for 408, 425, 429 and 5xx.
absl::Status answer_error(const Answer& answer, bool with_token);

// "5", seconds; an HTTP date counts from now. Nothing for other text.
std::optional<absl::Duration> parse_retry_after(const std::string& text);

}  // namespace titan::http

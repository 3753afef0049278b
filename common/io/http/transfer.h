#pragma once

// Sets up every libcurl transfer and reports its errors.

#include <curl/curl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace titan::http {

// Creates a libcurl handle, which the caller frees with curl_easy_cleanup. Null when libcurl cannot create one.
CURL* new_transfer();

struct TransferLimits {
  absl::Duration timeout;  // Timeout of connecting, and between two bytes.
  std::string ca_file;     // Certificates to trust instead of the system's; empty: the system's.
};
// Resets all options but keeps the connections. `error`: CURL_ERROR_SIZE bytes that live as long as the transfer.
void set_usual_options(CURL* curl, char* error, const std::string& url, const TransferLimits& limits);

// Returns Unavailable, or FailedPrecondition where a retry cannot help. The message names only the server of the
// address, because the rest may be signed and grant access to anyone who has it.
absl::Status transfer_error(CURLcode code, const char* error, const std::string& url);

}  // namespace titan::http

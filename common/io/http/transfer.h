#pragma once

// What every transfer by libcurl has in common, whatever it asks and of whom.

#include <curl/curl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace titan::http {

CURL* new_transfer();

struct TransferLimits {
  absl::Duration patience;  // For a connection, and between two bytes.
  std::string ca_file;      // Certificates to trust instead of the system's; empty: these.
};
// Forgets what was set before but for the connections. `error`: CURL_ERROR_SIZE bytes that live as long as the
// transfer.
void set_usual_options(CURL* curl, char* error, const std::string& url, const TransferLimits& limits);

// Unavailable, or FailedPrecondition where another try mends nothing. Of an address only the server is told: what
// follows may be signed for whoever has it.
absl::Status transfer_error(CURLcode code, const char* error, const std::string& url);

}  // namespace titan::http

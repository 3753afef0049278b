#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"

namespace titan::http {

struct Settings {
  std::string endpoint = "https://huggingface.co";  // Without '/' at its end.
  std::string token;                                // Never shown. Empty: nobody.
  std::string ca_file;                              // Certificates to trust instead of the system's; empty: these.
  bool token_in_clear = false;                      // Send it over http beyond this machine, too.
  absl::Duration patience = absl::Seconds(60);      // For a connection, and between two bytes.
};

// The process's environment, or a test's.
using Environment = std::map<std::string, std::string>;
Environment process_environment();

}  // namespace titan::http

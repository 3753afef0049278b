#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"

namespace titan::http {

struct HttpSettings {
  std::string endpoint = "https://huggingface.co";  // Without a trailing '/'.
  std::string token;                                // Never printed. Empty: anonymous.
  std::string ca_file;                         // Certificates to trust instead of the system's; empty: the system's.
  bool token_in_clear = false;                 // Send the token over http beyond this machine, too.
  absl::Duration timeout = absl::Seconds(60);  // Timeout of connecting, and between two bytes.
};

// Environment variables, of the process or of a test.
using Environment = std::map<std::string, std::string>;
Environment process_environment();

}  // namespace titan::http

#pragma once

// Which hub is asked, and as whom: from the same variables as Hugging Face's own tools.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::hub {

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

// `endpoint` and `token_file` are what the command line says; empty: HF_ENDPOINT, and HF_TOKEN or the file that
// HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME or HOME lead to. `warnings` gets a line when that file can be read by others.
// Errors: InvalidArgument, PermissionDenied for a token file that others can read, FailedPrecondition with
// HF_HUB_OFFLINE, those of the disk.
absl::StatusOr<Settings> settings_from(const Environment& environment, const std::string& endpoint,
                                       const std::string& token_file, std::vector<std::string>& warnings);

// That of Hugging Face's own tools: HF_HOME, or huggingface in the user's cache folder. "" without a home.
std::string home_folder(const Environment& environment);

}  // namespace titan::hub

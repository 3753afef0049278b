#pragma once

// Which object store is asked, and as whom: from the same variables and files as AWS's own tools.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/http/settings.h"

namespace titan::s3 {

struct Settings {
  std::string endpoint;  // "https://HOST" without '/' at its end; empty: AWS's own of the region.
  std::string region;
  std::string ca_file;                          // Certificates to trust instead of the system's; empty: these.
  absl::Duration patience = absl::Seconds(60);  // For a connection, and between two bytes.
};

// Never shown.
struct Credentials {
  std::string key_id, secret, session_token;
};

// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION, AWS_CA_BUNDLE, else what the profile
// AWS_PROFILE says in ~/.aws/config (AWS_CONFIG_FILE). Errors: InvalidArgument; FailedPrecondition without a region, or
// for http beyond this machine unless TITAN_RANK_S3_PLAIN_HTTP = 1.
absl::StatusOr<Settings> settings_from(const http::Environment& environment);

// AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile in ~/.aws/credentials
// (AWS_SHARED_CREDENTIALS_FILE). Errors: Unauthenticated where there are none, PermissionDenied for a file that
// everybody can read, InvalidArgument for what is none.
absl::StatusOr<Credentials> credentials_from(const http::Environment& environment);

// "[section]" and "name = value", as these files have it: by section, then by name.
using Sections = std::map<std::string, std::map<std::string, std::string>>;
Sections parse_sections(const std::string& text);

}  // namespace titan::s3

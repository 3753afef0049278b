#pragma once

// Finds the object store and its credentials, from the same variables and files as AWS's own tools.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/http/settings.h"

namespace titan::s3 {

struct S3Settings {
  std::string endpoint;  // "https://HOST" without a trailing '/'; empty: AWS's for the region.
  std::string region;
  std::string ca_file;                         // Certificates to trust instead of the system's; empty: the system's.
  absl::Duration timeout = absl::Seconds(60);  // Timeout of connecting, and between two bytes.
};

// Never printed.
struct Credentials {
  std::string key_id, secret, session_token;
};

// Reads AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION, else the profile AWS_PROFILE in
// ~/.aws/config (AWS_CONFIG_FILE), and AWS_CA_BUNDLE or SSL_CERT_FILE. Errors: InvalidArgument; FailedPrecondition
// without a region or an endpoint, or for http beyond this machine unless TITAN_RANK_S3_PLAIN_HTTP = 1.
absl::StatusOr<S3Settings> settings_from(const http::Environment& environment);

// Reads AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile in ~/.aws/credentials
// (AWS_SHARED_CREDENTIALS_FILE). Errors: Unauthenticated without credentials, PermissionDenied for a file that
// everybody can read, InvalidArgument for malformed credentials.
absl::StatusOr<Credentials> credentials_from(const http::Environment& environment);

// "[section]" and "name = value" lines of these files, by section, then by name.
using Sections = std::map<std::string, std::map<std::string, std::string>>;
Sections parse_sections(const std::string& text);

}  // namespace titan::s3

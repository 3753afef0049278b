#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "openssl/evp.h"
#include "openssl/x509.h"

namespace titan::rpc {

using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// Return the first certificate, or private key without a password, of a PEM file; null when the file cannot be read or
// has none.
CertificatePtr read_certificate(const std::string& path);
KeyPtr read_key(const std::string& path);

// Returns the certificates of a PEM text, up to the first entry that cannot be read as one.
std::vector<CertificatePtr> certificates_in(const std::string& pem);

// Returns the end of the validity (notAfter); InfinitePast when it cannot be read.
absl::Time end_of(const X509& certificate);

// Returns when the certificate in a file expires: the earliest end of it and of the issuers that the file contains.
// Errors: InvalidArgument when the file has no certificate.
absl::StatusOr<absl::Time> certificate_expiry(const std::string& path);

// Returns the same as Unix time in seconds for the metrics page, nothing on an error. The metric's name and help
// follow.
std::optional<double> certificate_expiry_seconds(const std::string& path);
inline constexpr char kExpiryMetric[] = "titan_certificate_expiry_timestamp_seconds";
inline constexpr char kExpiryHelp[] = "When this daemon's certificate expires, Unix time.";

// Warns before a certificate expires: until then nothing fails, and afterwards every connection with it is refused.
class CertificateExpiryWarning {
 public:
  explicit CertificateExpiryWarning(std::string path) : path_(std::move(path)) {}  // Empty: no certificate.

  // Returns a warning when fewer than 30 days are left. Checks at the first call and then once a day.
  std::optional<std::string> due(absl::Time now);

 private:
  const std::string path_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace titan::rpc

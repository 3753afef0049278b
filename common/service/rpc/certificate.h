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

// The first certificate, or private key without a password, of a file in PEM format; null when it cannot be read or has
// none.
CertificatePtr read_certificate(const std::string& path);
KeyPtr read_key(const std::string& path);

// All certificates of a text in PEM, up to the first that is none.
std::vector<CertificatePtr> certificates_in(const std::string& pem);

absl::Time end_of(const X509& certificate);

// When the certificate of a file no longer counts: when it or one of those that signed it, as far as the file has them
// too, ends first. Errors: InvalidArgument when there is none.
absl::StatusOr<absl::Time> end_of_certificate(const std::string& path);

// The same as Unix time in seconds, for a page; nothing when there is none. Its name and help there.
std::optional<double> seconds_of_end(const std::string& path);
inline constexpr char kEndSeries[] = "titan_certificate_expiry_timestamp_seconds";
inline constexpr char kEndHelp[] = "When this daemon's certificate ends, Unix time.";

// Says in time that a certificate ends: nothing fails before, and then whoever has it is let in no more.
class CertificateEnd {
 public:
  explicit CertificateEnd(std::string path) : path_(std::move(path)) {}  // Empty: there is none.

  // What is to be said now: something when fewer than 30 days are left, at first and then once a day.
  std::optional<std::string> due(absl::Time now);

 private:
  const std::string path_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace titan::rpc

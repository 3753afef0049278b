#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/service/rpc/certificate.h"

namespace titan::auth {

// Checks whether the certificate of a connection is still valid. TLS checks it only when the connection is made, and
// connections last for months.
class CertificateVerifier {
 public:
  using Clock = std::function<absl::Time()>;

  // `authorities`: file with the certificates of trusted authorities, in PEM; read again when it changes.
  CertificateVerifier(std::string authorities, Clock now) : path_(std::move(authorities)), now_(std::move(now)) {}

  // `chain`: the certificate to check and then those that signed it, in PEM. The first check verifies signatures, later
  // ones look the result up. A file that cannot be read changes nothing. Errors: Unauthenticated when one of the
  // certificates has expired, or when none of the authorities in the file signed the chain.
  absl::Status stands(const std::string& chain);

 private:
  void reload_if_changed(absl::Time now) TITAN_REQUIRES(mutex_);
  // Returns the time at which the first certificate of the verified chain expires.
  absl::StatusOr<absl::Time> verify(const std::string& chain, absl::Time now) const TITAN_REQUIRES(mutex_);

  const std::string path_;
  const Clock now_;
  sync::Mutex mutex_;
  absl::Time looked_ TITAN_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string text_ TITAN_GUARDED_BY(mutex_);  // Content of the file.
  std::vector<rpc::CertificatePtr> authorities_ TITAN_GUARDED_BY(mutex_);
  std::unordered_map<std::string, absl::Time> ends_ TITAN_GUARDED_BY(mutex_);  // Expiry by chain.
};

}  // namespace titan::auth

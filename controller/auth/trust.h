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

// Whether a certificate that a connection began with still counts. TLS looks at it once, as the connection is made, and
// connections last for months.
class Trust {
 public:
  using Clock = std::function<absl::Time()>;

  // `authorities`: file with the certificates of who signs others, in PEM; read again when it changes.
  Trust(std::string authorities, Clock now) : path_(std::move(authorities)), now_(std::move(now)) {}

  // `chain`: in PEM, the certificate in question first and then who signed it. It costs a signature's check at first
  // and a lookup from then on. A file that cannot be read changes nothing.
  // Errors: Unauthenticated when one of them has ended, or no authority that the file names stands behind it.
  absl::Status stands(const std::string& chain);

 private:
  void look_again(absl::Time now) TITAN_REQUIRES(mutex_);
  // When the first certificate on the way to an authority ends.
  absl::StatusOr<absl::Time> verify(const std::string& chain, absl::Time now) const TITAN_REQUIRES(mutex_);

  const std::string path_;
  const Clock now_;
  sync::Mutex mutex_;
  absl::Time looked_ TITAN_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string text_ TITAN_GUARDED_BY(mutex_);  // Of the file.
  std::vector<rpc::CertificatePtr> authorities_ TITAN_GUARDED_BY(mutex_);
  std::unordered_map<std::string, absl::Time> ends_ TITAN_GUARDED_BY(mutex_);  // Of the chains that these stand behind.
};

}  // namespace titan::auth

#pragma once

// Issues certificates of a cluster's own authority, on P-256. A URI in them names the identity:
// common/service/rpc/identity.h.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace titan::pki {

// A certificate and its private key, in PEM.
struct KeyPair {
  std::string certificate;
  std::string key;
};

struct Subject {
  std::string uri;                 // "titan:node:n1"
  std::vector<std::string> hosts;  // Names and addresses of a server.
  bool server = false;             // Otherwise it is a client.
};

struct Validity {
  absl::Time from;  // The certificate begins a little earlier, for clocks that differ.
  absl::Duration length;
};

// Makes a P-256 private key, in PEM.
absl::StatusOr<std::string> make_key();

// Makes a self-signed authority, which cannot sign other authorities. `name` is for people.
absl::StatusOr<KeyPair> make_authority(absl::string_view name, const Validity& validity);

// Issues a certificate of `subject` for this key; it ends with the authority's at the latest. Errors: InvalidArgument
// when a host is not a name or address, or the authority cannot be read; FailedPrecondition when the authority's
// certificate has expired.
absl::StatusOr<std::string> issue(const KeyPair& authority, const Subject& subject, absl::string_view key,
                                  const Validity& validity);

}  // namespace titan::pki

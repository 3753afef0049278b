#pragma once

// Certificates of a cluster's own authority, on P-256. Who somebody is stands in a URI: common/service/rpc/identity.h.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace titan::pki {

// In PEM.
struct Pair {
  std::string certificate;
  std::string key;
};

struct Subject {
  std::string uri;                 // "titan:node:n1"
  std::vector<std::string> hosts;  // Names and addresses that a server is called by.
  bool server = false;             // Else a client.
};

struct Validity {
  absl::Time from;  // A little earlier, for clocks that differ.
  absl::Duration length;
};

absl::StatusOr<std::string> make_key();

// An authority that signs itself, and no other authorities. `name` is for people.
absl::StatusOr<Pair> make_authority(absl::string_view name, const Validity& validity);

// The certificate of `subject` with this key, which ends with the authority's at the latest. Errors: InvalidArgument
// when a host is no name or address, or what the authority is made of cannot be read; FailedPrecondition when the
// authority's has ended.
absl::StatusOr<std::string> issue(const Pair& authority, const Subject& subject, absl::string_view key,
                                  const Validity& validity);

}  // namespace titan::pki

#pragma once

// Where an authority and what it issues lie: a folder for each, in which nobody's key is ever replaced unasked.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/cli/pki/certificate.h"

namespace titan::pki {

// In the folder of an authority: ca.crt and ca.key.
// Errors: AlreadyExists when there is a key; those of the disk.
absl::Status write_authority(const std::string& folder, const Pair& authority);
absl::StatusOr<Pair> read_authority(const std::string& folder);

// In the folder of whoever is certified: ca.crt, tls.crt and tls.key. What is there is replaced at once, so that a
// program which reads it again finds the old one or the new one; the key (0600) is made, or kept when the certificate
// is to be renewed. To renew takes no trust away: an authority that ca.crt names stays in it, beside this one. Errors:
// AlreadyExists when there is a key and it is not to be kept, NotFound when it is and there is none.
enum class KeyIs { kNew, kKept };
absl::Status issue_into(const std::string& folder, const Pair& authority, const Subject& subject,
                        const Validity& validity, KeyIs key_is);

}  // namespace titan::pki

#pragma once

// Stores an authority and what it issues: a folder for each, in which a private key is never replaced.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/cli/pki/certificate.h"

namespace titan::pki {

// Write and read ca.crt and ca.key in the folder of an authority. Errors: AlreadyExists when there is a key; those of
// the disk.
absl::Status write_authority(const std::string& folder, const KeyPair& authority);
absl::StatusOr<KeyPair> read_authority(const std::string& folder);

// Writes ca.crt, tls.crt and tls.key into a subject's folder. Certificates are replaced atomically, so that a program
// which reads them again finds the old ones or the new ones. The key (0600) is made, or kept when the certificate is
// renewed. A renewal removes no trust: an authority that ca.crt names stays in it, next to this one. Errors:
// AlreadyExists for kNew if there is a key, NotFound for kKept if there is none; those of issue() and of the disk.
enum class KeyPolicy { kNew, kKept };
absl::Status issue_into(const std::string& folder, const KeyPair& authority, const Subject& subject,
                        const Validity& validity, KeyPolicy key_is);

}  // namespace titan::pki

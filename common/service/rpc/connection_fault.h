#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/service/rpc/credentials.h"

namespace titan::rpc {

// Why no connection to a controller can be made although something listens at `address`: one end speaks TLS and the
// other does not, or one refuses the certificate of the other. Tries a connection of its own for it, for `patience` at
// most. OK when nothing of the kind is found, which includes that nobody listens.
//
// Errors: Unavailable, each with a reason of its own and with "remedy" in its metadata: TLS_EXPECTED, TLS_NOT_SPOKEN,
// CONTROLLER_CERTIFICATE_EXPIRED, CONTROLLER_CERTIFICATE_UNTRUSTED, CONTROLLER_NAME_DIFFERS, NOT_A_CONTROLLER,
// CERTIFICATE_EXPIRED, CERTIFICATE_UNTRUSTED, CERTIFICATE_REFUSED. The last three are of our own certificate.
absl::Status connection_fault(absl::string_view address, const Security& security, absl::Duration patience);

inline constexpr char kRemedy[] = "remedy";

}  // namespace titan::rpc

#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/service/rpc/credentials.h"

namespace titan::rpc {

// Explains why no connection to a controller can be made although something listens at `address`: only one end speaks
// TLS, or one end refuses the other's certificate. Opens a separate connection to find out and takes at most `timeout`,
// apart from looking up the host. Returns OK when no such cause is found, also when nothing listens.
//
// Errors: Unavailable with "remedy" in its metadata and one of these reasons: TLS_EXPECTED, TLS_NOT_SPOKEN,
// CONTROLLER_CERTIFICATE_EXPIRED, CONTROLLER_CERTIFICATE_UNTRUSTED, CONTROLLER_NAME_DIFFERS, NOT_A_CONTROLLER,
// CERTIFICATE_EXPIRED, CERTIFICATE_UNTRUSTED, CERTIFICATE_REFUSED. The last three concern our own certificate.
absl::Status connection_fault(absl::string_view address, const Security& security, absl::Duration timeout);

inline constexpr char kRemedy[] = "remedy";

}  // namespace titan::rpc

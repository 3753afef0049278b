#include "common/rpc/credentials.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"
#include "common/status/status.h"

namespace titan::rpc {
namespace {

absl::Status check_plain(absl::string_view address, const Security& security, absl::string_view others) {
  if (security.insecure || is_local(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      address, " is beyond this machine, where plaintext can be read and changed on its way: give ", others));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(absl::string_view address,
                                                                              const Security& security) {
  TITAN_RETURN_IF_ERROR(check_plain(address, security, "--insecure (or TITAN_INSECURE=1) on a network that you trust"));
  return grpc::InsecureChannelCredentials();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(absl::string_view address,
                                                                            const Security& security) {
  TITAN_RETURN_IF_ERROR(check_plain(
      address, security,
      "--insecure on a network where you trust everybody, since whoever reaches the port may do everything"));
  return grpc::InsecureServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> plain_channel() { return grpc::InsecureChannelCredentials(); }

}  // namespace titan::rpc

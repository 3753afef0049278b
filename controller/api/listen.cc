#include "controller/api/listen.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::api {

absl::StatusOr<std::unique_ptr<grpc::Server>> listen(grpc::ServerBuilder& builder, const std::string& address,
                                                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                     int* port) {
  builder.AddListeningPort(address, credentials, port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two controllers on one port would be two truths.
  const bool makes_file = absl::StartsWith(address, "unix:");
  const mode_t usual = makes_file ? umask(0077) : 0;
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (makes_file) umask(usual);
  if (server != nullptr) return server;
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, "; is the port in use? Choose another with --listen (port 0: any)"));
}

}  // namespace titan::api

#include "common/io/hub/checks.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/digest/digest.h"
#include "common/base/status/status.h"
#include "common/base/text/shown.h"

namespace titan::hub {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

absl::Status add_file(const host::Descriptor& file, digest::Digest& digest, const std::function<absl::Status()>& idle) {
  std::string block(kBlock, '\0');
  for (off_t at = 0;;) {
    TITAN_RETURN_IF_ERROR(idle());
    const ssize_t size = pread(file.get(), block.data(), block.size(), at);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno_status(errno, "read it back");
    if (size == 0) return absl::OkStatus();
    digest.add(block.data(), static_cast<size_t>(size));
    at += size;
  }
}

}  // namespace

absl::Status check_content(const host::Descriptor& file, const RemoteFile& remote,
                           const std::function<absl::Status()>& idle) {
  const bool large = !remote.sha256.empty();
  digest::Digest digest(large ? EVP_sha256() : EVP_sha1());
  if (!large) {  // What git hashes begins with a head, which ends with a zero.
    const std::string head = absl::StrCat("blob ", remote.size);
    digest.add(head.c_str(), head.size() + 1);
  }
  absl::Status read = add_file(file, digest, idle);
  if (!read.ok()) return annotate(read, text::shown(remote.name));
  const std::string found = digest.hex();
  if (found == remote.digest()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(text::shown(remote.name), " has another checksum than the hub's: ",
                                          large ? "sha256 " : "git blob ", found, " instead of ", remote.digest()));
}

}  // namespace titan::hub

#include "controller/cli/pki/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"

namespace titan::pki {
namespace {

absl::Status make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? errno_status(error.value(), absl::StrCat("make the folder ", folder)) : absl::OkStatus();
}

absl::Status write_new(const std::string& path, const std::string& text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  absl::Status status = host::write_all(fd, text, path);
  if (status.ok() && fsync(fd) != 0) status = errno_status(errno, absl::StrCat("write ", path));
  close(fd);
  if (!status.ok()) unlink(path.c_str());  // Half a key would prevent the next try.
  return status;
}

absl::Status write_key(const std::string& path, const std::string& key) {
  if (access(path.c_str(), F_OK) == 0)
    return absl::AlreadyExistsError(absl::StrCat(path,
                                                 " already exists, and a key is never replaced: choose another "
                                                 "folder, or renew the certificate of this key with --renew"));
  return write_new(path, key, 0600);
}

absl::Status replace(const std::string& path, const std::string& text) {
  return host::replace_file(path, text, /*durable=*/true);
}

// Returns the authorities that a renewal trusts: those that were trusted, and this one. Removing an older one is a
// separate step, after everybody has a certificate of the new one.
std::string trusted(const std::string& folder, const KeyPair& authority) {
  const absl::StatusOr<std::string> before = host::read_file(folder + "/ca.crt");
  if (!before.ok()) return authority.certificate;
  return absl::StrContains(*before, authority.certificate) ? *before : absl::StrCat(*before, authority.certificate);
}

}  // namespace

absl::Status write_authority(const std::string& folder, const KeyPair& authority) {
  TITAN_RETURN_IF_ERROR(make_folder(folder));
  if (chmod(folder.c_str(), 0700) != 0) return errno_status(errno, absl::StrCat("chmod ", folder));
  TITAN_RETURN_IF_ERROR(write_key(folder + "/ca.key", authority.key));
  return replace(folder + "/ca.crt", authority.certificate);
}

absl::StatusOr<KeyPair> read_authority(const std::string& folder) {
  KeyPair authority;
  TITAN_ASSIGN_OR_RETURN(authority.certificate, host::read_file(folder + "/ca.crt"));
  TITAN_ASSIGN_OR_RETURN(authority.key, host::read_file(folder + "/ca.key"));
  return authority;
}

absl::Status issue_into(const std::string& folder, const KeyPair& authority, const Subject& subject,
                        const Validity& validity, KeyPolicy key_is) {
  const std::string path = folder + "/tls.key";
  std::string key;
  if (key_is == KeyPolicy::kKept) {
    TITAN_ASSIGN_OR_RETURN(key, host::read_file(path));
  } else {
    TITAN_ASSIGN_OR_RETURN(key, make_key());
  }
  TITAN_ASSIGN_OR_RETURN(const std::string certificate, issue(authority, subject, key, validity));
  TITAN_RETURN_IF_ERROR(make_folder(folder));
  if (key_is == KeyPolicy::kNew) TITAN_RETURN_IF_ERROR(write_key(path, key));
  const std::string ca = key_is == KeyPolicy::kKept ? trusted(folder, authority) : authority.certificate;
  TITAN_RETURN_IF_ERROR(replace(folder + "/ca.crt", ca));
  return replace(folder + "/tls.crt", certificate);
}

}  // namespace titan::pki

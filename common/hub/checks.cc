#include "common/hub/checks.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"

namespace titan::hub {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

class Digest {
 public:
  explicit Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), kind, nullptr);
  }
  void add(const void* bytes, size_t size) { EVP_DigestUpdate(context_.get(), bytes, size); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes = {};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), bytes.data(), &size);
    return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

absl::Status add_file(const File& file, Digest& digest, const std::function<absl::Status()>& idle) {
  std::string block(kBlock, '\0');
  for (off_t at = 0;;) {
    TITAN_RETURN_IF_ERROR(idle());
    const ssize_t size = pread(file.descriptor(), block.data(), block.size(), at);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno_status(errno, "read it back");
    if (size == 0) return absl::OkStatus();
    digest.add(block.data(), static_cast<size_t>(size));
    at += size;
  }
}

}  // namespace

absl::Status check_content(const File& file, const RemoteFile& remote, const std::function<absl::Status()>& idle) {
  const bool large = !remote.sha256.empty();
  Digest digest(large ? EVP_sha256() : EVP_sha1());
  if (!large) {  // What git hashes begins with a head, which ends with a zero.
    const std::string head = absl::StrCat("blob ", remote.size);
    digest.add(head.c_str(), head.size() + 1);
  }
  absl::Status read = add_file(file, digest, idle);
  if (!read.ok()) return annotate(read, shown(remote.name));
  const std::string found = digest.hex();
  if (found == remote.digest()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(shown(remote.name), " has another checksum than the hub's: ",
                                          large ? "sha256 " : "git blob ", found, " instead of ", remote.digest()));
}

std::string sha256_hex(const std::string& text) {
  Digest digest(EVP_sha256());
  digest.add(text.data(), text.size());
  return digest.hex();
}

}  // namespace titan::hub

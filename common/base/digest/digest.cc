#include "common/base/digest/digest.h"

#include "absl/strings/escaping.h"

namespace titan::digest {
namespace {

Digest sha256_of(std::string_view text) {
  Digest digest(EVP_sha256());
  digest.add(text.data(), text.size());
  return digest;
}

}  // namespace

Digest::Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  EVP_DigestInit_ex(context_.get(), kind, nullptr);
}

std::string Digest::bytes() {
  std::string bytes(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(bytes.data()), &size);
  bytes.resize(size);
  return bytes;
}

std::string Digest::hex() { return absl::BytesToHexString(bytes()); }

std::string sha256(std::string_view text) { return sha256_of(text).bytes(); }

std::string sha256_hex(std::string_view text) { return sha256_of(text).hex(); }

}  // namespace titan::digest

#pragma once

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>

namespace titan::digest {

// A digest of bytes that come piece by piece, by OpenSSL: Digest digest(EVP_sha256()).
class Digest {
 public:
  explicit Digest(const EVP_MD* kind);
  void add(const void* bytes, size_t size) { EVP_DigestUpdate(context_.get(), bytes, size); }
  // Of all that was added, as raw bytes or as hexadecimal digits. One of them may be called, once.
  std::string bytes();
  std::string hex();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// SHA-256 of a text: its 32 bytes, or 64 hexadecimal digits.
std::string sha256(std::string_view text);
std::string sha256_hex(std::string_view text);

}  // namespace titan::digest

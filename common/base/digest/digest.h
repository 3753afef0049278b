#pragma once

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>

namespace titan::digest {

// Computes a digest of bytes that arrive in pieces, with OpenSSL: Digest digest(EVP_sha256()).
class Digest {
 public:
  explicit Digest(const EVP_MD* kind);
  void add(const void* bytes, size_t size) { EVP_DigestUpdate(context_.get(), bytes, size); }
  // Return the digest of everything added, as raw bytes or hexadecimal digits. Only one of them may be called, once.
  std::string bytes();
  std::string hex();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// Return the SHA-256 of `text`, as 32 raw bytes or as 64 hexadecimal digits.
std::string sha256(std::string_view text);
std::string sha256_hex(std::string_view text);

}  // namespace titan::digest

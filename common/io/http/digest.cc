#include "common/io/http/digest.h"

namespace titan::http {

std::string sha256_hex(const std::string& text) {
  Digest digest(EVP_sha256());
  digest.add(text.data(), text.size());
  return digest.hex();
}

}  // namespace titan::http

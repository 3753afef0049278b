#include "worker/rank/data/tokenizer/find_token.h"

namespace titan::data {

std::optional<int32_t> find_token(const Tokenizer& tokenizer, std::string_view spelling) {
  for (int32_t token = 0; token <= tokenizer.max_id(); ++token) {
    if (tokenizer.spelling(token) == spelling) return token;
  }
  return std::nullopt;
}

}  // namespace titan::data

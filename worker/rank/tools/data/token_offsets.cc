#include "worker/rank/tools/data/token_offsets.h"

#include <string>

namespace titan::tools {

std::optional<std::vector<std::pair<size_t, size_t>>> token_offsets(std::string_view text,
                                                                    const std::vector<int32_t>& tokens,
                                                                    const data::Tokenizer& tokenizer) {
  std::vector<std::pair<size_t, size_t>> offsets;
  size_t at = 0;
  for (const int32_t token : tokens) {
    const std::string bytes = tokenizer.bytes(token);
    std::string_view spelled = bytes;
    const auto comes = [&] { return text.substr(at, spelled.size()) == spelled; };
    if (!comes() && spelled.substr(0, 1) == " ") spelled.remove_prefix(1);
    if (!comes()) return std::nullopt;
    offsets.emplace_back(at, at + spelled.size());
    at += spelled.size();
  }
  return at == text.size() ? std::optional(offsets) : std::nullopt;
}

}  // namespace titan::tools

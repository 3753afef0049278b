#include "worker/data/tokens/tokenizer_mark.h"

#include "common/status/status.h"
#include "common/storage/crc32c.h"
#include "common/storage/file.h"

namespace titan::data {

absl::StatusOr<TokenizerMark> mark_of(const std::string& folder, const Tokenizer& tokenizer) {
  const std::string path = storage::join_path(folder, "tokenizer.json");
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(storage::posix_files(), path));
  return TokenizerMark{.sum = storage::crc32c(text.data(), text.size()),
                       .bos = tokenizer.bos_id().value_or(-1),
                       .eos = tokenizer.eos_id().value_or(-1),
                       .max_id = tokenizer.max_id()};
}

}  // namespace titan::data

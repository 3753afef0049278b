#include "worker/rank/data/tokens/tokenizer_mark.h"

#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/tokenizer_files/find.h"

namespace titan::data {

absl::StatusOr<data_files::TokenizerMark> mark_of(const std::string& folder, const Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const tokenizer_files::Found found, tokenizer_files::find_tokenizer(folder));
  return data_files::TokenizerMark{.sum = storage::crc32c(found.bytes.data(), found.bytes.size()),
                                   .bos = tokenizer.bos_id().value_or(-1),
                                   .eos = tokenizer.eos_id().value_or(-1),
                                   .max_id = tokenizer.max_id()};
}

}  // namespace titan::data

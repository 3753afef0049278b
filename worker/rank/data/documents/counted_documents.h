#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// Text that many ranks shuffle or pack: how many tokens documents have they count together, those of which they read
// none they do not tokenise.
struct CountedDocumentsOptions {
  FileKind kind;
  int64_t max_bad_lines = 100;
  int rank = 0, ranks = 1;
  std::string counts_file;
  absl::Duration timeout = absl::Seconds(1);  // With ranks whose counts do not come.
};

// Documents and positions are those of shuffled_documents() or documents_in_order(). Two finders of the same documents:
// what is counted lies ahead of what is read.
std::unique_ptr<TokenDocuments> counted_documents(std::unique_ptr<DocumentFinder> counted,
                                                  std::unique_ptr<DocumentFinder> read,
                                                  std::shared_ptr<Tokenizer> tokenizer,
                                                  const CountedDocumentsOptions& sharing,
                                                  const TokenDocumentsOptions& options);

}  // namespace titan::data

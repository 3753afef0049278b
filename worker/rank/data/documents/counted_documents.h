#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// Options for text that many ranks shuffle or pack. The ranks share the counting of tokens, and a rank tokenizes only
// the documents that it counts or reads.
struct CountedDocumentsOptions {
  FileKind kind;
  int64_t max_bad_lines = 100;
  int rank = 0, ranks = 1;
  std::string counts_file;
  absl::Duration timeout = absl::Seconds(1);  // Longest wait for a new count by another rank.
};

// Returns the documents and positions of shuffled_documents() or documents_in_order(). `counted` and `read` find the
// same documents: counting runs ahead of reading.
std::unique_ptr<TokenDocuments> counted_documents(std::unique_ptr<DocumentFinder> counted,
                                                  std::unique_ptr<DocumentFinder> read,
                                                  std::shared_ptr<Tokenizer> tokenizer,
                                                  const CountedDocumentsOptions& sharing,
                                                  const TokenDocumentsOptions& options);

}  // namespace titan::data

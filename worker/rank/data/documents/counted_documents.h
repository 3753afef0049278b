#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// For text that many ranks shuffle or pack: they share the counting of documents' tokens, and a rank does not tokenize
// documents of which it neither counts nor reads tokens.
struct CountedDocumentsOptions {
  FileKind kind;
  int64_t max_bad_lines = 100;
  int rank = 0, ranks = 1;
  std::string counts_file;
  absl::Duration timeout = absl::Seconds(1);  // Time to wait for other ranks' counts.
};

// Gives the documents and positions of shuffled_documents() or documents_in_order(). It needs two finders of the same
// documents, because counting runs ahead of reading.
std::unique_ptr<TokenDocuments> counted_documents(std::unique_ptr<DocumentFinder> counted,
                                                  std::unique_ptr<DocumentFinder> read,
                                                  std::shared_ptr<Tokenizer> tokenizer,
                                                  const CountedDocumentsOptions& sharing,
                                                  const TokenDocumentsOptions& options);

}  // namespace titan::data

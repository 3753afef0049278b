#include "worker/data/document_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/file_facts.h"

namespace titan::data {

DocumentBlocks::DocumentBlocks(Options options, std::unique_ptr<BlockFiles> places)
    : options_(std::move(options)), places_(std::move(places)) {
  const int64_t block = places_->block_size();
  for (size_t file = 0; file < options_.files.size(); ++file) {
    const int64_t size = places_->size(static_cast<int64_t>(file));
    first_block_.push_back(first_block_.back() + size / block + (size % block > 0 ? 1 : 0));
  }
}

absl::StatusOr<DocumentBlocks> DocumentBlocks::open(const Options& options) {
  const bool rows = options.kind.format == Format::kParquet;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFiles> places,
                         rows ? BlockFiles::of_rows(options.files, options.kind, options.block_rows)
                              : BlockFiles::of_lines(options.files, options.kind, options.block_bytes));
  return DocumentBlocks(options, std::move(places));
}

// The last file that begins at the block or before: files without documents have no blocks.
int64_t DocumentBlocks::file_of(int64_t block) const {
  return std::upper_bound(first_block_.begin(), first_block_.end(), block) - first_block_.begin() - 1;
}

absl::StatusOr<DocumentBlocks::Block> DocumentBlocks::read(int64_t number, Tokenizer& tokenizer) {
  const int64_t file = file_of(number), size = places_->size(file), from = begin(number);
  const int64_t end = size - from < places_->block_size() ? size : from + places_->block_size();
  TITAN_ASSIGN_OR_RETURN(BlockTexts texts, places_->read(file, from, end));
  Block block{.begins = std::move(texts.begins)};
  for (BlockTexts::Document& document : texts.documents) {
    block.documents.push_back({static_cast<int64_t>(block.tokens.size()), document.at, document.line,
                               static_cast<int64_t>(block.bad.size())});
    if (document.text.problem.empty()) {
      TITAN_RETURN_IF_ERROR(tokenizer.encode_document(document.text.text, block.tokens));
    } else {
      block.bad.push_back({document.at, document.line, std::move(document.text.problem)});
    }
  }
  block.count = {static_cast<int64_t>(block.tokens.size()), static_cast<int32_t>(block.documents.size()),
                 static_cast<int32_t>(block.begins.size()), static_cast<int32_t>(block.bad.size())};
  return block;
}

absl::StatusOr<FilePlace> DocumentBlocks::begin_of(int64_t number, const Block& read) {
  const int64_t file = file_of(number);
  if (read.documents.empty()) return places_->next_begin(file, begin(number));
  return places_->place(file, read.documents.front().at, read.documents.front().line);
}

absl::StatusOr<std::string> DocumentBlocks::fingerprint(const TokenizerMark& tokenizer) const {
  const FileKind& kind = options_.kind;
  const std::string more = absl::StrCat(kind.text_key, "|", name(kind.format), "|", kind.blank_lines, "|",
                                        tokenizer.sum, "|", tokenizer.bos, "|", tokenizer.eos);
  TITAN_ASSIGN_OR_RETURN(const std::string facts, file_facts(options_.files, more));
  return absl::StrCat(facts, "-", kind.format == Format::kParquet ? options_.block_rows : options_.block_bytes);
}

}  // namespace titan::data

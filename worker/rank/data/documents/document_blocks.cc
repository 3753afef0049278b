#include "worker/rank/data/documents/document_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

DocumentBlocks::DocumentBlocks(Options options, std::unique_ptr<BlockFiles> places)
    : options_(std::move(options)), places_(std::move(places)) {
  for (size_t file = 0; file < options_.files.size(); ++file) {
    first_block_.push_back(first_block_.back() + places_->blocks(static_cast<int64_t>(file)));
  }
}

absl::StatusOr<DocumentBlocks> DocumentBlocks::open(const Options& options) {
  const bool rows = options.kind.format == data_files::DatasetFormat::kParquet;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFiles> places,
                         rows ? BlockFiles::of_rows(options.files, options.kind, options.sizes)
                              : BlockFiles::of_lines(options.files, options.kind, options.sizes));
  return DocumentBlocks(options, std::move(places));
}

// Returns the last file that begins at or before the block, because files without documents have no blocks.
int64_t DocumentBlocks::file_of(int64_t block) const {
  return std::upper_bound(first_block_.begin(), first_block_.end(), block) - first_block_.begin() - 1;
}

absl::StatusOr<int64_t> DocumentBlocks::block_of(int64_t file, const data_files::FilePlace& place) const {
  TITAN_ASSIGN_OR_RETURN(const int64_t at, places_->at(file, place));
  TITAN_ASSIGN_OR_RETURN(const int64_t block, places_->block_of(file, at));
  return first_block_[file] + block;
}

absl::StatusOr<DocumentBlocks::Block> DocumentBlocks::read(int64_t number, Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(BlockTexts texts, places_->read(file_of(number), in_file(number)));
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

absl::StatusOr<data_files::FilePlace> DocumentBlocks::begin_of(int64_t number, const Block& read) {
  const int64_t file = file_of(number);
  if (read.documents.empty()) return places_->next_begin(file, in_file(number));
  return places_->place(file, read.documents.front().at, read.documents.front().line);
}

absl::StatusOr<std::string> DocumentBlocks::fingerprint(const data_files::TokenizerFingerprint& tokenizer) const {
  const FileKind& kind = options_.kind;
  const std::string more = absl::StrCat(kind.text_key, "|", name(kind.format), "|", kind.blank_lines, "|",
                                        tokenizer.sum, "|", tokenizer.bos, "|", tokenizer.eos);
  TITAN_ASSIGN_OR_RETURN(const std::string facts, kind.remote == nullptr ? file_facts(options_.files, more)
                                                                         : remote_facts(options_.files, more));
  const BlockFiles::Sizes& sizes = options_.sizes;
  if (kind.format == data_files::DatasetFormat::kParquet) return absl::StrCat(facts, "-", sizes.rows);
  const bool compressed = std::any_of(options_.files.begin(), options_.files.end(), data_files::is_compressed);
  if (!compressed) return absl::StrCat(facts, "-", sizes.text_bytes);
  return absl::StrCat(facts, "-", sizes.text_bytes, "-", sizes.compressed_bytes, "-",
                      data_files::decompressor_versions());
}

}  // namespace titan::data

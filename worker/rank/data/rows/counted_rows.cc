#include "worker/rank/data/rows/counted_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {
namespace {

constexpr size_t kCachedBlocks = 4;

}  // namespace

CountedRows::CountedRows(DocumentBlocks blocks, std::shared_ptr<Tokenizer> tokenizer, const Options& options)
    : blocks_(std::move(blocks)),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      counts_(
          CountsFile<BlockCount>(options.counts_file), blocks_.count(), options.rank, options.ranks,
          [this](int64_t number) -> absl::StatusOr<BlockCount> {
            TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* block, read_block(number));
            return block->count;
          },
          options.timeout),
      row_(static_cast<size_t>(options.row_tokens)) {}

absl::StatusOr<const int32_t*> CountedRows::next() {
  TITAN_ASSIGN_OR_RETURN(const int64_t there, ahead(options_.row_tokens));
  if (there < options_.row_tokens) return nullptr;
  for (int64_t filled = 0; filled < options_.row_tokens;) {
    if (head_.block == blocks_.count()) TITAN_RETURN_IF_ERROR(begin_pass());
    TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* from, block(head_.block));
    const int64_t part = std::min(options_.row_tokens - filled, from->count.tokens - head_.token);
    std::copy_n(from->tokens.begin() + head_.token, part, row_.begin() + filled);
    filled += part;
    head_.token += part;
    if (head_.token == from->count.tokens) TITAN_RETURN_IF_ERROR(leave_block(head_, BlockCount(from->count)));
  }
  return row_.data();
}

absl::StatusOr<int64_t> CountedRows::skip(int64_t rows) {
  TITAN_ASSIGN_OR_RETURN(const int64_t there, ahead(rows * options_.row_tokens));
  rows = there / options_.row_tokens;
  TITAN_RETURN_IF_ERROR(advance(rows * options_.row_tokens));
  return rows;
}

// Returns how many of the next `tokens` tokens exist: fewer only at the end of a stream that does not loop.
absl::StatusOr<int64_t> CountedRows::ahead(int64_t tokens) {
  if (options_.loop) return tokens;
  int64_t there = -head_.token;
  for (int64_t block = head_.block; block < blocks_.count() && there < tokens; ++block) {
    TITAN_ASSIGN_OR_RETURN(const BlockCount count, counts_.get(block));
    there += count.tokens;
  }
  if (there < tokens) TITAN_RETURN_IF_ERROR(note_end());
  return std::min(there, tokens);
}

// Reports the malformed lines after the last row, in text that is not read any more.
absl::Status CountedRows::note_end() {
  if (noted_end_) return absl::OkStatus();
  for (Head head = head_; head.block < blocks_.count();) {
    TITAN_ASSIGN_OR_RETURN(const BlockCount count, counts_.get(head.block));
    TITAN_RETURN_IF_ERROR(leave_block(head, count));
  }
  noted_end_ = true;
  return absl::OkStatus();
}

absl::Status CountedRows::advance(int64_t tokens) {
  while (tokens > 0) {
    if (head_.block == blocks_.count()) TITAN_RETURN_IF_ERROR(begin_pass());
    TITAN_ASSIGN_OR_RETURN(const BlockCount count, counts_.get(head_.block));
    const int64_t part = std::min(tokens, count.tokens - head_.token);
    tokens -= part;
    head_.token += part;
    if (head_.token == count.tokens) TITAN_RETURN_IF_ERROR(leave_block(head_, count));
  }
  return absl::OkStatus();
}

// Moves to the start of the next block, or after the last.
absl::Status CountedRows::leave_block(Head& head, const BlockCount& count) {
  if (count.bad_lines > 0) TITAN_RETURN_IF_ERROR(note_bad_lines(head, count));
  ++head.block;
  head.token = 0;
  head.documents += count.documents;
  head.bad_lines += count.bad_lines;
  head.lines = head.block == blocks_.count() || blocks_.begins_file(head.block) ? 0 : head.lines + count.lines;
  if (head.pass_tokens >= 0) head.pass_tokens += count.tokens;
  return absl::OkStatus();
}

absl::Status CountedRows::begin_pass() {
  if (head_.pass_tokens == 0) return no_documents(warnings_);
  if (head_.pass_tokens > 0 && !std::exchange(warned_, true)) {
    std::string warning = few_rows_warning(head_.pass_tokens, options_.row_tokens);
    if (!warning.empty()) warnings_.push_back(std::move(warning));
  }
  head_ = {.pass = head_.pass + 1};
  read_before_ = true;
  return absl::OkStatus();
}

absl::Status CountedRows::note_bad_lines(const Head& head, const BlockCount& count) {
  if (read_before_ && head.bad_lines + count.bad_lines <= options_.max_bad_lines) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* read, read_block(head.block));
  int64_t number = head.bad_lines;
  for (const DocumentBlocks::Block::Bad& bad : read->bad) {
    const int64_t file = blocks_.file_of(head.block);
    const std::string place =
        absl::StrCat(blocks_.places().name(file, bad.at, head.lines + bad.line), ": ", bad.problem);
    if (++number > options_.max_bad_lines) {
      return too_many_bad_lines(place, number, options_.max_bad_lines, blocks_.kind());
    }
    if (!read_before_) warnings_.push_back(absl::StrCat(place, ", skipped"));
  }
  return absl::OkStatus();
}

// Returns a counted block. InvalidArgument if it differs from its count.
absl::StatusOr<const DocumentBlocks::Block*> CountedRows::block(int64_t number) {
  TITAN_ASSIGN_OR_RETURN(const BlockCount count, counts_.get(number));
  TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* read, read_block(number));
  if (read->count == count) return read;
  return absl::InvalidArgumentError(absl::StrCat(
      blocks_.files()[blocks_.file_of(number)], ": its block ", number, " of the dataset has ", read->count.tokens,
      " tokens and was counted with ", count.tokens, ": the dataset has changed since; remove ", options_.counts_file));
}

absl::StatusOr<const DocumentBlocks::Block*> CountedRows::read_block(int64_t number) {
  const auto there =
      std::find_if(cache_.begin(), cache_.end(), [&](const auto& entry) { return entry.first == number; });
  if (there != cache_.end()) {
    std::rotate(there, there + 1, cache_.end());  // The last is the most recently used.
    return &cache_.back().second;
  }
  TITAN_ASSIGN_OR_RETURN(DocumentBlocks::Block read, blocks_.read(number, *tokenizer_));
  ++blocks_read_;
  if (cache_.size() == kCachedBlocks) cache_.erase(cache_.begin());
  cache_.emplace_back(number, std::move(read));
  return &cache_.back().second;
}

absl::StatusOr<StreamPosition> CountedRows::position() {
  StreamPosition position{.pass = head_.pass, .bad_lines = head_.bad_lines};
  position.document = {.file = static_cast<int64_t>(blocks_.files().size()), .document = head_.documents};
  if (head_.block == blocks_.count()) return position;
  TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* read, read_block(head_.block));
  position.document.file = blocks_.file_of(head_.block);
  if (head_.token == read->count.tokens) {  // The block has no tokens.
    TITAN_ASSIGN_OR_RETURN(const data_files::FilePlace begin, blocks_.begin_of(head_.block, *read));
    set_place(position, begin);
    return position;
  }
  const auto following = std::upper_bound(
      read->documents.begin(), read->documents.end(), head_.token,
      [](int64_t token, const DocumentBlocks::Block::Document& document) { return token < document.begin; });
  const DocumentBlocks::Block::Document& document = *(following - 1);
  set_place(position, blocks_.places().place(position.document.file, document.at, document.line));
  position.document.document += following - 1 - read->documents.begin();
  position.bad_lines += document.bad_before;
  position.token = head_.token - document.begin;
  return position;
}

void CountedRows::set_place(StreamPosition& position, const data_files::FilePlace& place) const {
  const bool lines =
      blocks_.kind().format != data_files::DatasetFormat::kParquet;  // Rows of Parquet are counted by group.
  position.document.offset = place.offset;
  position.document.line = place.line + (lines ? head_.lines : 0);
}

absl::Status CountedRows::seek(const StreamPosition& position) {
  const DocumentPosition& place = position.document;
  const auto files = static_cast<int64_t>(blocks_.files().size());
  if (place.file < 0 || place.file > files || place.offset < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the saved position is in file ", place.file,
                                                   " of the dataset, which has ", counted(files, "file")));
  }
  head_ = {.documents = place.document, .bad_lines = position.bad_lines, .pass = position.pass};
  head_.pass_tokens = position == StreamPosition{} ? 0 : -1;
  warnings_.clear();
  noted_end_ = false;
  head_.block = blocks_.count();
  if (place.file == files) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(head_.block, blocks_.block_of(place.file, {place.offset, place.line}));
  return head_.block == blocks_.first_block(place.file + 1) ? absl::OkStatus() : seek_in_file(position);
}

absl::Status CountedRows::seek_in_file(const StreamPosition& position) {
  const DocumentPosition& place = position.document;
  TITAN_ASSIGN_OR_RETURN(const int64_t at, blocks_.places().at(place.file, {place.offset, place.line}));
  TITAN_ASSIGN_OR_RETURN(const DocumentBlocks::Block* read, read_block(head_.block));
  const auto begin = std::lower_bound(read->begins.begin(), read->begins.end(), at);
  if (begin == read->begins.end() || *begin != at)
    return data_files::no_line_at(blocks_.files()[place.file], place.offset);
  const auto document =
      std::lower_bound(read->documents.begin(), read->documents.end(), at,
                       [](const DocumentBlocks::Block::Document& value, int64_t wanted) { return value.at < wanted; });
  const bool last = document == read->documents.end();
  head_.token = (last ? read->count.tokens : document->begin) + position.token;
  head_.lines = place.line - (begin - read->begins.begin());
  head_.documents -= document - read->documents.begin();
  head_.bad_lines -= last ? read->count.bad_lines : document->bad_before;
  const int64_t end = last || document + 1 == read->documents.end() ? read->count.tokens : (document + 1)->begin;
  if (head_.token > end) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is token ", position.token,
                                                   " of a document that now has ", last ? 0 : end - document->begin,
                                                   ": the dataset or the tokenizer has changed"));
  }
  return head_.token == read->count.tokens ? leave_block(head_, BlockCount(read->count)) : absl::OkStatus();
}

}  // namespace titan::data

#include "worker/data/text_blocks.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/file_facts.h"
#include "worker/data/json_lines.h"
#include "worker/data/line_reader.h"
#include "worker/data/line_start.h"

namespace titan::data {

absl::StatusOr<TextBlocks> TextBlocks::open(const Options& options) {
  TextBlocks blocks(options);
  for (const std::string& file : options.files) {
    struct stat facts {};
    if (::stat(file.c_str(), &facts) != 0) return errno_status(errno, file);
    blocks.sizes_.push_back(facts.st_size);
    const int64_t count = (facts.st_size + options.block_bytes - 1) / options.block_bytes;
    blocks.first_block_.push_back(blocks.first_block_.back() + count);
  }
  return blocks;
}

// The last file that begins at the block or before: files without bytes have no blocks.
int64_t TextBlocks::file_of(int64_t block) const {
  return std::upper_bound(first_block_.begin(), first_block_.end(), block) - first_block_.begin() - 1;
}

absl::StatusOr<TextBlocks::Block> TextBlocks::read(int64_t number, Tokenizer& tokenizer) const {
  Block block;
  const int64_t file = file_of(number);
  const int64_t begin = (number - first_block_[file]) * options_.block_bytes;
  const int64_t end = std::min(begin + options_.block_bytes, sizes_[file]);
  TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(options_.files[file], begin));
  block.end = start;
  if (start >= end) return block;  // A line that began before fills it.
  TITAN_ASSIGN_OR_RETURN(LineReader lines, LineReader::open(options_.files[file], {.offset = start}, end - start));
  while (lines.place().offset < end) {
    const FilePlace place = lines.place();
    std::string_view line;
    TITAN_ASSIGN_OR_RETURN(const bool more, lines.next(line));
    if (!more) break;
    block.lines.push_back(place.offset);
    if (blank(line)) continue;
    const auto first = static_cast<int64_t>(block.tokens.size());
    block.documents.push_back({first, place.offset, place.line, static_cast<int64_t>(block.bad.size())});
    DocumentText text = parse_json_line(line, options_.text_key);
    if (text.problem.empty()) {
      TITAN_RETURN_IF_ERROR(tokenizer.encode_document(text.text, block.tokens));
    } else {
      block.bad.push_back({place.line, std::move(text.problem)});
    }
  }
  block.count = {static_cast<int64_t>(block.tokens.size()), static_cast<int32_t>(block.documents.size()),
                 static_cast<int32_t>(block.lines.size()), static_cast<int32_t>(block.bad.size())};
  block.end = lines.place().offset;
  return block;
}

absl::StatusOr<std::string> TextBlocks::fingerprint(const TokenizerMark& tokenizer) const {
  const std::string more = absl::StrCat(options_.text_key, "|", tokenizer.sum, "|", tokenizer.bos, "|", tokenizer.eos);
  TITAN_ASSIGN_OR_RETURN(const std::string facts, file_facts(options_.files, more));
  return absl::StrCat(facts, "-", options_.block_bytes);
}

}  // namespace titan::data

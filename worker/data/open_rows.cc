#include "worker/data/open_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/row_stream.h"
#include "worker/data/sharding.h"
#include "worker/data/token_rows.h"

namespace titan::data {
namespace {

absl::StatusOr<OpenedRows> rows_of_text(const RowsWanted& wanted, std::unique_ptr<Tokenizer> tokenizer) {
  RankShare share{.files = wanted.files};
  if (wanted.per_rank) {
    TITAN_ASSIGN_OR_RETURN(share, split_by_rank(wanted.files, wanted.dp_rank, wanted.dp_size, wanted.kind));
  }
  DocumentReader reader(
      {.files = share.files, .kind = wanted.kind, .share = share.share, .max_bad_lines = wanted.max_bad_lines});
  return OpenedRows{
      std::make_unique<RowStream>(std::move(reader), std::move(tokenizer), wanted.row_tokens, wanted.loop),
      std::move(share.files)};
}

// Tokens of another tokenizer train a model that nobody can use.
absl::Status check_tokenizer(const TokenSet& set, const std::string& folder, const Tokenizer& tokenizer) {
  if (set.marks().empty()) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const TokenizerMark mark, mark_of(folder, tokenizer));
  for (const TokenSet::Marked& marked : set.marks()) {
    if (marked.tokenizer == mark) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        marked.manifest, ": was made with another tokenizer than the one in ", folder,
        ": give the job that tokenizer (model.hf_assets_path), or make the index again with titan-data tokenize"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedRows> rows_of_tokens(const RowsWanted& wanted, const Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(TokenSet set, TokenSet::open(wanted.kind.format, wanted.files));
  TITAN_RETURN_IF_ERROR(check_tokenizer(set, wanted.tokenizer_folder, tokenizer));
  TokenRows::Options options{.row_tokens = wanted.row_tokens, .loop = wanted.loop, .max_token_id = tokenizer.max_id()};
  if (wanted.per_rank) {
    TITAN_ASSIGN_OR_RETURN(const DocumentShare share,
                           contiguous_share(set.documents(), wanted.dp_rank, wanted.dp_size));
    options.first = share.begin;
    options.documents = *share.end - share.begin;
  }
  std::vector<std::string> paths = set.paths();
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TokenRows> rows, TokenRows::open(std::move(set), options));
  return OpenedRows{std::move(rows), std::move(paths)};
}

}  // namespace

absl::StatusOr<OpenedRows> open_rows(const RowsWanted& wanted, std::unique_ptr<Tokenizer> tokenizer) {
  if (holds_tokens(wanted.kind.format)) return rows_of_tokens(wanted, *tokenizer);
  return rows_of_text(wanted, std::move(tokenizer));
}

}  // namespace titan::data

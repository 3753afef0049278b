#include "worker/rank/data/rows/open_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/token_manifest.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/documents/counted_documents.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/documents/document_finder.h"
#include "worker/rank/data/documents/sharding.h"
#include "worker/rank/data/documents/token_documents.h"
#include "worker/rank/data/plugin/registry.h"
#include "worker/rank/data/rows/counted_rows.h"
#include "worker/rank/data/rows/document_rows.h"
#include "worker/rank/data/rows/packed_rows.h"
#include "worker/rank/data/rows/row_stream.h"
#include "worker/rank/data/rows/token_rows.h"
#include "worker/rank/data/rows/wrapped_rows.h"

namespace titan::data {
namespace {

// With this many ranks or more, shared counting is less work than reading everything.
constexpr int kManyRanks = 4;

// Returns whether ranks can share the counting of the file. Shuffled or packed documents are read one by one, which
// compressed and remote files do not allow. In order, a remote file has to be compressed and of known size. A plug-in's
// dataset decides itself how it reads.
bool allows_blocks(const RowsWanted& wanted, const std::string& file) {
  if (wanted.kind.plugin != nullptr) return true;
  const bool in_order = wanted.shuffle == Shuffle::kNone && wanted.packing_window == 0;
  if (wanted.kind.remote == nullptr) return in_order || !data_files::is_compressed(file);
  return in_order && data_files::is_compressed(file) && wanted.kind.remote->size(file).has_value();
}

bool can_be_counted(const RowsWanted& wanted) {
  return !wanted.per_rank && wanted.kind.chat == nullptr && wanted.dp_size >= kManyRanks &&
         !wanted.counts_folder.empty() && wanted.kind.format != data_files::DatasetFormat::kAuto &&
         std::all_of(wanted.files.begin(), wanted.files.end(),
                     [&](const std::string& file) { return allows_blocks(wanted, file); });
}

// With this many ranks or more, reading or decompressing everything may be slower than training.
constexpr int kTooManyToRead = 64, kTooManyToDecompress = 1024;

// Returns a warning if each of many ranks has to read or decompress all of the text; otherwise an empty text.
std::string reads_everything_warning(const RowsWanted& wanted) {
  const bool counted = can_be_counted(wanted);
  if (wanted.per_rank || wanted.dp_size < (counted ? kTooManyToDecompress : kTooManyToRead)) return "";
  const std::string* compressed = first_compressed(wanted.files, wanted.kind);
  const bool remote = wanted.kind.remote != nullptr;
  if (!remote && compressed == nullptr) return "";
  return absl::StrCat(remote ? wanted.files[0] : *compressed, remote ? ": streamed" : ": compressed",
                      " text cannot be read from the middle, so each of ", wanted.dp_size, " data-parallel ranks ",
                      counted ? "decompresses" : "reads and tokenises",
                      " all of it, which may hold up training; make a token index with titan-data tokenize",
                      remote ? " of a copy" : ", or decompress the files",
                      ", or set training.dataloader.order = \"per_rank\"");
}

absl::StatusOr<std::unique_ptr<RowSource>> counted_rows(const RowsWanted& wanted,
                                                        std::shared_ptr<Tokenizer> tokenizer) {
  TITAN_ASSIGN_OR_RETURN(DocumentBlocks blocks, DocumentBlocks::open({.files = wanted.files, .kind = wanted.kind}));
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenizerFingerprint mark,
                         tokenizer_fingerprint(wanted.tokenizer_folder, *tokenizer));
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(wanted.counts_folder));
  TITAN_ASSIGN_OR_RETURN(const std::string fingerprint, blocks.fingerprint(mark));
  const std::string counts_file = absl::StrCat("token-counts-", fingerprint, ".bin");
  const CountedRows::Options options{.row_tokens = wanted.row_tokens,
                                     .loop = wanted.loop,
                                     .max_bad_lines = wanted.max_bad_lines,
                                     .rank = wanted.dp_rank,
                                     .ranks = wanted.dp_size,
                                     .counts_file = storage::join_path(wanted.counts_folder, counts_file),
                                     .timeout = wanted.timeout};
  return std::make_unique<CountedRows>(std::move(blocks), std::move(tokenizer), options);
}

struct Share {
  DocumentReader reader;
  std::vector<std::string> files;
};

absl::StatusOr<Share> share_of_text(const RowsWanted& wanted) {
  RankShare share{.files = wanted.files};
  if (wanted.per_rank) {
    TITAN_ASSIGN_OR_RETURN(
        share, split_by_rank(wanted.files, wanted.dp_rank, wanted.dp_size, wanted.kind, wanted.counts_folder));
  }
  DocumentReader reader({.files = share.files,
                         .kind = wanted.kind,
                         .share = share.share,
                         .start = share.start,
                         .max_bad_lines = wanted.max_bad_lines});
  return Share{std::move(reader), std::move(share.files)};
}

absl::StatusOr<OpenedRows> streamed_rows(const RowsWanted& wanted, std::shared_ptr<Tokenizer> tokenizer) {
  TITAN_ASSIGN_OR_RETURN(Share share, share_of_text(wanted));
  return OpenedRows{
      std::make_unique<RowStream>(std::move(share.reader), std::move(tokenizer), wanted.row_tokens, wanted.loop),
      std::move(share.files)};
}

// Opens rows whose counting the ranks share. Compressed text with a block that is too dense for memory is read as a
// stream.
absl::StatusOr<OpenedRows> rows_counted_together(const RowsWanted& wanted,
                                                 const std::shared_ptr<Tokenizer>& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<RowSource> rows, counted_rows(wanted, tokenizer));
  if (first_compressed(wanted.files, wanted.kind) == nullptr) return OpenedRows{std::move(rows), wanted.files};
  const auto everything = [wanted, tokenizer]() -> absl::StatusOr<std::unique_ptr<RowSource>> {
    TITAN_ASSIGN_OR_RETURN(OpenedRows opened, streamed_rows(wanted, tokenizer));
    return std::move(opened.rows);
  };
  return OpenedRows{fallback_rows(std::move(rows), everything), wanted.files};
}

TokenDocumentsOptions documents_wanted(const RowsWanted& wanted) {
  return {.arrangement = {.shuffle = wanted.shuffle, .seed = wanted.shuffle_seed},
          .loop = wanted.loop,
          .row_tokens = wanted.row_tokens};
}

// With order per_rank, sets `options` to the rank's share of `documents`.
absl::Status shard_microbatch(const RowsWanted& wanted, int64_t documents, TokenDocumentsOptions& options) {
  if (!wanted.per_rank) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const DocumentShare share, contiguous_share(documents, wanted.dp_rank, wanted.dp_size));
  options.first = share.begin;
  options.documents = *share.end - share.begin;
  return absl::OkStatus();
}

// `pieces`: no token marks the end of a document, so rows record it.
std::unique_ptr<RowSource> rows_of_documents(const RowsWanted& wanted, std::unique_ptr<TokenDocuments> documents,
                                             bool pieces, std::optional<int32_t> end_of_document) {
  if (wanted.packing_window == 0) {
    return std::make_unique<DocumentRows>(std::move(documents), wanted.row_tokens, pieces);
  }
  return std::make_unique<PackedRows>(
      std::move(documents),
      PackedRows::Options{
          .row_tokens = wanted.row_tokens, .window = wanted.packing_window, .padding = end_of_document.value_or(0)});
}

absl::Status cannot_shuffle(const std::string& what, const RowsWanted& wanted, const std::string& remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": shuffle = \"", name(wanted.shuffle), "\" ", remedy));
}

constexpr char kTokenise[] = "; make a token index of them with titan-data tokenize, or leave shuffle out";

// Returns InvalidArgument, with the reason, if documents of these files cannot be read in any order.
absl::Status check_addressable(const RowsWanted& wanted) {
  if (wanted.shuffle == Shuffle::kRows) {
    return cannot_shuffle(wanted.files[0], wanted,
                          "needs a token index, because in text it is not known where a row starts: set shuffle = "
                          "\"documents\", or make one with titan-data tokenize");
  }
  if (wanted.kind.remote != nullptr) {
    return cannot_shuffle(
        wanted.files[0], wanted,
        "needs files on this machine, but a hub's are streamed: download them with titanctl assets get");
  }
  const std::string* compressed = first_compressed(wanted.files, wanted.kind);
  if (compressed == nullptr) return absl::OkStatus();
  return cannot_shuffle(*compressed, wanted,
                        absl::StrCat("would decompress a file up to each of its documents", kTokenise));
}

ShuffledShare share_for_finder(const RowsWanted& wanted, const TokenDocumentsOptions& share) {
  return {wanted.shuffle_seed, share.first, share.documents, wanted.shuffle == Shuffle::kNone};
}

absl::StatusOr<std::unique_ptr<DocumentFinder>> finder_of_places(const RowsWanted& wanted) {
  TITAN_ASSIGN_OR_RETURN(DocumentPlaces places, DocumentPlaces::get(wanted.files, wanted.kind, wanted.counts_folder));
  TokenDocumentsOptions share;
  TITAN_RETURN_IF_ERROR(shard_microbatch(wanted, places.documents(), share));
  return find_by_places(wanted.files, wanted.kind, std::move(places), share_for_finder(wanted, share));
}

// Makes any number of finders of the same documents. A Parquet file's footer is read once for all of them.
using NewFinder = std::function<absl::StatusOr<std::unique_ptr<DocumentFinder>>()>;

absl::StatusOr<NewFinder> finders(const RowsWanted& wanted) {
  if (wanted.kind.format != data_files::DatasetFormat::kParquet) return [&wanted] { return finder_of_places(wanted); };
  std::vector<std::vector<int64_t>> groups;
  int64_t documents = 0;
  for (const std::string& file : wanted.files) {
    TITAN_ASSIGN_OR_RETURN(groups.emplace_back(), parquet_row_groups(file, wanted.kind));
    documents = std::accumulate(groups.back().begin(), groups.back().end(), documents);
  }
  TokenDocumentsOptions share;
  TITAN_RETURN_IF_ERROR(shard_microbatch(wanted, documents, share));
  return [&wanted, groups = std::move(groups), share = share_for_finder(wanted, share)] {
    return find_in_blocks(wanted.files, wanted.kind, groups, share);
  };
}

// Returns the path of the file of documents' lengths. Its name depends on all that they depend on.
absl::StatusOr<std::string> lengths_file(const RowsWanted& wanted, const Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenizerFingerprint mark,
                         tokenizer_fingerprint(wanted.tokenizer_folder, tokenizer));
  const FileKind& kind = wanted.kind;
  const std::string more = absl::StrCat(kind.text_key, "|", cache_name(kind), "|", kind.blank_lines, "|", mark.sum, "|",
                                        mark.bos, "|", mark.eos, "|", name(wanted.shuffle), "|", wanted.shuffle_seed);
  TITAN_ASSIGN_OR_RETURN(const std::string facts, file_facts(wanted.files, more));
  return storage::join_path(wanted.counts_folder, absl::StrCat("document-lengths-", facts, ".bin"));
}

absl::StatusOr<std::unique_ptr<TokenDocuments>> documents_counted_together(const RowsWanted& wanted,
                                                                           std::shared_ptr<Tokenizer> tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const std::string counts_file, lengths_file(wanted, *tokenizer));
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(wanted.counts_folder));
  TITAN_ASSIGN_OR_RETURN(const NewFinder new_finder, finders(wanted));
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DocumentFinder> counted, new_finder());
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DocumentFinder> read, new_finder());
  const CountedDocumentsOptions sharing{.kind = wanted.kind,
                                        .max_bad_lines = wanted.max_bad_lines,
                                        .rank = wanted.dp_rank,
                                        .ranks = wanted.dp_size,
                                        .counts_file = counts_file,
                                        .timeout = wanted.timeout};
  return counted_documents(std::move(counted), std::move(read), std::move(tokenizer), sharing,
                           documents_wanted(wanted));
}

absl::StatusOr<OpenedRows> arranged_text(const RowsWanted& wanted, std::shared_ptr<Tokenizer> tokenizer) {
  const std::optional<int32_t> end = tokenizer->eos_id();
  const bool shuffled = wanted.shuffle != Shuffle::kNone;
  if (shuffled) TITAN_RETURN_IF_ERROR(check_addressable(wanted));
  std::vector<std::string> files = wanted.files;
  std::unique_ptr<TokenDocuments> documents;
  if (can_be_counted(wanted)) {
    TITAN_ASSIGN_OR_RETURN(documents, documents_counted_together(wanted, std::move(tokenizer)));
  } else if (shuffled) {
    TITAN_ASSIGN_OR_RETURN(const NewFinder new_finder, finders(wanted));
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DocumentFinder> found, new_finder());
    documents = shuffled_documents(std::move(found), wanted.kind, wanted.max_bad_lines, std::move(tokenizer),
                                   documents_wanted(wanted));
  } else {
    TITAN_ASSIGN_OR_RETURN(Share share, share_of_text(wanted));
    documents = documents_in_order(std::move(share.reader), std::move(tokenizer), documents_wanted(wanted));
    files = std::move(share.files);
  }
  return OpenedRows{rows_of_documents(wanted, std::move(documents), has_pieces(wanted.kind), end), std::move(files)};
}

// Adds what depends on the tokenizer: the largest token that a plug-in may return and, for conversations, the chat
// template.
absl::StatusOr<RowsWanted> with_tokenizer(RowsWanted wanted, const Tokenizer& tokenizer) {
  wanted.kind.max_token_id = tokenizer.max_id();
  if (wanted.kind.messages_key.empty()) return wanted;
  const data_files::DatasetFormat format = wanted.kind.format;
  if (format != data_files::DatasetFormat::kJsonLines && format != data_files::DatasetFormat::kParquet &&
      format != data_files::DatasetFormat::kPlugin) {
    return absl::InvalidArgumentError(absl::StrCat(
        wanted.files[0], ": messages_key = \"", wanted.kind.messages_key,
        "\" is only for JSON lines and Parquet, but the files hold ",
        data_files::holds_tokens(wanted.kind.format) ? "tokens" : "plain text", ": leave messages_key out"));
  }
  TITAN_ASSIGN_OR_RETURN(wanted.kind.chat,
                         Chat::load(wanted.tokenizer_folder, wanted.kind.messages_key, wanted.kind.train_on_all));
  return wanted;
}

absl::StatusOr<OpenedRows> rows_of_text(const RowsWanted& wanted, std::shared_ptr<Tokenizer> tokenizer) {
  const bool plugin = wanted.kind.plugin != nullptr;
  if (plugin) TITAN_RETURN_IF_ERROR(check_places(wanted.files[0], wanted.kind));
  if (plugin || wanted.shuffle != Shuffle::kNone || wanted.packing_window > 0 || wanted.kind.chat != nullptr) {
    return arranged_text(wanted, std::move(tokenizer));
  }
  if (can_be_counted(wanted)) return rows_counted_together(wanted, std::move(tokenizer));
  return streamed_rows(wanted, std::move(tokenizer));
}

// Refuses tokens of another tokenizer, which would train a useless model.
absl::Status check_tokenizer(const TokenSet& set, const std::string& folder, const Tokenizer& tokenizer) {
  if (set.marks().empty()) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenizerFingerprint mark, tokenizer_fingerprint(folder, tokenizer));
  for (const TokenSet::Marked& marked : set.marks()) {
    if (marked.tokenizer == mark) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        marked.manifest, ": was made with another tokenizer than the one in ", folder,
        ": give the job that tokenizer (model.hf_assets_path), or make the index again with titan-data tokenize"));
  }
  return absl::OkStatus();
}

// Refuses a job with another train_on than its index, which fixes which tokens are labels.
absl::Status check_labels(const TokenSet& set, bool train_on_all) {
  for (const TokenSet::Marked& marked : set.marks()) {
    if (marked.train_on_all.value_or(train_on_all) == train_on_all) continue;
    const char* made = data_files::train_on_name(*marked.train_on_all);
    const char* wanted = data_files::train_on_name(train_on_all);
    return absl::InvalidArgumentError(absl::StrCat(
        marked.manifest, ": was made with --train-on ", made, ", and the job has dataloader.train_on = \"", wanted,
        "\": set train_on = \"", made, "\", or make the index again with titan-data tokenize --train-on ", wanted));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowSource>> rows_of_set(const RowsWanted& wanted, TokenSet set,
                                                       const Tokenizer& tokenizer) {
  const int32_t max_token_id = tokenizer.max_id();
  TokenDocumentsOptions share = documents_wanted(wanted);
  TITAN_RETURN_IF_ERROR(shard_microbatch(wanted, set.documents(), share));
  if (wanted.shuffle == Shuffle::kRows && wanted.packing_window > 0) {
    return absl::InvalidArgumentError(
        "shuffle = \"rows\" has no rows to shuffle before documents are packed: set shuffle = \"documents\", or "
        "packing = "
        "\"concatenate\"");
  }
  const bool marked = set.marked();  // Rows of conversations record where they end, as they do for text.
  if (marked && wanted.shuffle == Shuffle::kRows) {
    return cannot_shuffle(wanted.files[0], wanted, "would lose where conversations end: set shuffle = \"documents\"");
  }
  if (marked || wanted.shuffle == Shuffle::kDocuments || wanted.packing_window > 0) {
    return rows_of_documents(wanted, documents_of_set(std::move(set), max_token_id, share), marked, tokenizer.eos_id());
  }
  if (wanted.shuffle == Shuffle::kRows) {
    return ShuffledRows::open(std::move(set), {.row_tokens = wanted.row_tokens,
                                               .seed = wanted.shuffle_seed,
                                               .loop = wanted.loop,
                                               .max_token_id = max_token_id,
                                               .first = share.first,
                                               .documents = share.documents});
  }
  return TokenRows::open(std::move(set), {.row_tokens = wanted.row_tokens,
                                          .loop = wanted.loop,
                                          .max_token_id = max_token_id,
                                          .first = share.first,
                                          .documents = share.documents});
}

absl::StatusOr<OpenedRows> rows_of_tokens(const RowsWanted& wanted, const Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(TokenSet set, TokenSet::open(wanted.kind.format, wanted.files));
  TITAN_RETURN_IF_ERROR(check_tokenizer(set, wanted.tokenizer_folder, tokenizer));
  TITAN_RETURN_IF_ERROR(check_labels(set, wanted.kind.train_on_all));
  std::vector<std::string> paths = set.paths();
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<RowSource> rows, rows_of_set(wanted, std::move(set), tokenizer));
  return OpenedRows{std::move(rows), std::move(paths)};
}

}  // namespace

absl::StatusOr<OpenedRows> open_rows(const RowsWanted& asked, const std::shared_ptr<Tokenizer>& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const RowsWanted wanted, with_tokenizer(asked, *tokenizer));
  const bool tokens = data_files::holds_tokens(wanted.kind.format);
  TITAN_ASSIGN_OR_RETURN(OpenedRows opened,
                         tokens ? rows_of_tokens(wanted, *tokenizer) : rows_of_text(wanted, tokenizer));
  const bool warns = !wanted.per_rank || wanted.dp_rank == 0;  // With order per_rank every rank's warnings are shown.
  for (std::string warning : {tokens ? "" : reads_everything_warning(wanted), warns ? wanted.kind.warning : ""}) {
    if (!warning.empty()) opened.rows = warned_rows(std::move(opened.rows), std::move(warning));
  }
  return opened;
}

absl::StatusOr<MixedRows> open_mixed_rows(const RowsWanted& common, const std::vector<SourceWanted>& sources,
                                          std::vector<WeightsFrom> schedule,
                                          const std::shared_ptr<Tokenizer>& tokenizer) {
  std::vector<MixSource> opened;
  for (const SourceWanted& source : sources) {
    RowsWanted wanted = common;
    wanted.files = source.files;
    wanted.kind = source.kind;
    wanted.loop = common.loop && source.repeat;
    wanted.shuffle = source.shuffle.value_or(common.shuffle);
    absl::StatusOr<OpenedRows> rows = open_rows(wanted, tokenizer);
    if (!rows.ok() && !source.name.empty()) {
      return annotate(rows.status(), absl::StrCat("source \"", source.name, "\""));
    }
    if (!rows.ok()) return rows.status();
    opened.push_back({source.name, wanted.loop, std::move(rows->rows), std::move(rows->files)});
  }
  if (schedule.empty()) schedule.push_back({0, std::vector<int64_t>(opened.size(), 1)});
  return MixedRows::open(std::move(opened), std::move(schedule));
}

absl::StatusOr<StreamPosition> position_from_torchtitan(const RowsWanted& wanted, int64_t documents,
                                                        int64_t tokens_left) {
  if (wanted.shuffle != Shuffle::kNone || wanted.packing_window > 0) {
    return absl::InvalidArgumentError(
        "the checkpoint's data position counts documents in their order, and the job shuffles or packs them: leave "
        "shuffle and packing of training.dataloader out, or put \"dataloader\" into checkpoint.exclude_from_loading");
  }
  if (!wanted.kind.messages_key.empty()) {
    return absl::InvalidArgumentError(
        "the checkpoint's data position counts documents of text, and the job reads conversations: leave messages_key "
        "out, or put \"dataloader\" into checkpoint.exclude_from_loading");
  }
  if (wanted.kind.plugin != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint's data position counts documents of text, and the job reads the dataset \"",
        wanted.kind.plugin->name, "\" of a library: put \"dataloader\" into checkpoint.exclude_from_loading"));
  }
  if (data_files::holds_tokens(wanted.kind.format)) {
    return absl::InvalidArgumentError(
        "the checkpoint's data position counts documents of text, and the job reads tokens: continue with the text, or "
        "put "
        "\"dataloader\" into checkpoint.exclude_from_loading");
  }
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<Tokenizer> tokenizer, Tokenizer::load(wanted.tokenizer_folder));
  TITAN_ASSIGN_OR_RETURN(Share share, share_of_text(wanted));
  RowStream rows(std::move(share.reader), std::move(tokenizer), wanted.row_tokens, wanted.loop);
  TITAN_RETURN_IF_ERROR(rows.seek_torchtitan_position(documents, tokens_left));
  return rows.position();
}

}  // namespace titan::data

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/mixed_rows.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Describes the rows to open.
struct RowsWanted {
  std::vector<std::string> files;  // In the dataset's order (find_dataset_files).
  FileKind kind;
  std::string tokenizer_folder;
  int64_t row_tokens = 0;
  bool loop = true;
  int64_t max_bad_lines = 100;
  bool per_rank = false;  // Only the rank's own documents, instead of one stream of all.
  int dp_rank = 0, dp_size = 1;
  Shuffle shuffle = Shuffle::kNone;
  int64_t shuffle_seed = 0;
  int64_t packing_window = 0;  // Documents packed together by best fit; 0: rows are cut from one stream.
  std::string counts_folder;   // Where ranks share counts and tables of documents; empty: each rank reads everything.
  absl::Duration timeout = absl::Seconds(1);  // Longest wait for a new count by another rank.
};

// Opened rows, and the files that they come from.
struct OpenedRows {
  std::unique_ptr<RowSource> rows;
  std::vector<std::string> files;  // Files that positions number.
};

// Opens rows of text or of tokens. Errors: InvalidArgument, NotFound, DataLoss; names the file, or the tokenizer that
// does not match the tokens.
absl::StatusOr<OpenedRows> open_rows(const RowsWanted& wanted, const std::shared_ptr<Tokenizer>& tokenizer);

// One of the datasets of a stream.
struct SourceWanted {
  std::string name;  // Empty for a stream's only source.
  std::vector<std::string> files;
  FileKind kind;
  bool repeat = true;
  std::optional<Shuffle> shuffle = {};  // No value: the stream's.
};

// Opens the rows of all sources, mixed by their weights. Each source's files, kind, repeat and shuffle replace those of
// `common`.
absl::StatusOr<MixedRows> open_mixed_rows(const RowsWanted& common, const std::vector<SourceWanted>& sources,
                                          std::vector<WeightsFrom> schedule,
                                          const std::shared_ptr<Tokenizer>& tokenizer);

// Converts torchtitan's numbers to a position of these rows (RowStream::seek_torchtitan_position). InvalidArgument
// unless the rows are cut from plain text in order. A position in the stream of all documents is valid for any number
// of ranks.
absl::StatusOr<StreamPosition> position_from_torchtitan(const RowsWanted& wanted, int64_t documents,
                                                        int64_t tokens_left);

}  // namespace titan::data

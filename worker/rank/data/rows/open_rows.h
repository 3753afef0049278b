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

// Whose rows are wanted.
struct RowsWanted {
  std::vector<std::string> files;  // In the dataset's order (find_dataset_files).
  FileKind kind;
  std::string tokenizer_folder;
  int64_t row_tokens = 0;
  bool loop = true;
  int64_t max_bad_lines = 100;
  bool per_rank = false;  // The rank's own documents, not the stream of all.
  int dp_rank = 0, dp_size = 1;
  Shuffle shuffle = Shuffle::kNone;
  int64_t shuffle_seed = 0;
  int64_t packing_window = 0;  // Documents that are packed together by best fit; 0: rows are cut from one stream.
  std::string counts_folder;   // Where ranks share what they counted; none: each reads everything.
  absl::Duration timeout = absl::Seconds(1);  // With ranks whose counts do not come.
};

struct OpenedRows {
  std::unique_ptr<RowSource> rows;
  std::vector<std::string> files;  // That positions number.
};

// Rows of text or of tokens. Errors: InvalidArgument, NotFound, DataLoss; names the file, or the tokenizer that the
// tokens are not of.
absl::StatusOr<OpenedRows> open_rows(const RowsWanted& wanted, const std::shared_ptr<Tokenizer>& tokenizer);

// One of the datasets of a stream.
struct SourceWanted {
  std::string name;  // None: the stream's only one.
  std::vector<std::string> files;
  FileKind kind;
  bool repeat = true;
  std::optional<Shuffle> shuffle = {};  // Not set: as the stream's.
};

// Rows of all sources by their weights. What `common` says of files and their kind is each source's own.
absl::StatusOr<MixedRows> open_mixed_rows(const RowsWanted& common, const std::vector<SourceWanted>& sources,
                                          std::vector<WeightsFrom> schedule,
                                          const std::shared_ptr<Tokenizer>& tokenizer);

// The position of these rows by torchtitan's numbers (RowStream::seek_behind), of text alone; of the stream of all, for
// any number of ranks.
absl::StatusOr<StreamPosition> place_behind(const RowsWanted& wanted, int64_t documents, int64_t tokens_left);

}  // namespace titan::data

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/trace/spans.h"

namespace titan::data {

// kGlobal: one stream is dealt to all ranks. kPerRank: each rank reads its own documents.
enum class Order { kGlobal, kPerRank };

struct LoaderOptions {
  std::vector<std::string> files;  // In the dataset's order (find_dataset_files).
  FileKind kind;
  std::vector<SourceWanted> sources;  // Datasets of one stream, instead of `files` and `kind`; only with kGlobal.
  std::vector<WeightsFrom> weights;   // Weights of the sources.
  std::string tokenizer_folder;       // See Tokenizer::load.
  int64_t batch = 1;                  // Rows of one microbatch on this data-parallel rank.
  int64_t seq_len = 2048;
  Order order = Order::kGlobal;
  int dp_rank = 0;
  int dp_size = 1;
  bool loop = true;             // Starts again at the end. Training always does.
  int64_t max_bad_lines = 100;  // More malformed lines in a pass fail the job.
  Shuffle shuffle = Shuffle::kNone;
  int64_t shuffle_seed = 0;
  int64_t packing_window = 0;  // RowsWanted::packing_window.
  std::string counts_folder;   // RowsWanted::counts_folder.
  int prefetch = 2;            // Microbatches prepared ahead by the loader's thread; 0: none.
  std::shared_ptr<trace::SpanRecorder> spans =
      nullptr;  // Records the making of each microbatch in traces; null: does not.
};

// Batches of one data-parallel rank. Order kGlobal: row r of global microbatch m (batch * dp_size rows) is row m *
// batch * dp_size + r of one stream, and this rank takes rows [dp_rank * batch, (dp_rank + 1) * batch). So the global
// batch depends only on batch * dp_size.
//
// Order kPerRank: torchtitan's contiguous share of documents and token buffer per rank. Compressed files are streamed:
// every dp_size-th file, or every dp_size-th document if the files do not divide evenly.
//
// restore() also accepts torchtitan's state of one stream: {"sample_idx", "tokens_left"}, the documents read in this
// pass and how many of their tokens are in no row yet. Order kPerRank: this rank's; kGlobal: the one stream's. next()
// fails with InvalidArgument beyond max_bad_lines. Warnings are malformed lines, "data.json:17: not JSON, skipped", and
// a dataset so small that it repeats endlessly.
class DataLoader : public BatchSource {
 public:
  // Returns the largest token that can appear. It has to be below the model's vocabulary size.
  virtual int32_t max_token_id() const = 0;

  // Returns the token that ends each document, if the tokenizer defines one.
  virtual std::optional<int32_t> end_of_document() const = 0;
};

// Opens a loader. The files come from dataset_files() (datasets.h). Errors: InvalidArgument, NotFound; names the
// option, file or key.
absl::StatusOr<std::unique_ptr<DataLoader>> open_loader(const LoaderOptions& options);

}  // namespace titan::data

#pragma once

// Reads and decodes the rows of one data-parallel rank on several threads, ahead of the step.

#include <any>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/samples/row_balance.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/data/samples/sample_set.h"
#include "worker/rank/trace/spans.h"

namespace titan::data {

// Decodes a sample and prepares it for the model. `row` is the number of its row in the stream (SampleOrder), the same
// on any number of ranks: random draws depend on it and on a seed only. Called by several threads at once. Errors:
// InvalidArgument if this sample cannot be used, with the reason ("its image is 200x100, smaller than 256"), so that it
// is skipped; any other error ends the reading. A thrown exception is thrown again by SampleRows::next().
// unusable() makes the first kind of an error.
using DecodeSample = std::function<absl::StatusOr<std::any>(const Sample& sample, int64_t row)>;

// A sample that cannot be used is skipped, whatever is wrong with it.
inline absl::Status unusable(const absl::Status& status) { return absl::InvalidArgumentError(status.message()); }

// A row that is ready for the step.
struct SampleRow {
  int64_t number = 0;  // In the stream (SampleOrder).
  SamplePlace place;
  std::string sample;   // Name of the sample that was decoded.
  std::string skipped;  // Name of the row's own sample and why it is not the one that was decoded; "": it is.
  std::any value;       // The value that DecodeSample returned.
};

// Returns the error of a reader with more than `most` skipped samples in a pass; this is the `number`th. `skipped`: the
// name of a sample and why it was skipped.
absl::Status too_many_bad_samples(const std::string& skipped, int64_t number, int64_t most);

// SampleRows::Options::max_bad_samples of a reader without a limit.
inline constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();

// The cost of the reading since the last call of take_progress().
struct SampleProgress {
  int64_t rows = 0;           // Returned by next().
  int64_t bytes_read = 0;     // Read from the files, for these and later rows.
  double seconds = 0;         // Time that has passed.
  double waited_seconds = 0;  // Time that next() waited for a row. Near 0: the reading is ahead of the step.
  double work_seconds = 0;    // Time that the threads read and decoded, added up.
  int64_t ready = 0;          // Rows that are ready now.

  double samples_per_second() const { return seconds > 0 ? static_cast<double>(rows) / seconds : 0; }
};

// The rows of one data-parallel rank. Row r of global microbatch m (batch * dp_size rows) is row m * batch * dp_size +
// r of the stream after the cursor, and this rank takes rows [dp_rank * batch, (dp_rank + 1) * batch), as DataLoader
// does with order "global". With Options::cost_of the rows of each step are instead dealt by their costs (RowBalance);
// a step that holds the end of a pass is not. Used by one thread.
class SampleRows {
 public:
  struct Options {
    int64_t batch = 1;  // Rows of one microbatch on this data-parallel rank.
    int dp_rank = 0, dp_size = 1;
    bool loop = true;  // Starts again at the end. Training always does.
    // More skipped samples in a pass fail the job. A rank knows its own, and those of all ranks before the last seek();
    // set_bad_samples() compares the sum over ranks.
    int64_t max_bad_samples = 100;
    int threads = 4;          // 0: next() reads and decodes.
    int64_t look_ahead = 64;  // Rows that are prepared or ready at once, at most.
    // Bytes of ready rows at which threads take no further ones. Rows that they have begun come on top.
    int64_t look_ahead_bytes = int64_t{256} << 20;
    std::function<int64_t(const std::any& value)> bytes_of = nullptr;  // Bytes of a value; null: those of its sample.
    std::shared_ptr<trace::SpanRecorder> spans = nullptr;              // Records the work in traces; null: does not.
    // Returns the cost of a row whose sample this is, from as little of it as possible, the same on every rank whether
    // or not the sample can be used. Errors end the reading. Called by several threads at once. Null: not balanced.
    std::function<absl::StatusOr<int64_t>(SampleSet& samples, int64_t sample)> cost_of = nullptr;
    int64_t microbatches = 1;  // Global microbatches of a step.
  };
  SampleRows(std::shared_ptr<SampleSet> samples, SampleOrder order, DecodeSample decode, Options options);
  // Ends reads from a hub (SampleSet::stop), and waits for the samples that are being decoded.
  ~SampleRows();
  SampleRows(const SampleRows&) = delete;
  SampleRows& operator=(const SampleRows&) = delete;

  // Returns the next row. Nothing: the data ends within this microbatch, and the row does not exist; so all ranks see
  // the same number of microbatches. Errors, which every later call repeats: OutOfRange if the data ended before this
  // microbatch; InvalidArgument beyond max_bad_samples (names the sample), if no substitute is usable, and for damaged
  // files; those of the files and of DecodeSample. They come in the order of rows: first all rows before the failed
  // one.
  absl::StatusOr<std::optional<SampleRow>> next();

  // Returns the place after the last whole microbatch that next() returned, regardless of the look-ahead: the same on
  // every rank and valid for any dp_size. Its `bad_samples` are those of all ranks if set_bad_samples() was called at
  // this place, else only this rank's.
  SampleCursor cursor() const;
  // Returns how many samples this rank skipped in the pass of the last row before cursor(), since it began or since the
  // last seek(). They are those of returned rows. Like cursor(), call it between microbatches.
  int64_t own_bad_samples() const;
  // Takes the sum of own_bad_samples() over the data-parallel ranks. Returns InvalidArgument if it is beyond
  // max_bad_samples, with those before the last seek(); so all ranks fail at the same place. Without this call a rank
  // compares only its own.
  absl::Status set_bad_samples(int64_t of_all_ranks);
  // Returns the skipped samples of all ranks in the pass, as of the last set_bad_samples().
  int64_t bad_samples() const;
  // Moves to a place and forgets earlier errors.
  void seek(const SampleCursor& cursor);

  // The cursor as checkpoints store it, and back. Errors: those of SampleOrder::cursor_from_json().
  nlohmann::json state() const { return order_.to_json(cursor()); }
  absl::Status restore(const nlohmann::json& state);

  // Returns the warnings since the last call: skipped samples of this rank, "shard-0001.tar: 000000012: no image,
  // skipped", each once and at most a hundred, and those of the files.
  std::vector<std::string> take_warnings();
  SampleProgress take_progress();

 private:
  struct Prepared {
    absl::Status status;
    std::exception_ptr thrown;
    SampleRow row;
    int64_t bytes = 0;  // The size of the value.
  };
  int64_t number_of(int64_t index) const;
  absl::StatusOr<int64_t> balanced_number_of(int64_t index);
  bool exists(int64_t index) const { return options_.loop || number_of(index) < order_.samples(); }
  Prepared prepare(int64_t index);
  absl::Status attempt(int64_t attempt, Prepared& prepared, std::string& problem);
  Prepared take();
  absl::Status note_skipped(const SampleRow& row);
  int64_t current_pass() const;
  // Returns the skipped samples of a pass before the last seek().
  int64_t bad_before(int64_t pass) const;
  void run();
  bool may_begin() const TITAN_REQUIRES(mutex_);
  void start_threads() TITAN_REQUIRES(mutex_);
  void stop_threads();

  const std::shared_ptr<SampleSet> samples_;
  const SampleOrder order_;
  const DecodeSample decode_;
  const Options options_;

  // Used by the caller's thread alone.
  int64_t returned_ = 0;     // Rows that next() returned or passed over since the last seek().
  absl::Status failed_;      // The error that next() returns from now on.
  int64_t bad_samples_ = 0;  // Own, in pass bad_pass_.
  int64_t bad_pass_ = 0;
  std::optional<int64_t> bad_of_all_;  // set_bad_samples() since the last seek().
  std::string last_skipped_;           // Own.
  int64_t named_ = 0;                  // Skipped samples that were named in warnings.
  int64_t named_pass_ = 0;             // They are named in the first pass only.
  std::vector<std::string> warnings_;
  double progress_began_ = 0, waited_ = 0;
  int64_t rows_ = 0;  // Since the last take_progress().

  // Fixed while threads run.
  SampleCursor start_;                   // The last seek().
  std::unique_ptr<RowBalance> balance_;  // Null: rows are not balanced.

  sync::Mutex mutex_;
  sync::Condition changed_;
  // Rows that were begun and not yet returned, in order; without a value while a thread prepares it.
  std::deque<std::optional<Prepared>> begun_ TITAN_GUARDED_BY(mutex_);
  int64_t next_index_ TITAN_GUARDED_BY(mutex_) = 0;   // The next row to begin, of this rank's since the last seek().
  int64_t ready_bytes_ TITAN_GUARDED_BY(mutex_) = 0;  // Sum over begun_.
  bool ended_ TITAN_GUARDED_BY(mutex_) = false;       // A row failed: no further ones are begun.
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  int64_t bytes_read_ TITAN_GUARDED_BY(mutex_) = 0;
  double work_ TITAN_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace titan::data

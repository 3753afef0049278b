#pragma once

// A trainer reads batches of named tensors, and the place in the data after each. Each kind of data has its own source;
// the objective of a model opens it (worker/rank/model/objective.h).

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// Some rows as named tensors on the CPU, each [rows, ...].
class Batch {
 public:
  Batch() = default;
  Batch(std::initializer_list<std::pair<const std::string, at::Tensor>> tensors) : tensors_(tensors) {}

  // Returns the tensor [rows, ...], undefined if it is new.
  at::Tensor& operator[](const std::string& name) { return tensors_[name]; }
  // Returns the tensor [rows, ...]. Throws c10::Error with the names that exist if there is none.
  const at::Tensor& at(const std::string& name) const;
  bool has(const std::string& name) const;
  // Returns all tensors, each [rows, ...].
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }

  int64_t rows() const;  // 0 without tensors.
  // Returns rows [first, first + count) of every tensor, without copying.
  Batch narrow(int64_t first, int64_t count) const;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// Totals of one of several sources, over the batches of all ranks.
struct SourceProgress {
  std::string name;
  int64_t rows = 0;
  int64_t passes = 0;  // Times that its documents were read to the end.
};

// The cost of reading and decoding ahead of the step on this rank, since the last call that returned it.
struct ReadingCost {
  double rows_per_second = 0;  // Rows that next() returned.
  double waited_percent = 0;   // Share of the time that next() waited. Near 0: the reading is ahead of the step.
  double busy_threads = 0;     // Mean number of threads that read and decoded.
  int64_t rows_ready = 0;      // Rows that are ready now.
};

// Batches of one data-parallel rank, in an order that does not depend on how many batches are prepared ahead.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Returns the next batch. OutOfRange at the end of data that does not repeat; InvalidArgument (names file and place)
  // for data that cannot be used.
  virtual absl::StatusOr<Batch> next() = 0;

  // Returns the cursor after the last batch that next() returned. In training.dataloader.order "global" it is the same
  // on every rank and valid for any number of them.
  virtual nlohmann::json state() const = 0;
  // Accepts the result of state(). Errors: InvalidArgument if the state belongs to another order, rank or other data.
  virtual absl::Status restore(const nlohmann::json& state) = 0;

  // Sets the number of the stream's first row, for data that changes by row. Call it before anything is read or
  // restored.
  virtual absl::Status begin_at(int64_t row) {
    (void)row;
    return absl::OkStatus();
  }

  // Returns the totals of several sources up to the last batch that next() returned; empty if there is only one.
  virtual std::vector<SourceProgress> progress() const { return {}; }

  // Returns the share of padding in the batches since the last call; no value if rows have no padding, or if there was
  // no batch.
  virtual std::optional<double> take_padding() { return std::nullopt; }

  // Returns the warnings since the last call, such as unusable rows, each once. In order "global" the same on every
  // rank, if warns_alike().
  virtual std::vector<std::string> take_warnings() { return {}; }
  // Returns whether all ranks read all rows, and so find the same unusable ones; else each finds those of its rows.
  virtual bool warns_alike() const { return true; }

  // For data whose ranks do not warn alike: returns how many rows of this rank were unusable in the pass of the last
  // row, since the pass began or since the last restore(). Call it between batches.
  virtual int64_t own_unusable() const { return 0; }
  // Takes the sum of own_unusable() over the data-parallel ranks, for state(). Returns InvalidArgument, on every rank
  // alike, if there are more than the data's limit allows.
  virtual absl::Status set_unusable(int64_t of_all_ranks) {
    (void)of_all_ranks;
    return absl::OkStatus();
  }
  // Returns the number of unusable rows of all ranks in the pass, as of the last set_unusable(); no value if the source
  // does not count them.
  virtual std::optional<int64_t> unusable() const { return std::nullopt; }
  // Returns no value if the source does not measure it.
  virtual std::optional<ReadingCost> take_reading_cost() { return std::nullopt; }
};

}  // namespace titan::data

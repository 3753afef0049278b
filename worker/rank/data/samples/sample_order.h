#pragma once

// The order of a dataset's samples, over all ranks and passes.
//
// Rows are numbered from 0 in one endless stream: row `number` is row number % samples() of pass number / samples().
// The sample of a row depends only on the number of samples, the shuffle seed, the pass and the row, so that any number
// of ranks sees the same rows, and each can find its own without the others'.
//
// A sample may turn out to be unusable only when it is decoded: a damaged or small image, a missing caption. Leaving
// its row out would shift all later rows, so that every rank would have to decode every image. Instead the row stays
// and gets a substitute: attempt k (1, 2, ...) of row r of a pass is the sample at place (r + k) mod samples() of a
// second permutation of the pass. Attempts continue until one is good. Consequences:
// - No other row changes, and the batch of a step is the same on any mesh.
// - A pass has every good sample at least once. One that is a substitute is seen again in that pass.
// - An unusable sample is counted in the row that it is the first attempt of, and in no other row in which it is a
//   substitute. So the counts of all ranks add up to the number of unusable samples, each once in a pass.
// - Each row with an unusable sample costs one read more, or several, if its substitutes are unusable too.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// A row of a pass.
struct SamplePlace {
  int64_t pass = 0;
  int64_t row = 0;  // Below the number of samples.

  auto operator<=>(const SamplePlace&) const = default;
};

// A place between rows, as checkpoints store it.
struct SampleCursor {
  SamplePlace next;         // The next row.
  int64_t bad_samples = 0;  // Skipped samples in this pass, before `next`, of all ranks.

  bool operator==(const SampleCursor&) const = default;
};

class SampleOrder {
 public:
  struct Options {
    int64_t samples = 1;       // SampleSet::samples(), 1 or more.
    std::string dataset = {};  // SampleSet::facts(): cursors of another dataset are refused.
    bool shuffle = false;      // By a permutation that differs in each pass; else in the order of the files.
    int64_t shuffle_seed = 0;
  };
  explicit SampleOrder(Options options) : options_(std::move(options)) {}

  int64_t samples() const { return options_.samples; }
  // Convert between the number of a row in the stream and its place.
  SamplePlace place(int64_t number) const { return {number / samples(), number % samples()}; }
  int64_t number(const SamplePlace& place) const { return place.pass * samples() + place.row; }

  // Returns the sample of a row. `attempt` 0: its own; 1 and more: its substitutes, while all earlier attempts are
  // unusable. Attempts 1 to samples() are all samples.
  int64_t sample(const SamplePlace& place, int64_t attempt = 0) const;
  // Returns how many attempts a row has before its reader gives up.
  int64_t attempts() const;

  // Return a cursor in the form that checkpoints store, with the order that it is valid in, and back. Errors:
  // InvalidArgument for a missing or negative number (names it), for a row beyond the pass, or if the dataset, the
  // shuffle or its seed is another one.
  nlohmann::json to_json(const SampleCursor& cursor) const;
  absl::StatusOr<SampleCursor> cursor_from_json(const nlohmann::json& state) const;

 private:
  std::string description() const;

  Options options_;
};

}  // namespace titan::data

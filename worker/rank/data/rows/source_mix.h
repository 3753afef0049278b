#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace titan::data {

// The sources' weights from a row of the stream on, as whole numbers.
struct WeightsFrom {
  int64_t row = 0;
  std::vector<int64_t> weights;
};

// Which source each row of a stream comes from. Of n rows dealt by the same weights every source has given its share of
// n, rounded up or down: a row is a unit of time on one processor, and the sources are tasks that get their share of it
// at every moment (Baruah et al., "Proportionate progress", 1996; on one processor it is enough that of the tasks whose
// next unit has begun the one whose unit ends first goes on). Whole numbers alone, so that all ranks deal alike.
class SourceMix {
 public:
  struct Place {
    int64_t row = 0;               // Rows that were dealt.
    std::vector<int64_t> weights;  // By which the newest were, 0 of a source that has ended;
    std::vector<int64_t> dealt;    // and how many by these weights, of each source.
    std::vector<bool> ended;

    bool operator==(const Place&) const = default;
  };

  // `schedule` in the order of its rows, the first of row 0, with as many weights each.
  explicit SourceMix(std::vector<WeightsFrom> schedule);

  // The source of the next row; nothing: all that have a weight have ended.
  std::optional<size_t> source();
  // That row was taken from there.
  void deal(size_t source);
  // There is none: the others take its share over.
  void end(size_t source) { place_.ended[source] = true; }

  const Place& place() const { return place_; }
  // Goes on from a place with as many sources, which may have been reached by other weights.
  void seek(Place place) { place_ = std::move(place); }

 private:
  void settle_weights();

  std::vector<WeightsFrom> schedule_;
  std::vector<int64_t> wanted_;
  Place place_;
};

}  // namespace titan::data

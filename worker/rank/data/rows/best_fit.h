#pragma once

#include <cstdint>
#include <vector>

namespace titan::data {

// Some tokens of a document of a window.
struct Piece {
  int64_t document = 0;  // Of the window.
  int64_t begin = 0, tokens = 0;

  bool operator==(const Piece&) const = default;
};

// Documents of these lengths in rows of `row_tokens`, none of them cut that fits a row. A longer one becomes whole rows
// and a rest; each piece begins with the last token of the one before, so that every token but a document's first is
// foretold once. A document of one token has nothing to foretell and is left out. Pieces are placed from the longest
// on, each in the row that it fills best (best fit decreasing); rows, and the pieces of each, are then in the order of
// the documents.
std::vector<std::vector<Piece>> best_fit(const std::vector<int64_t>& lengths, int64_t row_tokens);

}  // namespace titan::data

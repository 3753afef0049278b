#include "worker/rank/data/rows/best_fit.h"

#include <algorithm>
#include <set>
#include <utility>

namespace titan::data {
namespace {

std::vector<Piece> cut(const std::vector<int64_t>& lengths, int64_t row_tokens) {
  std::vector<Piece> pieces;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t begin = 0; begin + 1 < lengths[document]; begin += row_tokens - 1) {
      pieces.push_back({static_cast<int64_t>(document), begin, std::min(row_tokens, lengths[document] - begin)});
    }
  }
  return pieces;
}

bool comes_before(const Piece& one, const Piece& other) {
  return std::pair(one.document, one.begin) < std::pair(other.document, other.begin);
}

}  // namespace

std::vector<std::vector<Piece>> best_fit(const std::vector<int64_t>& lengths, int64_t row_tokens) {
  std::vector<Piece> pieces = cut(lengths, row_tokens);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& one, const Piece& other) { return one.tokens > other.tokens; });
  std::vector<std::vector<Piece>> rows;
  std::set<std::pair<int64_t, size_t>> room;  // Tokens that a row has room for, and the row.
  for (const Piece& piece : pieces) {
    const auto found = room.lower_bound({piece.tokens, 0});
    int64_t left = row_tokens;
    size_t row = rows.size();
    if (found == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *found;
      room.erase(found);
    }
    rows[row].push_back(piece);
    if (left - piece.tokens > 1) room.emplace(left - piece.tokens, row);
  }
  for (std::vector<Piece>& row : rows) std::sort(row.begin(), row.end(), comes_before);
  std::sort(rows.begin(), rows.end(),
            [](const auto& one, const auto& other) { return comes_before(one.front(), other.front()); });
  return rows;
}

}  // namespace titan::data

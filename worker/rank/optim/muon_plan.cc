#include "worker/rank/optim/muon_plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

namespace titan::optim {
namespace {

int64_t work_of(const MatrixParameter& parameter, int64_t matrices) {
  const auto [all, rows, columns] = parameter.shape;
  return matrices * rows * columns * std::min(rows, columns);
}

// Returns the ranks that hold all of matrix `index`.
std::vector<int> whole_holders(const MatrixParameter& parameter, int64_t index) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < parameter.held.size(); ++rank) {
    const MatrixBox& box = parameter.held[rank];
    const bool has_it = index >= box.offset[0] && index < box.offset[0] + box.size[0];
    if (has_it && box.size[1] == parameter.shape[1] && box.size[2] == parameter.shape[2])
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// A run that has no owner yet, and the ranks that may own it.
struct Open {
  MatrixRun run;
  int64_t work = 0;
  std::vector<int> candidates;
};

// Cuts consecutive matrices that the same ranks hold whole into runs, one or none for each of these ranks (for every
// rank if none holds them whole).
void cut(const MatrixParameter& parameter, size_t index, const std::vector<int>& everyone, std::vector<Open>& open) {
  for (int64_t first = 0, end = 0; first < parameter.shape[0]; first = end) {
    const std::vector<int> holders = whole_holders(parameter, first);
    for (end = first + 1; end < parameter.shape[0] && whole_holders(parameter, end) == holders;) ++end;
    const std::vector<int>& candidates = holders.empty() ? everyone : holders;
    const auto owners = static_cast<int64_t>(candidates.size());
    const int64_t most = (end - first + owners - 1) / owners;
    for (int64_t start = first; start < end; start += most) {
      const int64_t count = std::min(most, end - start);
      open.push_back({{index, start, count}, work_of(parameter, count), candidates});
    }
  }
}

MatrixBox intersect(const MatrixBox& box, const MatrixRun& run) {
  MatrixBox part = box;
  const int64_t end = std::min(box.offset[0] + box.size[0], run.first + run.count);
  part.offset[0] = std::max(box.offset[0], run.first);
  part.size[0] = std::max<int64_t>(end - part.offset[0], 0);
  return part;
}

// Returns the pieces of a run, in the order of their places, and the ranks that hold each.
std::map<MatrixBox, std::vector<int>> holders_of_pieces(const MatrixParameter& parameter, const MatrixRun& run) {
  std::map<MatrixBox, std::vector<int>> holders;
  for (size_t rank = 0; rank < parameter.held.size(); ++rank) {
    const MatrixBox piece = intersect(parameter.held[rank], run);
    if (piece.elements() > 0) holders[piece].push_back(static_cast<int>(rank));
  }
  return holders;
}

// Returns the rank with the nearest number, which is nearest on the mesh: replicas are its outermost axis except for
// the pipeline's.
int nearest(const std::vector<int>& ranks, int to) {
  return *std::min_element(ranks.begin(), ranks.end(),
                           [&](int a, int b) { return std::abs(a - to) < std::abs(b - to); });
}

// Returns the number of the round in which the owner of each run computes it.
std::vector<size_t> rounds_of(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                              int ranks, int64_t max_elements) {
  std::vector<size_t> rounds;
  std::vector<size_t> current(ranks, 0);
  std::vector<int64_t> elements(ranks, 0);
  for (const MatrixRun& run : runs) {
    const int64_t size = run.count * parameters[run.parameter].shape[1] * parameters[run.parameter].shape[2];
    if (elements[run.owner] > 0 && elements[run.owner] + size > max_elements) {
      ++current[run.owner];
      elements[run.owner] = 0;
    }
    elements[run.owner] += size;
    rounds.push_back(current[run.owner]);
  }
  return rounds;
}

int64_t elements_of_others(const std::vector<std::vector<MatrixPiece>>& pieces, int self) {
  int64_t sum = 0;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    if (static_cast<int>(rank) == self) continue;
    for (const MatrixPiece& piece : pieces[rank]) sum += piece.box.elements();
  }
  return sum;
}

}  // namespace

std::vector<MatrixRun> deal_matrices(const std::vector<MatrixParameter>& parameters, int ranks) {
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<Open> open;
  for (size_t i = 0; i < parameters.size(); ++i) cut(parameters[i], i, everyone, open);
  std::stable_sort(open.begin(), open.end(), [](const Open& a, const Open& b) { return a.work > b.work; });

  std::vector<int64_t> work(ranks, 0);
  const auto deal = [&](Open& one) {
    one.run.owner = *std::min_element(one.candidates.begin(), one.candidates.end(),
                                      [&](int a, int b) { return work[a] < work[b]; });
    work[one.run.owner] += one.work;
  };
  // Runs that only some ranks may own are dealt first, so that the others even out the work.
  const auto may_choose = [&](const Open& one) { return one.candidates.size() == everyone.size(); };
  for (const bool free : {false, true}) {
    for (Open& one : open) {
      if (may_choose(one) == free) deal(one);
    }
  }
  std::vector<MatrixRun> runs;
  for (const Open& one : open) runs.push_back(one.run);
  return runs;
}

std::vector<int64_t> work_of_ranks(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                   int ranks) {
  std::vector<int64_t> work(ranks, 0);
  for (const MatrixRun& run : runs) work[run.owner] += work_of(parameters[run.parameter], run.count);
  return work;
}

int64_t MatrixExchange::elements_out(int self) const { return elements_of_others(to, self); }
int64_t MatrixExchange::elements_in(int self) const { return elements_of_others(from, self); }

std::vector<MatrixRound> plan_rounds(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                     int ranks, int self, int64_t max_elements) {
  const std::vector<size_t> round_of = rounds_of(parameters, runs, ranks, max_elements);
  const size_t count = runs.empty() ? 0 : *std::max_element(round_of.begin(), round_of.end()) + 1;
  const std::vector<std::vector<MatrixPiece>> nothing(ranks);
  std::vector<MatrixRound> rounds(count, {{}, {nothing, nothing}, {nothing, nothing}});
  for (size_t i = 0; i < runs.size(); ++i) {
    const int owner = runs[i].owner;
    MatrixRound& round = rounds[round_of[i]];
    if (owner == self) round.runs.push_back(i);
    for (const auto& [box, holders] : holders_of_pieces(parameters[runs[i].parameter], runs[i])) {
      const int sender = nearest(holders, owner);
      round.gather.travels |= sender != owner;
      if (sender == self) round.gather.to[owner].push_back({i, box});
      if (owner == self) round.gather.from[sender].push_back({i, box});
      for (const int holder : holders) {
        round.back.travels |= holder != owner;
        if (owner == self) round.back.to[holder].push_back({i, box});
        if (holder == self) round.back.from[owner].push_back({i, box});
      }
    }
  }
  return rounds;
}

}  // namespace titan::optim

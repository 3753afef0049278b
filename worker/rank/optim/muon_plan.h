#pragma once

// Plans which rank orthogonalizes which matrix's update, and what is sent for it. Pure: every rank computes the same
// plan.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace titan::optim {

// A part of a parameter [matrices, rows, columns].
struct MatrixBox {
  std::array<int64_t, 3> offset{}, size{};

  int64_t elements() const { return size[0] * size[1] * size[2]; }
  auto operator<=>(const MatrixBox&) const = default;
};

// A parameter of whole matrices (one, or one per expert), and the part that each rank of a group holds. Two ranks hold
// the same part, or disjoint ones.
struct MatrixParameter {
  std::array<int64_t, 3> shape{};  // [matrices, rows, columns]
  std::vector<MatrixBox> held;     // By rank. Without elements where a rank holds nothing.
};

// Matrices [first, first + count) of one parameter, which one rank computes.
struct MatrixRun {
  size_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
  int owner = 0;
};

// Deals all matrices to the group's ranks. A matrix that some ranks hold whole goes to one of them, so that its
// gradient stays in place. All others go to the rank with the least work so far, the costliest first. Work is rows x
// columns x min(rows, columns), the cost of the products. Runs are returned in descending order of work.
std::vector<MatrixRun> deal_matrices(const std::vector<MatrixParameter>& parameters, int ranks);

// Returns the work of each rank, in multiply-adds of one product.
std::vector<int64_t> work_of_ranks(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                   int ranks);

// A part of a run that is sent, in its parameter's coordinates.
struct MatrixPiece {
  size_t run = 0;  // Index in the list of runs.
  MatrixBox box;
};

// Pieces that one rank sends to and receives from each rank of the group, itself included, in an order that both ends
// know.
struct MatrixExchange {
  std::vector<std::vector<MatrixPiece>> to, from;
  bool travels = false;  // Whether any rank of the group sends anything to another.

  int64_t elements_out(int self) const;  // To other ranks.
  int64_t elements_in(int self) const;   // From other ranks.
};

// Runs that are gathered, computed and returned together, from one rank's point of view.
struct MatrixRound {
  std::vector<size_t> runs;  // Runs that this rank owns.
  MatrixExchange gather;     // To the owners, from the nearest rank that holds a piece.
  MatrixExchange back;       // From the owners, to every rank that holds a piece.
};

// Divides every owner's runs into rounds of at most `max_elements` elements, or of one run that has more. All ranks
// have the same number of rounds.
std::vector<MatrixRound> plan_rounds(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                     int ranks, int self, int64_t max_elements);

}  // namespace titan::optim

#pragma once

// Which rank makes which matrix's update orthogonal, and what must travel for it. Pure: every rank finds the same plan.

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

// A parameter of whole matrices (of one, or of one for each expert), and what each rank of a group holds of it. Two
// ranks hold the same, or nothing in common.
struct MatrixParameter {
  std::array<int64_t, 3> shape{};  // [matrices, rows, columns]
  std::vector<MatrixBox> held;     // By rank; without elements where a rank holds nothing.
};

// Matrices [first, first + count) of one parameter, which one rank works on.
struct MatrixRun {
  size_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
  int owner = 0;
};

// Deals all matrices to the group's ranks. One that some ranks hold whole goes to one of these, so that its gradient
// stays where it is; all others go to whoever has least work yet, the costliest first. Work: rows x columns x
// min(rows, columns), that of the products. The costliest run comes first in the answer.
std::vector<MatrixRun> deal_matrices(const std::vector<MatrixParameter>& parameters, int ranks);

// Work of each rank, in multiply-adds of one product.
std::vector<int64_t> work_of_ranks(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                   int ranks);

// A part of a run that travels, in its parameter's coordinates.
struct MatrixPiece {
  size_t run = 0;  // Index in the list of runs.
  MatrixBox box;
};

// What one rank gives to and gets from each rank of the group, itself included, in an order that both ends know.
struct MatrixExchange {
  std::vector<std::vector<MatrixPiece>> to, from;
  bool travels = false;  // Something goes from one rank to another, anywhere in the group.

  int64_t elements_out(int self) const;  // To other ranks.
  int64_t elements_in(int self) const;
};

// Runs that are gathered, worked on and sent back together, as one rank sees it.
struct MatrixRound {
  std::vector<size_t> runs;  // That this rank owns.
  MatrixExchange gather;     // To the owners, from the nearest rank that holds a piece.
  MatrixExchange back;       // From the owners, to every rank that holds a piece.
};

// Cuts every owner's runs into rounds of at most so many elements, or of one run that has more. All ranks have equally
// many rounds.
std::vector<MatrixRound> plan_rounds(const std::vector<MatrixParameter>& parameters, const std::vector<MatrixRun>& runs,
                                     int ranks, int self, int64_t most_elements);

}  // namespace titan::optim

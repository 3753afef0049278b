#pragma once

#include <ATen/ATen.h>

namespace titan::optim {

// The matrices [n, rows, columns] with every singular value brought near 1 (0.7 to 1.2 after five steps), in their own
// type: U V^T of X = U S V^T, about. A quintic iteration X <- a X + (b A + c A A) X with A = X X^T and (a, b, c) =
// (3.4445, -4.7750, 2.0315), begun at X over its Frobenius norm, on whichever side has fewer rows (Jordan et al.,
// https://kellerjordan.github.io/posts/muon). Products are nn's (worker/rank/nn/matmul.h): bf16 on a CPU takes
// Titan's own. Zeros stay zeros. Never waits for the device.
at::Tensor newton_schulz(at::Tensor matrices, int steps);

}  // namespace titan::optim

#pragma once

#include <ATen/ATen.h>

namespace titan::optim {

// Returns the matrices [n, rows, columns], in their own type, with every singular value brought near 1 (0.7 to 1.2
// after five steps): approximately U V^T of X = U S V^T. It iterates X <- a X + (b A + c A A) X with A = X X^T and (a,
// b, c) = (3.4445, -4.7750, 2.0315), starting at X over its Frobenius norm, on the side with fewer rows (Jordan et al.,
// https://kellerjordan.github.io/posts/muon). Products are nn's (worker/rank/nn/matmul.h), so bf16 on a CPU uses
// Titan's. Zeros stay zeros. Never waits for the device.
at::Tensor newton_schulz(at::Tensor matrices, int steps);

}  // namespace titan::optim

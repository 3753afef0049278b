#pragma once

#include <memory>
#include <vector>

#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// Muon (Jordan et al., https://kellerjordan.github.io/posts/muon) for the slots of groups with that name, and Adam or
// AdamW for the others. Only Adam and AdamW use state_dtype and stochastic_rounding: momentum has the type of its
// value. For a matrix with gradient g, momentum m, learning rate l and weight decay w:
//   m <- mu m + (1 - mu) g,  u = mu m + (1 - mu) g (or m without nesterov),
//   W <- (1 - l w) W - l s newton_schulz(u),
// with s = sqrt(max(1, rows / columns)) ("original") or 0.2 sqrt(max(rows, columns)) ("match_rms_adamw", Liu et al.,
// arXiv 2502.16982), as in torch.optim.Muon. newton_schulz() is in bf16, or in float64 if the weights are.
//
// On a mesh, u is gathered to the matrix's owner (muon_plan.h) in the iteration's type, and the result returns in that
// type to every rank that holds a part. Both steps only copy, so a mesh does not change the bits. While the matrices of
// one round are computed, those of the next round arrive and those of the previous round return. The host never waits.
//
// Each step and rank issues, on the mesh's group and for each round, one all_to_all to the owners and one back, or none
// if nothing travels in the whole group. The bytes of such a collective are those of the numbers that leave this rank.
// The gradients hold u afterwards. Muon updates all of its slots at once: step_slots() throws.
std::unique_ptr<Optimizer> make_muon(std::vector<OptimizerOptions> groups, std::vector<Slot> slots, MatrixMesh mesh);

}  // namespace titan::optim

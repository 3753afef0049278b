#pragma once

#include <memory>
#include <vector>

#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// Muon (Jordan et al., https://kellerjordan.github.io/posts/muon) for the slots of groups with that name, Adam or AdamW
// for the others, which alone go by state_dtype and stochastic_rounding: momentum is of its value's type. Of a matrix
// with gradient g, momentum m, learning rate l and weight decay w:
//   m <- mu m + (1 - mu) g,  u = mu m + (1 - mu) g (or m without nesterov),
//   W <- (1 - l w) W - l s newton_schulz(u),
// with s = sqrt(max(1, rows / columns)) ("original") or 0.2 sqrt(max(rows, columns)) ("match_rms_adamw", Liu et al.,
// arXiv 2502.16982), as torch.optim.Muon has it. newton_schulz() is in bf16, in float64 where the weights are.
//
// Sharded: u is gathered to the matrix's owner (muon_plan.h) in the iteration's type, the result goes back in it to
// every rank that holds a part. Both steps only copy, so that a mesh changes no bit of them. While a round's matrices
// are worked on, the next one's are on their way here and the last one's on their way back. Nothing waits for the host.
//
// Collectives of one step and rank, on the mesh's group: for each round one all_to_all to the owners and one back, none
// where nothing travels in the whole group. Bytes: the numbers that leave this rank.
// Leaves u in the gradients. Slots of Muon's are updated all at once: step_slots() throws.
std::unique_ptr<Optimizer> make_muon(std::vector<Options> groups, std::vector<Slot> slots, MatrixMesh mesh);

}  // namespace titan::optim

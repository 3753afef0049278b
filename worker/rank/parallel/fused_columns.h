#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "worker/rank/comm/group.h"

namespace titan::parallel {

// Columns of several projections side by side (the heads of q, of k, of v, and a feed-forward), as the outputs of one
// fused matrix or the inputs of another. The ranks of a group have consecutive rows or columns of the matrix, like of
// any other, so that checkpoints, optimizers and adapters need to know nothing else. But the layers between need the
// same share of every projection on a rank. An all-to-all converts between the two. Per pass each rank sends and
// receives less than width / size elements for each token, which is little compared with the sums of [tokens, width]
// around a layer that is split over ranks.
class FusedColumns : public torch::CustomClassHolder {
 public:
  // `widths` are those of the projections. Throws c10::Error if the group's size does not divide each of them. The
  // group must outlive the object.
  FusedColumns(std::vector<int64_t> widths, const comm::Group& group);

  // to_shares() or to_pieces() without autograd.
  at::Tensor exchange(const at::Tensor& columns, bool to_shares) const;

 private:
  // Consecutive columns of the whole.
  struct Range {
    int64_t begin, count;
  };
  // Columns of the sender's and of the receiver's tensor.
  struct Run {
    int64_t from, to, count;
  };
  using Layout = std::vector<Range>;  // Columns of a rank's tensor, in order.

  static std::vector<Run> runs(const Layout& sender, const Layout& receiver);
  Layout piece_of(int rank) const;
  Layout shares_of(int rank) const;

  const std::vector<int64_t> widths_;
  const comm::Group& group_;
  int64_t columns_ = 0;  // Number of columns of one rank.
};

// Both map [..., width / size] to [..., width / size] and are each other's inverse, and so each other's backward pass.
// A piece is a rank's consecutive columns of the whole. Shares are its part of the first projection, of the second, and
// so on.
at::Tensor to_shares(const at::Tensor& piece, c10::intrusive_ptr<FusedColumns> fused);
at::Tensor to_pieces(const at::Tensor& shares, c10::intrusive_ptr<FusedColumns> fused);

}  // namespace titan::parallel

#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <utility>

#include "worker/rank/comm/group.h"

// Exchanges of rows that are waited for later than they begin, in both passes. Autograd runs the nodes made last first:
// what is computed between begin and finish is differentiated between the two as well. In a second pass that has the
// rows of the first one (worker/rank/nn/kept_results.h) nothing is sent forward.
namespace titan::parallel {

// Starts an exchange of `rows` and returns the tensor that holds its result once `pending` was waited for.
using Move = std::function<at::Tensor(const at::Tensor& rows, comm::Pending& pending)>;

// One exchange: how rows are sent, and how their gradients come back.
struct AsyncExchange : torch::CustomClassHolder {
  AsyncExchange(Move forth, Move back) : forth(std::move(forth)), back(std::move(back)) {}

  const Move forth, back;
  comm::Pending pending;
  at::Tensor returning;  // The gradients on their way back.
};

// The arriving rows, not to be read before finish(). Between the two calls may lie other exchanges, in the same order
// on all ranks.
at::Tensor begin_exchange(const at::Tensor& rows, const c10::intrusive_ptr<AsyncExchange>& exchange);
at::Tensor finish_exchange(const at::Tensor& arriving, const c10::intrusive_ptr<AsyncExchange>& exchange);

}  // namespace titan::parallel

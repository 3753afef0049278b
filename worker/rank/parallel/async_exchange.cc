#include "worker/rank/parallel/async_exchange.h"

#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/nn/kept_results.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void remember(AutogradContext* context, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
}

c10::intrusive_ptr<AsyncExchange> exchange_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<AsyncExchange>(context->saved_data["exchange"].toCapsule());
}

struct Begin : torch::autograd::Function<Begin> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<AsyncExchange>& exchange) {
    remember(context, exchange);
    return nn::kept_or({.kind = nn::OpCall::Kind::kExchange}, [&] { return exchange->forth(rows, exchange->pending); });
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const auto exchange = exchange_of(context);
    exchange->pending.wait();
    return {std::exchange(exchange->returning, at::Tensor()), {}};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<AsyncExchange>& exchange) {
    remember(context, exchange);
    exchange->pending.wait();
    return rows;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto exchange = exchange_of(context);
    exchange->returning = exchange->back(gradients[0], exchange->pending);
    return {std::move(gradients[0]), {}};  // Of the arrived rows' shape, as autograd checks; Begin has the real one.
  }
};

}  // namespace

at::Tensor begin_exchange(const at::Tensor& rows, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  return Begin::apply(rows, exchange);
}

at::Tensor finish_exchange(const at::Tensor& arriving, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  return Finish::apply(arriving, exchange);
}

}  // namespace titan::parallel

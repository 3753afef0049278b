#include "worker/rank/parallel/flight.h"

#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/nn/kept_results.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void remember(AutogradContext* context, const c10::intrusive_ptr<Flight>& flight) {
  context->saved_data["flight"] = c10::IValue::make_capsule(flight);
}

c10::intrusive_ptr<Flight> flight_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Flight>(context->saved_data["flight"].toCapsule());
}

struct Begin : torch::autograd::Function<Begin> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<Flight>& flight) {
    remember(context, flight);
    return nn::kept_or({.kind = nn::OpCall::Kind::kExchange}, [&] { return flight->forth(rows, flight->pending); });
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const auto flight = flight_of(context);
    flight->pending.wait();
    return {std::exchange(flight->returning, at::Tensor()), {}};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<Flight>& flight) {
    remember(context, flight);
    flight->pending.wait();
    return rows;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto flight = flight_of(context);
    flight->returning = flight->back(gradients[0], flight->pending);
    return {std::move(gradients[0]), {}};  // Of the arrived rows' shape, as autograd checks; Begin has the real one.
  }
};

}  // namespace

at::Tensor begin_flight(const at::Tensor& rows, const c10::intrusive_ptr<Flight>& flight) {
  return Begin::apply(rows, flight);
}

at::Tensor finish_flight(const at::Tensor& arriving, const c10::intrusive_ptr<Flight>& flight) {
  return Finish::apply(arriving, flight);
}

}  // namespace titan::parallel

#include "worker/rank/nn/feed_forward.h"

#include "worker/rank/nn/swiglu.h"

namespace titan::nn {

FeedForward::FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
                         Init depth_init)
    : w1(declare, fqn + ".w1.weight", dim, hidden, w1_init),
      w2(declare, fqn + ".w2.weight", hidden, dim, depth_init),
      w3(declare, fqn + ".w3.weight", dim, hidden, depth_init) {}

at::Tensor FeedForward::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  const std::vector<at::Tensor> wide = project(x, {&w1, &w3});
  return through(seams.output, w2.forward(swiglu(wide[0], wide[1])));
}

}  // namespace titan::nn

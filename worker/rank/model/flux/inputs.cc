#include "worker/rank/model/flux/inputs.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>
#include <vector>

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/layers.h"

namespace titan::model::flux {

FluxInputs flux_inputs(const std::map<std::string, at::Tensor>& tensors) {
  const auto find = [&](const char* name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  FluxInputs inputs{.txt = find(kTxt),
                    .y = find(kPooled),
                    .timesteps = find(kTimesteps),
                    .guidance = find(kGuidance),
                    .txt_ids = find(kTxtIds),
                    .img_ids = find(kImgIds),
                    .rotation = find(kRotation)};
  for (const auto& [name, tensor] : {std::pair(kTxtIds, inputs.txt_ids), {kImgIds, inputs.img_ids}}) {
    TORCH_CHECK(tensor.defined(), "flux: the microbatch has no tensor \"", name, "\"");
    TORCH_CHECK(tensor.dim() == 3 && tensor.size(2) == 3, "flux: \"", name, "\" is ", tensor.sizes(),
                ", it must be [rows or 1, tokens, 3]");
  }
  return inputs;
}

namespace {

// Returns the angles [B or 1, T, channels / 2] of positions [B or 1, T] on one axis.
at::Tensor angles_on_axis(const at::Tensor& positions, int64_t channels, double theta) {
  const at::Tensor exponent = at::arange(0, channels, 2, positions.options()) / channels;
  return positions.unsqueeze(-1) * at::pow(theta, exponent).reciprocal();
}

}  // namespace

FluxInputs flux_inputs(const nn::MicrobatchContext& context) { return flux_inputs(context.tensors); }

at::Tensor rotation_table(const models::FluxSpec& spec, const at::Tensor& txt_ids, const at::Tensor& img_ids,
                          at::ScalarType compute) {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::max(txt_ids.size(0), img_ids.size(0));
  const at::Tensor ids = at::cat({txt_ids.expand({rows, -1, -1}), img_ids.expand({rows, -1, -1})}, 1).to(at::kDouble);
  std::vector<at::Tensor> angles;
  for (size_t axis = 0; axis < spec.axes_dim.size(); ++axis) {
    angles.push_back(angles_on_axis(ids.select(2, static_cast<int64_t>(axis)), spec.axes_dim[axis], spec.rope_theta));
  }
  const at::Tensor angle = at::cat(angles, 2);
  const bool wide = nn::accumulate_type(compute) == at::kDouble;
  return at::polar(at::ones_like(angle), angle).to(wide ? at::kComplexDouble : at::kComplexFloat);
}

at::Tensor timestep_embedding(const at::Tensor& t, int64_t channels) {
  const int64_t half = channels / 2;
  const at::TensorOptions fp32 = t.options().dtype(at::kFloat);
  const at::Tensor frequencies = at::exp(at::arange(half, fp32) * -std::log(10000.0) / half);
  const at::Tensor angles = (t.to(at::kFloat) * 1000.0).unsqueeze(1) * frequencies;
  return at::cat({angles.cos(), angles.sin()}, 1);
}

at::Tensor context_share(const at::Tensor& whole, const comm::Group& group) {
  if (group.size() == 1 || !whole.defined()) return whole;
  TORCH_CHECK(whole.size(1) % group.size() == 0, "flux: ", group.size(), " context ranks do not divide ", whole.size(1),
              " tokens");
  const int64_t count = whole.size(1) / group.size();
  return whole.narrow(1, group.rank() * count, count);
}

FluxInputs context_share(const FluxInputs& whole, const comm::Group& group) {
  FluxInputs share = whole;
  for (at::Tensor* tensor : {&share.txt, &share.txt_ids, &share.img_ids}) *tensor = context_share(*tensor, group);
  if (whole.rotation.defined()) {
    const int64_t txt = whole.txt_tokens();
    const auto part = [&](int64_t first, int64_t count) {
      return context_share(whole.rotation.narrow(1, first, count), group);
    };
    share.rotation = at::cat({part(0, txt), part(txt, whole.img_tokens())}, 1);
  }
  return share;
}

}  // namespace titan::model::flux

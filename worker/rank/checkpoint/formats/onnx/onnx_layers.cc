#include "worker/rank/checkpoint/formats/onnx/onnx_layers.h"

#include <utility>

namespace titan::checkpoint::onnx {

std::string Builder::cast(const std::string& x, Type to) const {
  return graph.add({.op = "Cast", .inputs = {x}, .attributes = {{"to", static_cast<int64_t>(to)}}});
}

std::string Builder::transpose(const std::string& x, const std::vector<int64_t>& order) const {
  return graph.add({.op = "Transpose", .inputs = {x}, .attributes = {{"perm", order}}});
}

std::string Builder::concat(const std::vector<std::string>& parts, int64_t axis,
                            std::vector<std::string> outputs) const {
  return graph.add({.op = "Concat", .inputs = parts, .attributes = {{"axis", axis}}, .outputs = std::move(outputs)});
}

std::vector<std::string> Builder::split(const std::string& x, const std::vector<int64_t>& sizes, int64_t axis) const {
  return graph.add_with_outputs({.op = "Split", .inputs = {x, graph.integers(sizes)}, .attributes = {{"axis", axis}}},
                                sizes.size());
}

std::string Builder::slice(const std::string& x, int64_t begin, int64_t end, int64_t axis, int64_t step) const {
  return op("Slice",
            {x, graph.integers({begin}), graph.integers({end}), graph.integers({axis}), graph.integers({step})});
}

std::string Builder::sum(const std::string& x, int64_t axis, bool keep) const {
  return graph.add({.op = "ReduceSum",
                    .inputs = {x, graph.integers({axis})},
                    .attributes = {{"keepdims", static_cast<int64_t>(keep)}}});
}

std::string Builder::linear(const std::string& x, const std::string& fqn) const {
  const std::string product = op("MatMul", {x, weights.add(fqn + ".weight", target.type, Form::kTransposed)});
  const std::string bias = fqn + ".bias";
  return weights.has(bias) ? op("Add", {product, weights.add(bias, target.type)}) : product;
}

std::string Builder::norm(const std::string& x, const std::string& weight) const {
  const bool standard = target.opset >= 23;
  return graph.add({.op = standard ? "RMSNormalization" : "SimplifiedLayerNormalization",
                    .inputs = {x, weight},
                    .attributes = {{"axis", int64_t{-1}},
                                   {"epsilon", static_cast<float>(spec.norm_eps)},
                                   {"stash_type", static_cast<int64_t>(Type::kFloat)}}});
}

std::string Builder::gated(const std::string& gate, const std::string& up) const {
  return op("Mul", {op("Mul", {gate, op("Sigmoid", {gate})}), up});
}

std::string Builder::feed_forward(const std::string& x, const std::string& fqn) const {
  return linear(gated(linear(x, fqn + ".w1"), linear(x, fqn + ".w3")), fqn + ".w2");
}

}  // namespace titan::checkpoint::onnx

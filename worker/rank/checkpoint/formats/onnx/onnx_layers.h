#pragma once

// The layers that all blocks of a decoder consist of, as nodes of a graph. Values are named tensors of the graph: B
// rows of S new tokens, after which a row has T tokens in all.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_data.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_graph.h"

namespace titan::checkpoint::onnx {

// The runtime for which a graph is made.
struct Target {
  // The type of weights and activations. Routers, written-out softmaxes and logits are in float32.
  Type type = Type::kFloat;
  bool microsoft = false;  // ONNX Runtime's own operators for attention and experts.
  int64_t opset = 23;      // Below 23, norms and rotations are ONNX Runtime's own operators, too.
};

// Appends layers to a graph. Parameters are named as in a step: "layers.0.attention.wq" has a weight and maybe a bias.
class Builder {
 public:
  Builder(const models::ModelSpec& spec, const Target& target, Graph& graph, Weights& weights)
      : spec(spec), target(target), graph(graph), weights(weights) {}

  const models::ModelSpec& spec;
  const Target target;
  Graph& graph;
  Weights& weights;

  // Appends an operator without attributes.
  std::string op(const std::string& name, std::vector<std::string> inputs) const {
    return graph.add({.op = name, .inputs = std::move(inputs)});
  }
  // Converts a value that is of the target's type, or to that type. Nothing happens if the types are equal.
  std::string from_target(const std::string& x, Type to) const { return to == target.type ? x : cast(x, to); }
  std::string to_target(const std::string& x, Type from) const {
    return from == target.type ? x : cast(x, target.type);
  }
  std::string cast(const std::string& x, Type to) const;
  // A dim of 0 is that of x at the same place; one may be -1.
  std::string reshape(const std::string& x, const std::vector<int64_t>& dims) const {
    return op("Reshape", {x, graph.integers(dims)});
  }
  std::string unsqueeze(const std::string& x, const std::vector<int64_t>& axes) const {
    return op("Unsqueeze", {x, graph.integers(axes)});
  }
  std::string transpose(const std::string& x, const std::vector<int64_t>& order) const;
  std::string concat(const std::vector<std::string>& parts, int64_t axis, std::vector<std::string> outputs = {}) const;
  std::vector<std::string> split(const std::string& x, const std::vector<int64_t>& sizes, int64_t axis) const;
  // Indices [begin, end) of one axis, every `step`-th.
  std::string slice(const std::string& x, int64_t begin, int64_t end, int64_t axis, int64_t step = 1) const;
  std::string sum(const std::string& x, int64_t axis, bool keep) const;  // Along one axis.

  std::string linear(const std::string& x, const std::string& fqn) const;   // [..., in] -> [..., out]
  std::string norm(const std::string& x, const std::string& weight) const;  // RMSNorm of the last dim.
  std::string gated(const std::string& gate, const std::string& up) const;  // silu(gate) * up
  std::string feed_forward(const std::string& x, const std::string& fqn) const;
};

}  // namespace titan::checkpoint::onnx

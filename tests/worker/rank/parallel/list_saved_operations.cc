// list_saved_operations CASES.json: lists what selective checkpointing per operation saves in every layer, for
// selective_oracle_test.py. A case: {"family", "flavor", "spec": changes, "mesh": {"dp_shard", "tp", "ep"}, "listed",
// "rows", "tokens"}. Prints for each a list of its layers' calls [kind, [in, out] of products, saved] on rank 0.
#include <fstream>
#include <iostream>

#include "common/plan/models/registry.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/spec_changes.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/model/model.h"
#include "worker/rank/parallel/activation_checkpoint.h"

namespace titan {
namespace {

using nlohmann::json;
using nn::OpCall;

const char* name(OpCall::Kind kind) {
  switch (kind) {
    case OpCall::Kind::kProduct:
      return "product";
    case OpCall::Kind::kGroupedProduct:
      return "grouped";
    case OpCall::Kind::kAttention:
      return "attention";
    case OpCall::Kind::kScatter:
      return "scatter";
    case OpCall::Kind::kExchange:
      return "exchange";
    case OpCall::Kind::kGreatest:
      return "greatest";
  }
  return "?";
}

json record(const OpCall& call, bool saved) {
  json matrix = json::array();
  if (call.kind == OpCall::Kind::kProduct) matrix = {call.weight->global_shape[1], call.weight->global_shape[0]};
  return {name(call.kind), matrix, saved};
}

// Returns the calls of one layer's first pass, with meaningless values.
json calls_of(nn::Block& block, const std::vector<std::string>& listed, const at::Tensor& input, int64_t tokens) {
  for (nn::Parameter& parameter : block.parameters()) parameter.weight = at::randn(parameter.shape) / 16;
  block.init_buffers(at::kCPU, at::kFloat);
  nn::MicrobatchContext context;
  context.tokens = at::zeros({input.size(0), tokens}, at::kLong);
  json calls = json::array();
  const auto policy = parallel::selective_op_policy(block, listed);
  const nn::SaveRule rule = policy->begin();
  nn::SavedActivations activations;
  const at::NoGradGuard no_grad;
  const nn::SavedActivations::Scope scope(activations, [&](const OpCall& call) {
    const bool save = rule(call);
    calls.push_back(record(call, save));
    return save;
  });
  block.forward(input, context);
  return calls;
}

json layers_of(const json& one) {
  models::ModelSpec spec = models::find(one["family"], one["flavor"]).value();
  testing::change_spec(spec, one["spec"]);
  const mesh::Degrees degrees{.dp_shard = one["mesh"]["dp_shard"],
                              .tp = one["mesh"].value("tp", 1),
                              .ep = one["mesh"].value("ep", 1),
                              .etp = one["mesh"].value("tp", 1)};
  const int64_t rows = one["rows"], tokens = one["tokens"];
  json layers = json::array();
  testing::run_ranks(degrees, degrees.dp_shard * degrees.tp, testing::every_axis(), [&](testing::ThreadRank& self) {
    model::Model model = model::build(spec, {.seq_len = tokens}).value();
    const absl::Status split = model.parallelize(model, {.mesh = self.mesh.get()});
    if (!split.ok()) throw std::runtime_error(split.ToString());
    const at::Tensor input = at::randn({rows, tokens / degrees.tp, spec.dim});
    for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
      json calls = calls_of(*model.blocks[layer + 1], one["listed"], input, tokens);
      if (self.rank == 0) layers.push_back(std::move(calls));
    }
  });
  return layers;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "list_saved_operations CASES.json\n";
    return 2;
  }
  nlohmann::json result = nlohmann::json::array();
  for (const auto& one : nlohmann::json::parse(std::ifstream(argv[1]))) result.push_back(titan::layers_of(one));
  std::cout << result.dump() << "\n";
  return 0;
}

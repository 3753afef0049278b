// A model from outside of Titan's tree: its layers run attention and feed-forward in parallel on one norm, as GPT-J
// does. The example of docs/howto/add-a-model.md; plugin_test.py compiles and trains it.
#include "absl/strings/str_cat.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/decoder/options.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/plugin.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/tensor.h"

namespace {

using namespace titan;

class Layer : public nn::Block {
 public:
  Layer(const models::ModelSpec& spec, int64_t index, std::shared_ptr<nn::Rope> rope)
      : Block(absl::StrCat("layers.", index)),
        attention(declare(), name() + ".attention", options_of(spec, index), rope),
        feed_forward(declare(), name() + ".feed_forward", spec.dim, spec.ffn_hidden, model::truncated(0.02),
                     model::depth_init(spec, index)),
        norm(declare(), name() + ".norm.weight", spec.dim, spec.norm_eps),
        rope_(std::move(rope)) {}

  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override {
    const at::Tensor x = norm.forward(input);
    return input + attention.forward(x, context) + feed_forward.forward(x);
  }
  void init_buffers(at::Device device, at::ScalarType dtype) override { rope_->fill(device, dtype); }

  nn::GroupedAttention attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm norm;

 private:
  static nn::AttentionOptions options_of(const models::ModelSpec& spec, int64_t index) {
    return model::attention_options(
        spec, index, {.attention_in = model::truncated(0.02), .attention_out = model::depth_init(spec, index)});
  }
  std::shared_ptr<nn::Rope> rope_;
};

// The only function that knows how the layers are split.
absl::Status parallelize(model::Model& model, const model::ParallelOptions& options) {
  const comm::Group& tensor_group = options.mesh->group(mesh::Axis::kTensor);
  const comm::Group& context_group = options.mesh->group(mesh::Axis::kContext);
  const parallel::TensorParallel tensor{.group = &tensor_group, .sequence = options.sequence_parallel};
  for (const auto& block : model.blocks) {
    if (auto* embedding = dynamic_cast<model::TokenEmbedding*>(block.get())) {
      parallel::split_embedding(embedding->tok_embeddings, tensor);
    } else if (auto* layer = dynamic_cast<Layer*>(block.get())) {
      parallel::split_norm(layer->norm, tensor);
      parallel::split_attention(layer->attention, tensor);
      parallel::split_feed_forward(layer->feed_forward, tensor);
      if (context_group.size() > 1) {
        layer->attention.core = parallel::context_parallel_attention({.group = &context_group});
      }
    } else if (auto* head = dynamic_cast<model::Head*>(block.get())) {
      parallel::split_norm(head->norm, tensor);
      parallel::split_head(head->output, tensor, options.loss_parallel);
    }
  }
  if (options.loss_parallel && tensor_group.size() > 1) {
    model.loss = parallel::vocabulary_parallel_loss(tensor_group);
  }
  return absl::OkStatus();
}

absl::StatusOr<model::Model> build(const models::ModelSpec& spec, const model::BuildOptions& options) {
  const model::DecoderInits inits = model::common_inits(spec);
  const auto rope = std::make_shared<nn::Rope>(model::rope_options(spec, options.seq_len));
  model::Model model;
  model.blocks.push_back(std::make_unique<model::TokenEmbedding>(spec, inits.embedding));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    model.blocks.push_back(std::make_unique<Layer>(spec, layer, rope));
  }
  model.blocks.push_back(std::make_unique<model::Head>(spec, inits.head));
  model.parallelize = parallelize;
  return model;
}

models::ModelSpec tiny() {
  models::ModelSpec spec;
  spec.flavor = "tiny";
  spec.dim = 64;
  spec.n_layers = 2;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 16;
  spec.vocab_size = 2048;
  spec.ffn_hidden = 96;
  spec.max_seq_len = 2048;
  return spec;
}

// Names of its weights in Hugging Face folders; without this function such folders are neither read nor written.
model::HfNames names(const models::ModelSpec&) {
  model::HfNames names{{"tok_embeddings.weight", "transformer.wte.weight"},
                       {"layers.{}.norm.weight", "transformer.h.{}.ln_1.weight"},
                       {"norm.weight", "transformer.ln_f.weight"},
                       {"output.weight", "lm_head.weight"}};
  model::add_attention_projections(names, "transformer.", /*bias=*/false);
  model::add_swiglu(names, "layers.{}.feed_forward", "transformer.h.{}.mlp");
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t /*seq_len*/) {
  return model::common_config(spec, "ParallelBlockForCausalLM", "parallel_block");
}

std::vector<model::PluginFamily> families() {
  return {{.name = "parallel_block",
           .flavors = {tiny()},
           .build = build,
           .hf = model::HfFamily{"parallel_block", names, config}}};
}

}  // namespace

TITAN_MODEL_PLUGIN(families)

#include "worker/rank/model/flux/blocks.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace titan::model::flux {
namespace {

// The parts of the activations between blocks, as views.
struct Carry {
  Carry(const at::Tensor& activations, const FluxInputs& inputs) {
    const int64_t txt_tokens = inputs.txt_tokens(), img_tokens = inputs.img_tokens();
    TORCH_CHECK(activations.dim() == 3 && activations.size(1) == 1 + txt_tokens + img_tokens, "flux: activations of ",
                activations.sizes(), " are not one vector, ", txt_tokens, " tokens of text and ", img_tokens,
                " of the image");
    vec_row = activations.narrow(1, 0, 1);
    tokens = activations.narrow(1, 1, txt_tokens + img_tokens);
    txt = tokens.narrow(1, 0, txt_tokens);
    img = tokens.narrow(1, txt_tokens, img_tokens);
  }
  // Returns silu of the vector, [B, dim], from which all modulations are computed.
  at::Tensor activated() const { return at::silu(vec_row.squeeze(1)); }

  at::Tensor vec_row;   // [B, 1, dim]
  at::Tensor tokens;    // [B, Tt + Ti, dim]
  at::Tensor txt, img;  // [B, Tt, dim], [B, Ti, dim]
};

at::Tensor tanh_gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

const at::Tensor& needed(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.defined(), "flux: the microbatch has no tensor \"", name, "\"");
  return tensor;
}

}  // namespace

at::Tensor FluxBlock::rotation(const FluxInputs& inputs, at::ScalarType type) const {
  return inputs.rotation.defined() ? inputs.rotation : rotation_table(spec_, inputs.txt_ids, inputs.img_ids, type);
}

Embed::Embed(const models::FluxSpec& spec)
    : FluxBlock("embed", spec),
      img_in(xavier_linear(declare(), "img_in", spec.in_channels, spec.dim)),
      txt_in(xavier_linear(declare(), "txt_in", spec.txt_width, spec.dim)),
      time_in(declare(), "time_in", spec.time_channels, spec.dim),
      vector_in(declare(), "vector_in", spec.vec_width, spec.dim) {
  if (spec.guidance_embed) guidance_in.emplace(declare(), "guidance_in", spec.time_channels, spec.dim);
}

at::Tensor Embed::run(const at::Tensor& latents, const FluxInputs& inputs) {
  const at::ScalarType type = img_in.weight().weight.scalar_type();
  const auto embedding = [&](const at::Tensor& times) {
    return timestep_embedding(times, spec().time_channels).to(type);
  };
  at::Tensor vec = time_in.forward(embedding(needed(inputs.timesteps, kTimesteps)));
  if (guidance_in) vec = vec + guidance_in->forward(embedding(needed(inputs.guidance, kGuidance)));
  vec = vec + vector_in.forward(needed(inputs.y, kPooled).to(type));
  return at::cat(
      {vec.unsqueeze(1), txt_in.forward(needed(inputs.txt, kTxt).to(type)), img_in.forward(latents.to(type))}, 1);
}

Stream::Stream(const nn::Declare& declare, const std::string& name, const models::FluxSpec& spec)
    : mod(zero_linear(declare, name + "_mod.lin", spec.dim, 6 * spec.dim)),
      qkv(xavier_linear(declare, name + "_attn.qkv", spec.dim, 3 * spec.dim)),
      norm(declare, name + "_attn.norm", spec.head_dim()),
      proj(xavier_linear(declare, name + "_attn.proj", spec.dim, spec.dim)),
      mlp_in(xavier_linear(declare, name + "_mlp.0", spec.dim, spec.mlp_hidden())),
      mlp_out(xavier_linear(declare, name + "_mlp.2", spec.mlp_hidden(), spec.dim)) {}

Heads Stream::heads(const at::Tensor& x, const Modulation& modulation, int64_t head_dim) const {
  return split_heads(nn::through(to_shares, qkv.forward(modulated_norm(x, modulation))), head_dim, norm);
}

at::Tensor Stream::finish(const at::Tensor& x, const at::Tensor& mixed,
                          const std::vector<Modulation>& modulations) const {
  const at::Tensor sum = add_gated(x, modulations[0], proj.forward(mixed));
  return add_gated(sum, modulations[1],
                   mlp_out.forward(tanh_gelu(mlp_in.forward(modulated_norm(sum, modulations[1])))));
}

DoubleBlock::DoubleBlock(const models::FluxSpec& spec, int64_t index)
    : FluxBlock(absl::StrCat("double_blocks.", index), spec),
      img(declare(), name() + ".img", spec),
      txt(declare(), name() + ".txt", spec) {}

at::Tensor DoubleBlock::run(const at::Tensor& input, const FluxInputs& inputs) {
  const Carry carry(input, inputs);
  const at::Tensor activated = carry.activated();
  const std::vector<Modulation> of_img = modulations(img.mod, activated, 6),
                                of_txt = modulations(txt.mod, activated, 6);
  const Heads img_heads = img.heads(carry.img, of_img[0], spec().head_dim());
  const Heads txt_heads = txt.heads(carry.txt, of_txt[0], spec().head_dim());
  const Heads heads{.q = at::cat({txt_heads.q, img_heads.q}, 1),
                    .k = at::cat({txt_heads.k, img_heads.k}, 1),
                    .v = at::cat({txt_heads.v, img_heads.v}, 1)};
  const at::Tensor mixed = rotate_and_attend(heads, rotation(inputs, input.scalar_type()), core);
  const int64_t txt_tokens = inputs.txt_tokens();
  return at::cat({carry.vec_row, txt.finish(carry.txt, mixed.narrow(1, 0, txt_tokens), of_txt),
                  img.finish(carry.img, mixed.narrow(1, txt_tokens, inputs.img_tokens()), of_img)},
                 1);
}

SingleBlock::SingleBlock(const models::FluxSpec& spec, int64_t index)
    : FluxBlock(absl::StrCat("single_blocks.", index), spec),
      modulation(zero_linear(declare(), name() + ".modulation.lin", spec.dim, 3 * spec.dim)),
      linear1(xavier_linear(declare(), name() + ".linear1", spec.dim, 3 * spec.dim + spec.mlp_hidden())),
      norm(declare(), name() + ".norm", spec.head_dim()),
      linear2(xavier_linear(declare(), name() + ".linear2", spec.dim + spec.mlp_hidden(), spec.dim)) {}

at::Tensor SingleBlock::run(const at::Tensor& input, const FluxInputs& inputs) {
  const Carry carry(input, inputs);
  const std::vector<Modulation> of_block = modulations(modulation, carry.activated(), 3);
  const at::Tensor fused = nn::through(to_shares, linear1.forward(modulated_norm(carry.tokens, of_block[0])));
  // A mesh may have only some of the heads, and as large a part of the feed-forward.
  const int64_t qkv = fused.size(2) * 3 / (3 + spec().mlp_ratio);
  const Heads heads = split_heads(fused.narrow(2, 0, qkv), spec().head_dim(), norm);
  const at::Tensor mixed = rotate_and_attend(heads, rotation(inputs, input.scalar_type()), core);
  const at::Tensor hidden = tanh_gelu(fused.narrow(2, qkv, fused.size(2) - qkv));
  const at::Tensor result = linear2.forward(nn::through(to_pieces, at::cat({mixed, hidden}, 2)));
  return at::cat({carry.vec_row, add_gated(carry.tokens, of_block[0], result)}, 1);
}

FinalLayer::FinalLayer(const models::FluxSpec& spec)
    : FluxBlock("final_layer", spec),
      modulation(zero_linear(declare(), "final_layer.adaLN_modulation.1", spec.dim, 2 * spec.dim)),
      linear(zero_linear(declare(), "final_layer.linear", spec.dim, spec.in_channels)) {}

at::Tensor FinalLayer::run(const at::Tensor& input, const FluxInputs& inputs) {
  const Carry carry(input, inputs);
  return linear.forward(modulated_norm(carry.img, modulations(modulation, carry.activated(), 2)[0]));
}

}  // namespace titan::model::flux

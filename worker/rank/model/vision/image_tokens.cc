#include "worker/rank/model/vision/image_tokens.h"

#include <c10/util/Exception.h>

#include "worker/rank/comm/functional.h"
#include "worker/rank/model/vision/images.h"

namespace titan::model {

at::Tensor image_rows(const at::Tensor& tokens, int64_t image_token, const at::Tensor& rows) {
  const at::Tensor is_image = tokens.eq(image_token);
  const int64_t count = is_image.sum().item<int64_t>();
  TORCH_CHECK(count == rows.size(0), "images: the batch has ", count, " image tokens (", image_token, "), but ",
              rows.size(0), " patches");
  return at::full_like(tokens, -1).masked_scatter_(is_image, rows);
}

at::Tensor place_images(const at::Tensor& embedded, const at::Tensor& rows, const at::Tensor& visual) {
  TORCH_CHECK(embedded.dim() == 3 && embedded.sizes().slice(0, 2) == rows.sizes() && visual.dim() == 2 &&
                  visual.size(0) > 0 && visual.size(1) > 0 && visual.size(1) % embedded.size(2) == 0,
              "images: cannot put rows of ", visual.sizes(), " in the places ", rows.sizes(),
              " of tokens, embedded as ", embedded.sizes());
  const int64_t more = visual.size(1) - embedded.size(2);
  const at::Tensor wide = more > 0 ? at::constant_pad_nd(embedded, {0, more}) : embedded;
  const at::Tensor chosen = visual.index_select(0, rows.flatten().clamp_min(0)).view(wide.sizes());
  return at::where(rows.ge(0).unsqueeze(-1), chosen, wide);
}

namespace {

void split_over_tensor_ranks(MultimodalEmbedding& embedding, const ParallelOptions& options) {
  const comm::Group& tensor = options.mesh->group(mesh::Axis::kTensor);
  if (tensor.size() == 1 || !options.sequence_parallel) return;
  embedding.share_images = [&tensor](const at::Tensor& visual) { return comm::fan_out(visual, tensor); };
  embedding.own_tokens = [&tensor](const at::Tensor& rows) {
    const int64_t tokens = rows.size(1) / tensor.size();
    return rows.narrow(1, tensor.rank() * tokens, tokens);
  };
}

}  // namespace

void split_embedding(MultimodalEmbedding& embedding, const ParallelOptions& options) {
  split_over_tensor_ranks(embedding, options);
  const comm::Group& context = options.mesh->group(mesh::Axis::kContext);
  embedding.share_images = [&context, share = embedding.share_images](const at::Tensor& visual) {
    return nn::through(share, comm::gather(visual, 0, context));
  };
}

at::Tensor MultimodalEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const int64_t missing = images_of(context).padded_patches - input.size(1);
  at::Tensor visual = input.squeeze(0);
  if (missing > 0) visual = at::constant_pad_nd(visual, {0, 0, 0, missing});
  const at::Tensor rows = nn::through(own_tokens, context.tensor(kImageRows));
  return place_images(embed(context.tokens), rows, nn::through(share_images, visual));
}

}  // namespace titan::model

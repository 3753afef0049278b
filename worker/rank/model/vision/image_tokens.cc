#include "worker/rank/model/vision/image_tokens.h"

#include <c10/util/Exception.h>

#include <utility>

namespace titan::model {
namespace {

void check_counts(const at::Tensor& is_image, int64_t image_token, int64_t patches) {
  if (is_image.is_meta()) return;
  if (!is_image.is_cpu()) {
    at::_assert_async(is_image.sum().eq(patches), "the batch has another number of image tokens than of patches");
    return;
  }
  const int64_t count = is_image.sum().item<int64_t>();
  TORCH_CHECK(count == patches, "images: the batch has ", count, " image tokens (", image_token, "), but ", patches,
              " patches");
}

}  // namespace

at::Tensor scatter_images(const at::Tensor& embedded, const at::Tensor& tokens, int64_t image_token,
                          const at::Tensor& visual) {
  TORCH_CHECK(embedded.dim() == 3 && embedded.sizes().slice(0, 2) == tokens.sizes() && visual.dim() == 2 &&
                  visual.size(1) == embedded.size(2),
              "images: cannot put rows of ", visual.sizes(), " in place of tokens of ", tokens.sizes(),
              ", embedded as ", embedded.sizes());
  const at::Tensor is_image = tokens.eq(image_token);
  check_counts(is_image, image_token, visual.size(0));
  if (visual.size(0) == 0) return embedded + visual.sum();  // Keeps the tower in the graph, with a gradient of zero.
  // Number of image tokens before each token: the row of `visual` that an image token takes.
  const at::Tensor row = is_image.flatten().cumsum(0).sub_(1).clamp_(0, visual.size(0) - 1);
  return at::where(is_image.unsqueeze(-1), visual.index_select(0, row).view(embedded.sizes()), embedded);
}

MultimodalEmbedding::MultimodalEmbedding(const models::ModelSpec& spec, nn::Init init, int64_t image_token,
                                         ImagesOf images_of)
    : TokenEmbedding(spec, init), image_token_(image_token), images_of_(std::move(images_of)) {}

at::Tensor MultimodalEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const at::Tensor used = input.squeeze(0).narrow(0, 0, input.size(1) - images_of_(context).unused_patches);
  return scatter_images(tok_embeddings.forward(context.tokens), context.tokens, image_token_, used);
}

}  // namespace titan::model

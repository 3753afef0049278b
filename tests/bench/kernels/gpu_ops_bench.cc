// Compares LibTorch's own operations with Titan's layers for everything that a layer computes besides its row
// operations: attention with every mask, products dense and grouped, the head with its loss, the experts' rows, the
// router, the optimizer and the gradient norm, in bf16 (optimizer and norm: fp32). Run "gpu_ops_bench cuda" on a GPU
// (deploy/gpu_check.sh --only kernels). "cpu" does the same with small shapes, to try the program itself. TFLOP/s count
// what a mask lets a query see, and five products for the backward pass of attention; GB/s count each operand and
// result once. Where Titan calls LibTorch's kernel itself, the ratio shows the overhead of Titan's path to it.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/kernels/gpu_table.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/optim/optimizer.h"

namespace titan::nn {
namespace {

using bench::Operation;
using bench::Table;
using bench::Tensors;

double bytes(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

struct AttentionCase {
  std::string name;
  int64_t heads, kv_heads, head_size, v_size;
  AttentionMask mask;
  bool sinks = false;
};

// Returns whether query i sees key j: bool [T, T].
at::Tensor visible(const AttentionMask& mask, int64_t tokens, int64_t document, at::Device device) {
  const at::Tensor at = at::arange(tokens, at::TensorOptions(at::kLong).device(device));
  const at::Tensor i = at.unsqueeze(1), j = at.unsqueeze(0);
  at::Tensor sees = j <= i;
  if (mask.window > 0) sees = sees & (i - j < mask.window);
  if (mask.chunk > 0) sees = sees & (i.floor_divide(mask.chunk) == j.floor_divide(mask.chunk));
  if (mask.documents) sees = sees & (i.floor_divide(document) == j.floor_divide(document));
  return sees;
}

// Computes LibTorch's attention for any mask: the mask is a tensor, and there are as many key heads as query heads. A
// sink is one more key; its score is the sink and its value is zero.
at::Tensor sdpa(const AttentionCase& one, const Tensors& t, const at::Tensor& sees, double scale) {
  if (one.mask.plain() && !one.sinks) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, /*is_causal=*/true, scale, /*enable_gqa=*/true);
  }
  const int64_t share = one.heads / one.kv_heads;
  const at::Tensor k = t[1].repeat_interleave(share, 1), v = t[2].repeat_interleave(share, 1);
  if (!one.sinks) return at::scaled_dot_product_attention(t[0], k, v, sees, 0.0, false, scale);
  const at::Tensor scores = (at::matmul(t[0], k.transpose(2, 3)) * scale).masked_fill(sees.logical_not(), -1e30);
  const at::Tensor sinks = t[3].view({1, -1, 1, 1}).expand({scores.size(0), -1, scores.size(2), 1});
  const at::Tensor weights = at::softmax(at::cat({scores, sinks}, 3), 3, at::kFloat).to(v.scalar_type());
  return at::matmul(weights.narrow(3, 0, scores.size(3)), v);
}

void attention(Table& table) {
  const int64_t tokens = table.on_gpu() ? 4096 : 128, documents = 8, document = tokens / documents;
  const AttentionCase cases[] = {
      {"heads of 64, causal", 32, 8, 64, 64, {}},
      {"heads of 128, causal", 32, 8, 128, 128, {}},
      {"heads of 192 and 128, causal", 16, 16, 192, 128, {}},
      {"heads of 256, causal", 8, 8, 256, 256, {}},
      {"heads of 128, window of an eighth", 32, 8, 128, 128, {.window = tokens / 8}},
      {"heads of 128, chunks of a quarter", 32, 8, 128, 128, {.chunk = tokens / 4}},
      {"heads of 128, eight documents", 32, 8, 128, 128, {.documents = true}},
      {"heads of 64, window of a 32nd, sinks", 32, 4, 64, 64, {.window = tokens / 32}, true},
  };
  for (const AttentionCase& one : cases) {
    Tensors leaves = {table.leaf({1, one.heads, tokens, one.head_size}),
                      table.leaf({1, one.kv_heads, tokens, one.head_size}),
                      table.leaf({1, one.kv_heads, tokens, one.v_size})};
    if (one.sinks) leaves.push_back(table.leaf({one.heads}));
    const double scale = 1 / std::sqrt(static_cast<double>(one.head_size));
    const at::Device device = table.options().device();
    const at::Tensor sees = visible(one.mask, tokens, document, device);
    MicrobatchContext context;
    context.tokens = at::zeros({1, tokens}, at::TensorOptions(at::kLong).device(device));
    if (one.mask.documents) {
      // On the host, where attention reads the documents.
      context.documents = at::arange(tokens, at::kLong).floor_divide(document).unsqueeze(0);
    }
    const double pairs = sees.sum().item<double>() * static_cast<double>(one.heads);
    const double forward = 2 * pairs * static_cast<double>(one.head_size + one.v_size);
    table.compare_passes(
        "attention 1 x " + std::to_string(tokens) + ", " + one.name, leaves,
        [&](const Tensors& t) { return sdpa(one, t, sees, scale); },
        [&](const Tensors& t) {
          return attend({.q = t[0],
                         .k = t[1],
                         .v = t[2],
                         .scale = scale,
                         .mask = one.mask,
                         .sinks = one.sinks ? t[3] : at::Tensor()},
                        context);
        },
        forward, 2.5 * forward, "TFLOP/s");
  }
}

void dense_products(Table& table) {
  const int64_t tokens = table.on_gpu() ? 8192 : 128;
  for (const auto& [in, out] : table.on_gpu()
                                   ? std::vector<std::pair<int64_t, int64_t>>{{2048, 8192}, {4096, 4096}, {4096, 14336}}
                                   : std::vector<std::pair<int64_t, int64_t>>{{256, 768}}) {
    const at::Tensor x = table.draw({tokens, in}), w = table.draw({out, in}), dy = table.draw({tokens, out});
    const double flop = 2.0 * static_cast<double>(tokens * in * out);
    const std::string shape =
        "product " + std::to_string(tokens) + " x " + std::to_string(in) + " x " + std::to_string(out);
    table.compare(
        shape, [&] { at::mm(x, w.t()); }, [&] { matmul_nt(x, w); }, flop, "TFLOP/s");
    table.compare(
        shape + ", of the input's gradient", [&] { at::mm(dy, w); }, [&] { matmul_nn(dy, w); }, flop, "TFLOP/s");
    table.compare(
        shape + ", of the weight's", [&] { at::mm(dy.t(), x); }, [&] { weight_gradient(dy, x); }, flop, "TFLOP/s");
  }
}

// Compares LibTorch's operations with Titan's kernels for float8, and a float8 layer with one in bf16.
void float8(Table& table) {
  const int64_t tokens = table.on_gpu() ? 8192 : 128;
  const at::Tensor numbers = table.draw({tokens, table.on_gpu() ? 8192 : 256});
  const std::string shape = std::to_string(numbers.size(0)) + " x " + std::to_string(numbers.size(1));
  const auto both = [&](const std::string& name, const std::function<void()>& body) {
    table.compare(name + " " + shape, body, body, 1.5 * bytes(numbers), "GB/s");
  };
  both("float8 with one scale", [&] { quantised(numbers, amax_of(numbers), at::kFloat8_e4m3fn, false); });
  both("float8 rows", [&] { quantised_rows(numbers); });
  both("float8 columns, turned", [&] { quantised_columns(numbers); });
  for (const auto& [in, out] : table.on_gpu()
                                   ? std::vector<std::pair<int64_t, int64_t>>{{2048, 8192}, {4096, 4096}, {4096, 14336}}
                                   : std::vector<std::pair<int64_t, int64_t>>{{256, 768}}) {
    const Tensors leaves = {table.leaf({1, tokens, in}), table.leaf({out, in})};
    Parameter plain{"w", {out, in}, {}, {}}, quantised{"w", {out, in}, {}, {}};  // The backward pass reads them, too.
    plain.weight = quantised.weight = leaves[1];
    const auto layer = [](const Parameter& weight) {
      return [&weight](const Tensors& t) { return matrix_product(t[0], weight); };
    };
    const double flop = 2.0 * static_cast<double>(tokens * in * out);
    for (const auto& [name, recipe] : {std::pair{"tensorwise", LowPrecisionRecipe::kFloat8Tensorwise},
                                       std::pair{"rowwise", LowPrecisionRecipe::kFloat8Rowwise}}) {
      const std::unique_ptr<MatmulRecipe> products = make_low_precision_recipe({.recipe = recipe});
      quantised.products = products.get();
      table.compare_passes(std::string(name) + " layer " + std::to_string(tokens) + " x " + std::to_string(in) + " x " +
                               std::to_string(out) + ", and bf16",
                           leaves, layer(plain), layer(quantised), flop, 2 * flop, "TFLOP/s");
    }
  }
}

// Compares products of experts with very different numbers of rows. LibTorch runs one product per expert.
void grouped_products(Table& table) {
  const int64_t experts = table.on_gpu() ? 64 : 8, dim = table.on_gpu() ? 2048 : 64,
                hidden = table.on_gpu() ? 1408 : 96;
  std::vector<int64_t> rows;
  int64_t all = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    rows.push_back((table.on_gpu() ? 128 : 4) * (1 + expert % 4 * 2));
    all += rows.back();
  }
  const at::Tensor x = table.draw({all, dim}), w = table.draw({experts, hidden, dim}), dy = table.draw({all, hidden});
  const RowGroups groups = group_rows(rows, x);
  const double flop = 2.0 * static_cast<double>(all * dim * hidden);
  const std::string name = "grouped product, " + std::to_string(experts) + " experts, " + std::to_string(all) + " x " +
                           std::to_string(dim) + " x " + std::to_string(hidden);
  const auto each = [&](const auto& body) {
    for_each_group(rows, [&](int64_t group, int64_t first, int64_t count) { body(group, first, count); });
  };
  at::Tensor y = at::empty_like(dy), dx = at::empty_like(x), dw = at::empty_like(w);
  const auto piece = [](const at::Tensor& t, int64_t first, int64_t count) { return t.narrow(0, first, count); };
  table.compare(
      name,
      [&] {
        each([&](int64_t g, int64_t first, int64_t n) {
          at::Tensor to = piece(y, first, n);
          at::mm_out(to, piece(x, first, n), w[g].t());
        });
      },
      [&] { grouped_matmul_nt(x, w, groups); }, flop, "TFLOP/s");
  table.compare(
      name + ", input",
      [&] {
        each([&](int64_t g, int64_t first, int64_t n) {
          at::Tensor to = piece(dx, first, n);
          at::mm_out(to, piece(dy, first, n), w[g]);
        });
      },
      [&] { grouped_matmul_nn(dy, w, groups); }, flop, "TFLOP/s");
  table.compare(
      name + ", weight",
      [&] {
        each([&](int64_t g, int64_t first, int64_t n) {
          at::Tensor to = dw[g];
          at::mm_out(to, piece(dy, first, n).t(), piece(x, first, n));
        });
      },
      [&] { grouped_weight_gradient(dy, x, groups); }, flop, "TFLOP/s");
}

void head_loss(Table& table) {
  const int64_t tokens = table.on_gpu() ? 4096 : 128, dim = table.on_gpu() ? 2048 : 64;
  const int64_t vocabulary = table.on_gpu() ? 128256 : 2048, columns = vocabulary / 8;
  Parameter weight{.fqn = "output.weight", .shape = {vocabulary, dim}, .weight = table.leaf({vocabulary, dim})};
  const at::Tensor labels = at::randint(vocabulary, {1, tokens}, table.options().dtype(at::kLong));
  const double flop = 2.0 * static_cast<double>(tokens * dim) * static_cast<double>(vocabulary);
  table.compare_passes(
      "head and loss " + std::to_string(tokens) + " x " + std::to_string(dim) + " x " + std::to_string(vocabulary),
      {table.leaf({1, tokens, dim}), weight.weight},
      [&](const Tensors& t) {
        return at::cross_entropy_loss(at::linear(t[0], t[1]).view({tokens, vocabulary}).to(at::kFloat),
                                      labels.view({-1}), {}, at::Reduction::Sum);
      },
      [&](const Tensors& t) { return head_cross_entropy_sum(t[0], weight, labels, columns); }, flop, 2 * flop,
      "TFLOP/s");
}

// The router's gate and choice. Declares only what route() reads.
class RouterBlock : public Block {
 public:
  RouterBlock(const RouterOptions& router, int64_t dim, const at::TensorOptions& options)
      : Block("layers.0"),
        moe(declare(), declare_buffer("moe.expert_bias"), "moe", {.router = router, .dim = dim, .hidden = 1}) {
    moe.gate.weight().weight = at::randn({router.num_experts, dim}, options) / 32;
  }
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& /*context*/) override {
    return moe.forward(input);
  }
  MixtureOfExperts moe;
};

void expert_rows(Table& table) {
  const int64_t tokens = table.on_gpu() ? 8192 : 128, dim = table.on_gpu() ? 2048 : 64, experts = 64, choices = 6;
  const at::Tensor x = table.draw({tokens, dim}),
                   scores = at::rand({tokens, choices}, table.options().dtype(at::kFloat));
  const at::Tensor chosen = at::rand({tokens, experts}, table.options().dtype(at::kFloat))
                                .argsort(int64_t{1}, false)
                                .narrow(1, 0, choices)
                                .contiguous();
  const std::string shape = std::to_string(tokens) + " x " + std::to_string(choices) + " of " + std::to_string(experts);
  const RouterBlock router({.num_experts = experts, .top_k = choices, .softmax = true}, dim, table.options());
  const at::Tensor gate = router.moe.gate.weight().weight;
  table.compare(
      "router " + shape,
      [&] {
        const auto [best, who] = at::softmax(at::mm(x, gate.t()), 1, at::kFloat).topk(choices, 1);
        at::bincount(who.flatten(), {}, experts);
      },
      [&] { router.moe.route(x); }, bytes(x), "GB/s");
  table.compare(
      "order by expert " + shape,
      [&] {
        const at::Tensor rows = chosen.flatten().argsort(/*stable=*/true, 0, false);
        rows.floor_divide(choices);
        rows.argsort();
      },
      [&] { order_by_expert(chosen, experts); }, 3 * bytes(chosen), "GB/s");
  const ExpertOrder order = order_by_expert(chosen, experts);
  const at::Tensor sorted = spread(x, {}, order);
  table.compare(
      "rows to experts " + shape, [&] { x.index_select(0, order.tokens); }, [&] { spread(x, {}, order); },
      bytes(x) + bytes(sorted), "GB/s");
  table.compare(
      "combine " + shape,
      [&] {
        const at::Tensor back = sorted.index_select(0, order.places.flatten()).view({tokens, choices, dim});
        (back.to(at::kFloat) * scores.unsqueeze(2)).sum(1).to(at::kBFloat16);
      },
      [&] { combine(sorted, scores, order); }, bytes(sorted) + bytes(x), "GB/s");
}

// Compares optimizer steps on flat shards in fp32, as training stores them.
void optimizer(Table& table) {
  const int64_t shards = table.on_gpu() ? 16 : 4, elements = table.on_gpu() ? (1 << 24) : (1 << 14);
  const at::TensorOptions single = table.options().dtype(at::kFloat);
  std::vector<optim::Slot> slots;
  Tensors values, gradients, first, second, steps;
  for (int64_t i = 0; i < shards; ++i) {
    slots.push_back({"layers." + std::to_string(i), at::randn({elements}, single), at::randn({elements}, single)});
    values.push_back(slots.back().value.clone());
    gradients.push_back(slots.back().grad);
    first.push_back(at::zeros({elements}, single));
    second.push_back(at::zeros({elements}, single));
    steps.push_back(at::zeros({}, single));
  }
  const auto own = optim::make_optimizer({}, slots);
  const double moved = 4.0 * static_cast<double>(shards * elements);
  const std::string shape = std::to_string(shards) + " x " + std::to_string(elements);
  table.compare(
      "AdamW " + shape + ", fp32",
      [&] {
        at::_fused_adamw_(values, gradients, first, second, {}, steps, /*lr=*/1e-5, 0.9, 0.95, 0.1, 1e-8,
                          /*amsgrad=*/false, /*maximize=*/false);
      },
      [&] { own->step(1e-5); }, 7 * moved, "GB/s");
  for (const auto& [state_dtype, bytes_of_states] : {std::pair{"bfloat16", 4.0}, std::pair{"8bit", 2.0}}) {
    std::vector<optim::Slot> matrices;
    for (const optim::Slot& slot : slots) {
      matrices.push_back({slot.fqn, slot.value.view({-1, 1 << 10}), slot.grad.view({-1, 1 << 10})});
    }
    const auto kept = optim::make_optimizer({.state_dtype = state_dtype}, matrices);
    const auto step = [&] { kept->step(1e-5); };
    table.compare("AdamW " + shape + ", states in " + state_dtype, step, step, (3 + bytes_of_states / 2) * moved,
                  "GB/s");
  }
  table.compare(
      "squared norm " + shape + ", fp32",
      [&] {
        Tensors squares;
        for (const at::Tensor& one : gradients) {
          squares.push_back(at::linalg_vector_norm(one, 2, {}, false, at::kDouble).square());
        }
        at::stack(squares).sum();
      },
      [&] { optim::sum_of_squares(gradients); }, moved, "GB/s");
}

int run(const std::string& where, const std::string& only) {
  auto device = comm::make_device(where, 0);
  if (!device.ok()) {
    std::fprintf(stderr, "gpu_ops_bench: %s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  const bool on_gpu = where != "cpu";
  if (!on_gpu) at::set_num_threads(1);
  set_use_grouped_gemm((*device)->has_grouped_kernel());
  if (on_gpu) set_cuda_capability((*device)->cuda_capability());
  const std::pair<const char*, void (*)(Table&)> parts[] = {
      {"attention", attention}, {"products", dense_products}, {"float8", float8},      {"experts", grouped_products},
      {"head", head_loss},      {"rows", expert_rows},        {"optimizer", optimizer}};
  Table table(**device, on_gpu);
  for (const auto& [name, part] : parts) {
    if (only.empty() || only == name) part(table);
  }
  return 0;
}

}  // namespace
}  // namespace titan::nn

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "gpu_ops_bench cuda|cpu [attention|products|float8|experts|head|rows|optimizer]\n");
    return 2;
  }
  try {
    return titan::nn::run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_ops_bench: %s\n", error.what());
    return 1;
  }
}

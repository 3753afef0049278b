#include "worker/rank/parallel/fused_columns.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ColumnExchange : torch::autograd::Function<ColumnExchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& columns, c10::intrusive_ptr<FusedColumns> fused,
                            bool to_shares) {
    at::Tensor result = fused->exchange(columns, to_shares);
    context->saved_data["to_shares"] = to_shares;
    context->saved_data["fused"] = c10::IValue::make_capsule(std::move(fused));
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto fused = c10::static_intrusive_pointer_cast<FusedColumns>(context->saved_data["fused"].toCapsule());
    return {fused->exchange(gradients[0], !context->saved_data["to_shares"].toBool()), {}, {}};
  }
};

}  // namespace

FusedColumns::FusedColumns(std::vector<int64_t> widths, const comm::Group& group)
    : widths_(std::move(widths)), group_(group) {
  for (const int64_t width : widths_) {
    TORCH_CHECK(width % group.size() == 0, "fused columns: ", group.size(), " ranks of ", group.name(),
                " do not divide a projection of ", width);
    columns_ += width / group.size();
  }
}

FusedColumns::Layout FusedColumns::piece_of(int rank) const { return {{rank * columns_, columns_}}; }

FusedColumns::Layout FusedColumns::shares_of(int rank) const {
  Layout shares;
  int64_t begin = 0;
  for (const int64_t width : widths_) {
    const int64_t count = width / group_.size();
    shares.push_back({begin + rank * count, count});
    begin += width;
  }
  return shares;
}

std::vector<FusedColumns::Run> FusedColumns::runs(const Layout& sender, const Layout& receiver) {
  std::vector<Run> all;
  int64_t from = 0;
  for (const Range& sent : sender) {
    int64_t to = 0;
    for (const Range& received : receiver) {
      const int64_t begin = std::max(sent.begin, received.begin);
      const int64_t end = std::min(sent.begin + sent.count, received.begin + received.count);
      if (begin < end) all.push_back({from + begin - sent.begin, to + begin - received.begin, end - begin});
      to += received.count;
    }
    from += sent.count;
  }
  return all;
}

at::Tensor FusedColumns::exchange(const at::Tensor& columns, bool to_shares) const {
  TORCH_CHECK(columns.size(-1) == columns_, "fused columns: got ", columns.sizes(), ", need ", columns_, " columns");
  const auto before = [&](int rank) { return to_shares ? piece_of(rank) : shares_of(rank); };
  const auto after = [&](int rank) { return to_shares ? shares_of(rank) : piece_of(rank); };
  const at::Tensor own = columns.reshape({-1, columns_});
  const int64_t rows = own.size(0);
  std::vector<at::Tensor> outgoing;
  std::vector<int64_t> sent, received;
  std::vector<std::pair<int64_t, int64_t>> arriving;  // First column and number of columns here, in order of arrival.
  for (int rank = 0; rank < group_.size(); ++rank) {
    int64_t out = 0, in = 0;
    for (const Run& run : runs(before(group_.rank()), after(rank))) {
      outgoing.push_back(own.narrow(1, run.from, run.count).reshape({-1}));
      out += rows * run.count;
    }
    for (const Run& run : runs(before(rank), after(group_.rank()))) {
      arriving.emplace_back(run.to, run.count);
      in += rows * run.count;
    }
    sent.push_back(out);
    received.push_back(in);
  }
  const at::Tensor output = at::empty({rows * columns_}, own.options());
  group_.all_to_all(output, at::cat(outgoing), received, sent).wait();
  std::vector<std::pair<int64_t, at::Tensor>> parts;  // First column, and the columns from it on.
  int64_t begin = 0;
  for (const auto& [column, count] : arriving) {
    parts.emplace_back(column, output.narrow(0, begin, rows * count).view({rows, count}));
    begin += rows * count;
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> ordered;
  for (auto& [column, part] : parts) ordered.push_back(std::move(part));
  return at::cat(ordered, 1).view(columns.sizes());
}

at::Tensor to_shares(const at::Tensor& piece, c10::intrusive_ptr<FusedColumns> fused) {
  return ColumnExchange::apply(piece, std::move(fused), true);
}

at::Tensor to_pieces(const at::Tensor& shares, c10::intrusive_ptr<FusedColumns> fused) {
  return ColumnExchange::apply(shares, std::move(fused), false);
}

}  // namespace titan::parallel

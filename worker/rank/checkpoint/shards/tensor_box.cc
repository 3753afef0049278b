#include "worker/rank/checkpoint/shards/tensor_box.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"

namespace titan::checkpoint {
namespace {

// Returns the distance in elements between neighboring indices of each dim, for a row-major box.
std::vector<int64_t> strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> result(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) result[d - 1] = result[d] * shape[d];
  return result;
}

bool inside(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.offset[d] > shape[d] || box.shape[d] > shape[d] - box.offset[d]) {
      return false;
    }
  }
  return true;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.shape[d] || b.offset[d] >= a.offset[d] + a.shape[d]) return false;
  }
  return true;
}

// Returns the dim along which boxes begin at the most places.
size_t most_divided_dim(const std::vector<const Box*>& boxes, size_t dims) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < dims; ++d) {
    std::vector<int64_t> begins;
    for (const Box* box : boxes) begins.push_back(box->offset[d]);
    std::sort(begins.begin(), begins.end());
    const auto places = static_cast<size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (places > most) best = d, most = places;
  }
  return best;
}

std::string text(const Box& box) {
  return absl::StrCat("[", absl::StrJoin(box.offset, ","), "]+[", absl::StrJoin(box.shape, ","), "]");
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

int64_t Box::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Box whole(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box result = a;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    result.offset[d] = begin;
    result.shape[d] = end - begin;
  }
  return result;
}

absl::Status for_each_run(const Box& part, const Box& from, const Box& to,
                          absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> visit) {
  const size_t dims = part.shape.size();
  if (part.elements() == 0) return absl::OkStatus();
  // Dims `inner` and later are whole in both boxes, so that a run spans them and a range of dim inner - 1.
  size_t inner = dims;
  while (inner > 0 && part.shape[inner - 1] == from.shape[inner - 1] && part.shape[inner - 1] == to.shape[inner - 1])
    --inner;
  if (inner > 0) --inner;
  int64_t run = 1;
  for (size_t d = inner; d < dims; ++d) run *= part.shape[d];
  const std::vector<int64_t> from_stride = strides(from.shape), to_stride = strides(to.shape);
  std::vector<int64_t> index(inner, 0);
  while (true) {
    int64_t source = 0, target = 0;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t at = part.offset[d] + (d < inner ? index[d] : 0);
      source += (at - from.offset[d]) * from_stride[d];
      target += (at - to.offset[d]) * to_stride[d];
    }
    TITAN_RETURN_IF_ERROR(visit(source, target, run));
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == part.shape[d - 1]) index[--d] = 0;
    if (d == 0) return absl::OkStatus();
  }
}

std::vector<Box> cut_along(const Box& part, size_t dim, int64_t most) {
  const int64_t elements = part.elements();
  if (elements == 0 || part.shape.empty()) return {part};
  const int64_t step = std::max<int64_t>(1, most / (elements / part.shape[dim]));
  std::vector<Box> all;
  for (int64_t first = 0; first < part.shape[dim]; first += step) {
    Box& one = all.emplace_back(part);
    one.offset[dim] += first;
    one.shape[dim] = std::min(step, part.shape[dim] - first);
  }
  return all;
}

std::vector<Box> cut(const Box& part, int64_t most) {
  if (part.elements() <= std::max<int64_t>(most, 1)) return {part};
  size_t dim = 0;
  while (part.shape[dim] == 1) ++dim;
  std::vector<Box> all;
  for (const Box& one : cut_along(part, dim, most)) {
    for (Box& smaller : cut(one, most)) all.push_back(std::move(smaller));
  }
  return all;
}

int64_t first_element(const Box& part, const Box& in) {
  const std::vector<int64_t> stride = strides(in.shape);
  int64_t first = 0;
  for (size_t d = 0; d < part.shape.size(); ++d) first += (part.offset[d] - in.offset[d]) * stride[d];
  return first;
}

absl::Status check_cover(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  const int64_t total = whole(shape).elements();
  int64_t covered = 0;
  for (const Box& box : boxes) {
    if (!inside(box, shape)) {
      return absl::DataLossError(
          absl::StrCat("piece ", text(box), " lies outside of shape [", absl::StrJoin(shape, ","), "]"));
    }
    covered += std::min(box.elements(), INT64_MAX - covered);  // Saturates, because copies of a huge piece may add up
                                                               // to more than 64 bits.
  }
  // Pieces sorted along a dim can only overlap within a window, which is narrow along the dim that is cut most.
  std::vector<const Box*> sorted;
  for (const Box& box : boxes) {
    if (box.elements() > 0) sorted.push_back(&box);
  }
  const size_t dim = most_divided_dim(sorted, shape.size());
  const auto begin = [&](const Box* box) { return box->offset.empty() ? 0 : box->offset[dim]; };
  const auto end = [&](const Box* box) { return box->offset.empty() ? 1 : box->offset[dim] + box->shape[dim]; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Box* a, const Box* b) { return begin(a) < begin(b); });
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = i + 1; j < sorted.size() && begin(sorted[j]) < end(sorted[i]); ++j) {
      if (overlap(*sorted[i], *sorted[j])) {
        return absl::DataLossError(absl::StrCat("pieces ", text(*sorted[i]), " and ", text(*sorted[j]), " overlap"));
      }
    }
  }
  if (covered != total) {
    return absl::DataLossError(absl::StrCat("pieces hold ", covered, " of ", total, " elements"));
  }
  return absl::OkStatus();
}

}  // namespace titan::checkpoint

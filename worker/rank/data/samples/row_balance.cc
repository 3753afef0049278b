#include "worker/rank/data/samples/row_balance.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <queue>
#include <utility>

namespace titan::data {
namespace {

constexpr size_t kStepsKept = 4;

// The rows of one rank in one microbatch.
struct Share {
  std::vector<int64_t> rows;
  int64_t cost = 0;
};

std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

std::vector<Share> fill_shares(const std::vector<int64_t>& costs, const RowPlaces& places) {
  std::vector<int64_t> order = ascending(places.all());
  const auto cost_of = [&](int64_t row) { return costs[static_cast<size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return cost_of(a) > cost_of(b); });
  std::vector<Share> shares(static_cast<size_t>(places.microbatches * places.ranks));
  using Load = std::pair<int64_t, size_t>;  // The cost of a share, and its number.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (size_t share = 0; share < shares.size(); ++share) least.emplace(0, share);
  for (const int64_t row : order) {
    const size_t number = least.top().second;
    least.pop();
    Share& share = shares[number];
    share.rows.push_back(row);
    share.cost += cost_of(row);
    if (static_cast<int64_t>(share.rows.size()) < places.rows) least.emplace(share.cost, number);
  }
  for (Share& share : shares) std::sort(share.rows.begin(), share.rows.end());
  return shares;
}

}  // namespace

int64_t work_of(const std::vector<int64_t>& rows, const std::vector<int64_t>& costs, const RowPlaces& places) {
  int64_t work = 0;
  auto row = rows.begin();
  for (int64_t microbatch = 0; microbatch < places.microbatches; ++microbatch) {
    int64_t largest = 0;
    for (int64_t rank = 0; rank < places.ranks; ++rank, row += places.rows) {
      largest = std::max(largest, std::accumulate(row, row + places.rows, int64_t{0}, [&](int64_t sum, int64_t one) {
                           return sum + costs[static_cast<size_t>(one)];
                         }));
    }
    work += largest;
  }
  return work;
}

std::vector<int64_t> balance_rows(const std::vector<int64_t>& costs, const RowPlaces& places) {
  std::vector<Share> shares = fill_shares(costs, places);
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) { return a.cost > b.cost; });
  std::vector<int64_t> dealt;
  for (int64_t microbatch = 0; microbatch < places.microbatches; ++microbatch) {
    // The costlier shares of a microbatch are on the first ranks and on the last ones alternately.
    const auto first = shares.begin() + microbatch * places.ranks, end = first + places.ranks;
    if (microbatch % 2 == 1) std::reverse(first, end);
    for (auto share = first; share != end; ++share) dealt.insert(dealt.end(), share->rows.begin(), share->rows.end());
  }
  std::vector<int64_t> plain = ascending(places.all());
  return work_of(dealt, costs, places) < work_of(plain, costs, places) ? dealt : plain;
}

std::shared_ptr<RowBalance::Step> RowBalance::step_at(int64_t first) {
  sync::Lock lock(mutex_);
  std::shared_ptr<Step>& found = steps_[first];
  if (found == nullptr) {
    found = std::make_shared<Step>();
    found->costs.resize(static_cast<size_t>(places_.all()));
  }
  const std::shared_ptr<Step> step = found;
  while (steps_.size() > kStepsKept) steps_.erase(steps_.begin());
  return step;
}

// Weighs rows that no other thread has begun, until there are none.
void RowBalance::weigh(int64_t first, Step& step) {
  while (true) {
    int64_t row = 0;
    {
      sync::Lock lock(mutex_);
      if (step.begun == places_.all()) return;
      row = step.begun++;
    }
    absl::StatusOr<int64_t> cost;
    try {
      cost = cost_of_row_(first + row);
    } catch (const std::exception& error) {  // Other threads wait for this row.
      cost = absl::InternalError(error.what());
    }
    sync::Lock lock(mutex_);
    step.status.Update(cost.status());
    step.costs[static_cast<size_t>(row)] = cost.value_or(0);
    if (++step.weighed < places_.all()) continue;
    step.rows = balance_rows(step.costs, places_);
    weighed_.notify_all();
  }
}

absl::StatusOr<int64_t> RowBalance::row_at(int64_t first, int64_t place) {
  const std::shared_ptr<Step> step = step_at(first);
  weigh(first, *step);
  sync::Lock lock(mutex_);
  weighed_.wait(mutex_, [&]() { return !step->rows.empty(); });
  if (!step->status.ok()) return step->status;
  return first + step->rows[static_cast<size_t>(place)];
}

}  // namespace titan::data

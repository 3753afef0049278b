#include "worker/rank/checkpoint/shards/progression.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

Point difference(const Point& to, const Point& from) {
  Point delta(to.size());
  for (size_t c = 0; c < to.size(); ++c) delta[c] = to[c] - from[c];
  return delta;
}

// Returns the distance between the first components of the first and the last point.
int64_t span(const Progression& one) {
  int64_t span = 0;
  for (const Progression::Step& step : one.steps) span += (step.count - 1) * step.delta[0];
  return span;
}

bool follows(const Progression& next, const Progression& last, const Progression& first, const Point& delta) {
  return next.steps == first.steps && difference(next.base, last.base) == delta;
}

// Joins neighbors at equal distances into one progression with one more step. Returns whether there were any.
bool fold_once(std::vector<Progression>& list) {
  std::vector<Progression> folded;
  for (size_t i = 0; i < list.size();) {
    size_t end = i + 1;
    if (end < list.size() && list[end].steps == list[i].steps) {
      const Point delta = difference(list[end].base, list[i].base);
      if (delta[0] > span(list[i])) {
        while (end < list.size() && follows(list[end], list[end - 1], list[i], delta)) ++end;
      }
      if (end > i + 1) list[i].steps.push_back({static_cast<int64_t>(end - i), delta});
    }
    folded.push_back(std::move(list[i]));
    i = end;
  }
  const bool fewer = folded.size() < list.size();
  list = std::move(folded);
  return fewer;
}

using Wide = __int128;  // For sums of a few numbers.

// Narrows [first, last] to the i for which from + i * delta + [inner_min, inner_max] meets [within.first, within.last].
void narrow(Wide from, Wide delta, Wide inner_min, Wide inner_max, const Bounds& within, int64_t& first,
            int64_t& last) {
  const Wide low = within.first - from - inner_max, high = within.last - from - inner_min;
  if (delta == 0) {
    if (low > 0 || high < 0) last = first - 1;
    return;
  }
  const auto floor_div = [](Wide a, Wide b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0); };
  const auto ceil_div = [&](Wide a, Wide b) { return -floor_div(-a, b); };
  first = static_cast<int64_t>(std::max<Wide>(first, ceil_div(delta > 0 ? low : high, delta)));
  last = static_cast<int64_t>(std::min<Wide>(last, floor_div(delta > 0 ? high : low, delta)));
}

class Walk {
 public:
  Walk(const Progression& of, const std::vector<Bounds>& within, absl::FunctionRef<void(const Point&)> visit)
      : of_(of), within_(within), visit_(visit) {
    const size_t components = of.base.size();
    min_.assign(1, Point(components, 0));
    max_ = min_;
    for (const Progression::Step& step : of.steps) {
      min_.push_back(min_.back());
      max_.push_back(max_.back());
      for (size_t c = 0; c < components; ++c) {
        const int64_t reach = (step.count - 1) * step.delta[c];
        (reach < 0 ? min_ : max_).back()[c] += reach;
      }
    }
  }

  void run(const Point& at, size_t steps) {
    if (steps == 0) {
      for (size_t c = 0; c < at.size(); ++c) {
        if (at[c] < within_[c].first || at[c] > within_[c].last) return;
      }
      return visit_(at);
    }
    const Progression::Step& step = of_.steps[steps - 1];
    int64_t first = 0, last = step.count - 1;
    for (size_t c = 0; c < at.size(); ++c) {
      narrow(at[c], step.delta[c], min_[steps - 1][c], max_[steps - 1][c], within_[c], first, last);
    }
    Point next(at.size());
    for (int64_t i = first; i <= last; ++i) {
      for (size_t c = 0; c < at.size(); ++c) next[c] = at[c] + i * step.delta[c];
      run(next, steps - 1);
    }
  }

 private:
  const Progression& of_;
  const std::vector<Bounds>& within_;
  absl::FunctionRef<void(const Point&)> visit_;
  std::vector<Point> min_, max_;  // Least and most that the first k steps can add to a point.
};

}  // namespace

int64_t Progression::points() const {
  int64_t points = 1;
  for (const Step& step : steps) points *= step.count;
  return points;
}

std::vector<Progression> fold(std::vector<Point> points) {
  std::sort(points.begin(), points.end());
  // Points with the same first component go to separate lists: the k-th of each to the k-th list.
  std::vector<std::vector<Progression>> lists;
  size_t k = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    k = i > 0 && points[i][0] == points[i - 1][0] ? k + 1 : 0;
    if (k == lists.size()) lists.emplace_back();
    lists[k].push_back({.base = points[i]});
  }
  std::vector<Progression> all;
  for (std::vector<Progression>& list : lists) {
    while (fold_once(list)) {
    }
    std::move(list.begin(), list.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<Point> unfold(const std::vector<Progression>& progressions) {
  std::vector<Point> points;
  for (const Progression& one : progressions) {
    const std::vector<Bounds> anywhere(one.base.size());
    for_each_point(one, anywhere, [&](const Point& point) { points.push_back(point); });
  }
  std::sort(points.begin(), points.end());
  return points;
}

absl::Status check_progression(const Progression& progression, const Point& limit) {
  const auto bad = [](auto... what) { return absl::DataLossError(absl::StrCat("a progression ", what...)); };
  if (limit.empty() || progression.base.size() != limit.size()) {
    return bad("of ", progression.base.size(), " components, not ", limit.size());
  }
  Point least = progression.base, most = progression.base;
  for (size_t c = 0; c < limit.size(); ++c) {
    if (least[c] < 0 || least[c] >= limit[c]) return bad("begins outside of its range");
  }
  int64_t span = 0;
  for (const Progression::Step& step : progression.steps) {
    if (step.count < 2 || step.delta.size() != limit.size()) return bad("has an invalid step");
    if (step.delta[0] <= span) return bad("repeats a first component");
    for (size_t c = 0; c < limit.size(); ++c) {
      int64_t reach = 0;
      int64_t& end = step.delta[c] < 0 ? least[c] : most[c];
      if (__builtin_mul_overflow(step.count - 1, step.delta[c], &reach) || __builtin_add_overflow(end, reach, &end) ||
          end < 0 || end >= limit[c]) {
        return bad("leaves its range");
      }
    }
    span = most[0] - progression.base[0];
  }
  return absl::OkStatus();
}

void for_each_point(const Progression& progression, const std::vector<Bounds>& within,
                    absl::FunctionRef<void(const Point&)> visit) {
  Walk(progression, within, visit).run(progression.base, progression.steps.size());
}

int64_t integer_in(const json& from) { return from.get_ref<const json::number_integer_t&>(); }

std::vector<int64_t> integers_in(const json& from) {
  std::vector<int64_t> numbers;
  for (const json& one : from.get_ref<const json::array_t&>()) numbers.push_back(integer_in(one));
  return numbers;
}

json to_json(const Progression& progression) {
  json text = json::array({progression.base});
  for (const Progression::Step& step : progression.steps) text.push_back({step.count, step.delta});
  return text;
}

Progression progression_from_json(const json& from) {
  Progression progression{.base = integers_in(from.at(0))};
  for (size_t i = 1; i < from.size(); ++i) {
    progression.steps.push_back({integer_in(from[i].at(0)), integers_in(from[i].at(1))});
  }
  return progression;
}

}  // namespace titan::checkpoint

#include "controller/scheduler/queue.h"

namespace titan::scheduler {

// A job with reserved devices has a shape that no other job has.
PendingQueue::Key PendingQueue::key_of(const Waiting& job) {
  return {job.request.ranks,
          job.request.per_node,
          job.request.unit,
          job.job.time_limit,
          job.job.avoided,
          job.job.refused,
          job.job.reserved.empty() ? "" : job.job.uid};
}

bool PendingQueue::add(Waiting& job) {
  jobs_.insert(&job);
  Shape& shape = shapes_[key_of(job)];
  job.shape = &shape;
  if (!shape.jobs.empty() && shape.front().place < job.place) {
    shape.jobs.insert(&job);
    return false;
  }
  if (!shape.jobs.empty()) fronts_.erase(&shape);
  shape.jobs.insert(&job);
  shape.blocked_at = 0;
  fronts_.insert(&shape);
  return true;
}

void PendingQueue::remove(Waiting& job) {
  jobs_.erase(&job);
  Shape& shape = *job.shape;
  const bool first = &shape.front() == &job;
  if (first) fronts_.erase(&shape);
  shape.jobs.erase(&job);
  job.shape = nullptr;
  if (shape.jobs.empty()) {
    shapes_.erase(key_of(job));
  } else if (first) {
    fronts_.insert(&shape);
  }
}

Shape* PendingQueue::after(const Place& place) const {
  const auto it = fronts_.upper_bound(place);
  return it == fronts_.end() ? nullptr : *it;
}

}  // namespace titan::scheduler

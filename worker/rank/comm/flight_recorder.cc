#include "worker/rank/comm/flight_recorder.h"

#include <algorithm>

#include "common/rank_protocol/flight_tail.h"
#include "worker/rank/comm/group.h"

namespace titan::comm {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct FlightRecorder::Tail {
  std::unique_ptr<rank_protocol::FlightTail> file;
  rank_protocol::FlightCall call;  // Scratch space for the written call; its strings keep their capacity.
};

RecordedTensor::RecordedTensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  type = tensor.scalar_type();
  const at::IntArrayRef from = tensor.sizes();
  const int64_t folded = std::max<int64_t>(0, tensor.dim() - kMaxDims);
  dims = static_cast<int8_t>(tensor.dim() - folded);
  for (int64_t i = 0; i < dims; ++i) sizes[i] = from[i + folded];
  for (int64_t i = 0; i < folded; ++i) sizes[0] *= from[i];
}

FlightRecorder::FlightRecorder(int64_t entries, Waits waits) : entries_(entries), waits_(waits), capacity_(entries) {
  TORCH_CHECK(entries > 0, "a recorder needs at least one entry, got ", entries);
  ring_.reserve(static_cast<size_t>(entries));  // Pages are allocated when they are used.
}

FlightRecorder::~FlightRecorder() = default;

void FlightRecorder::attach(std::unique_ptr<rank_protocol::FlightTail> tail) {
  sync::Lock lock(mutex_);
  TORCH_CHECK(next_ == 0, "attach a flight tail before the first call");
  // Every call that the tail shows must be tracked to its end.
  capacity_ = std::max<int64_t>(capacity_, rank_protocol::FlightTail::kCalls);
  ring_.reserve(static_cast<size_t>(capacity_));
  tail_ = std::make_unique<Tail>();
  tail_->file = std::move(tail);
  for (size_t i = 0; i < groups_.size(); ++i) write_group(static_cast<int>(i));
}

int FlightRecorder::add_group(std::string name, std::vector<int> ranks) {
  sync::Lock lock(mutex_);
  RecordedGroup group;
  group.name = std::move(name);
  group.description = listed(ranks);
  group.ranks = std::move(ranks);
  return keep(std::move(group));
}

int FlightRecorder::keep(RecordedGroup group) {
  groups_.push_back(std::move(group));
  const int number = static_cast<int>(groups_.size()) - 1;
  write_group(number);
  return number;
}

void FlightRecorder::write_group(int number) {
  if (tail_ == nullptr) return;
  const RecordedGroup& group = groups_[number];
  tail_->file->add_group(number, {group.name, rank_protocol::format_rank_list(group.ranks),
                                  rank_protocol::group_key(group.name, group.ranks), group.last_issued});
}

void FlightRecorder::write_call(const Recording& recording, int64_t elements) {
  if (tail_ == nullptr) return;
  rank_protocol::FlightCall& call = tail_->call;
  call.group = recording.group;
  call.sequence = recording.sequence;
  call.operation = recording.operation;
  call.type = c10::toString(recording.input.type);
  call.elements = elements;
  call.mark = recording.mark;
  call.since_mark = recording.since_mark;
  call.created_ns = recording.created_ns;
  call.state = rank_protocol::CallState::kInside;
  tail_->file->add_call(recording.number, call);
}

void FlightRecorder::write_state(int64_t number, rank_protocol::CallState state) {
  if (tail_ != nullptr) tail_->file->set_state(number, state);
}

int FlightRecorder::p2p_channel(int group, int source, int destination) {
  const auto [place, is_new] =
      p2p_channels_.try_emplace({group, source, destination}, static_cast<int>(groups_.size()));
  if (!is_new) return place->second;
  const int from = groups_[group].ranks.at(source);
  const int to = groups_[group].ranks.at(destination);
  RecordedGroup way;
  way.name = groups_[group].name + " " + std::to_string(from) + "->" + std::to_string(to);
  way.description = "messages";
  way.ranks = {std::min(from, to), std::max(from, to)};
  way.source = from < to ? 0 : 1;
  way.destination = 1 - way.source;
  return keep(std::move(way));
}

int64_t FlightRecorder::begin(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
                              std::chrono::milliseconds timeout) {
  sync::Lock lock(mutex_);
  return add(group, operation, input, output, timeout);
}

int64_t FlightRecorder::begin_message(int group, const char* operation, int source, int destination,
                                      const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  sync::Lock lock(mutex_);
  return add(p2p_channel(group, source, destination), operation, tensor, tensor, timeout);
}

int64_t FlightRecorder::add(int group, const char* operation, const at::Tensor& input, const at::Tensor& output,
                            std::chrono::milliseconds timeout) {
  const int64_t number = next_++;
  Recording& recording =
      number < capacity_ ? ring_.emplace_back() : ring_[static_cast<size_t>(number % capacity_)] = Recording();
  recording.number = number;
  recording.mark = mark_;
  recording.since_mark = number - marked_at_;
  recording.group = group;
  recording.sequence = ++groups_[group].last_issued;
  recording.operation = operation;
  recording.input = RecordedTensor(input);
  recording.output = RecordedTensor(output);
  recording.timeout = timeout;
  recording.created_ns = now_ns();
  write_call(recording, input.defined() ? input.numel() : 0);
  return number;
}

Recording* FlightRecorder::find(int64_t number) {
  Recording& recording = ring_[static_cast<size_t>(number % capacity_)];
  return recording.number == number ? &recording : nullptr;
}

void FlightRecorder::started(int64_t number) {
  const int64_t now = now_ns();
  sync::Lock lock(mutex_);
  Recording* recording = find(number);
  if (recording == nullptr || recording->progress != CollectiveState::kScheduled) return;
  recording->progress = CollectiveState::kStarted;
  write_state(number, rank_protocol::CallState::kPosted);
  recording->started_ns = now;
  int64_t& last = groups_[recording->group].last_started;
  last = std::max(last, recording->sequence);
}

void FlightRecorder::waiting(int64_t number) {
  sync::Lock lock(mutex_);
  const Recording* recording = find(number);
  if (recording == nullptr || recording->progress == CollectiveState::kCompleted) return;
  write_state(number, rank_protocol::CallState::kInside);
}

void FlightRecorder::waited(int64_t number) {
  const int64_t now = now_ns();
  sync::Lock lock(mutex_);
  Recording* recording = find(number);
  if (recording == nullptr || recording->progress == CollectiveState::kCompleted) return;
  recording->waited = true;
  if (waits_ == Waits::kCompletesOnWait) return complete(*recording, now);
  write_state(number, rank_protocol::CallState::kQueued);
}

void FlightRecorder::complete(Recording& recording, int64_t now_ns) {
  recording.progress = CollectiveState::kCompleted;
  recording.completed_ns = now_ns;
  write_state(recording.number, rank_protocol::CallState::kCompleted);
  int64_t& last = groups_[recording.group].last_completed;
  last = std::max(last, recording.sequence);
}

void FlightRecorder::synchronized() {
  const int64_t now = now_ns();
  sync::Lock lock(mutex_);
  if (waits_ == Waits::kCompletesOnSync) {
    settled_ = std::max(settled_, next_ - capacity_);
    for (int64_t number = settled_; number < next_; ++number) {
      Recording& recording = ring_[static_cast<size_t>(number % capacity_)];
      if (recording.waited && recording.progress != CollectiveState::kCompleted) complete(recording, now);
      if (number == settled_ && recording.progress == CollectiveState::kCompleted) ++settled_;
    }
  }
  ++mark_;
  marked_at_ = next_;
}

Flight FlightRecorder::flight() const {
  Flight flight;
  {
    sync::Lock lock(mutex_);
    flight.groups = groups_;
    flight.recordings = ring_;
  }
  std::vector<Recording>& all = flight.recordings;
  std::ranges::sort(all, {}, &Recording::number);
  const auto extra = static_cast<int64_t>(all.size()) - entries_;
  if (extra > 0) all.erase(all.begin(), all.begin() + extra);
  const auto whole = std::ranges::find(all, 0, &Recording::since_mark);
  if (whole != all.end()) all.erase(all.begin(), whole);
  return flight;
}

}  // namespace titan::comm

// A node that is to be empty: nothing new is placed there, and what runs saves and goes on elsewhere.

#include <utility>

#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {

void Reconciler::drain(const std::string& name, const std::string& reason, Done<NodeView> done) {
  bool cordoned = false;
  {
    sync::Lock lock(mutex_);
    const cluster::Node* node = nodes_.find(name);
    cordoned = node != nullptr && node->record.cordoned && (reason.empty() || node->record.cordon_reason == reason);
  }
  if (cordoned) return ask_to_leave(name, done);  // Whoever waits asks again and again.
  cordon(name, true, reason, [this, name, done = std::move(done)](const absl::StatusOr<NodeView>& node) {
    if (!node.ok()) return done(node);
    ask_to_leave(name, done);
  });
}

// The ranks of one node are asked as by a daemon that stops: all ranks of the attempt agree on the step, save and
// leave, and the next attempt finds the node cordoned. A job that cannot save would lose what it trained: it stays to
// its end. One that is about to start is asked the next time.
void Reconciler::ask_to_leave(const std::string& name, Done<NodeView> done) {
  sync::Lock lock(mutex_);
  Change change;
  for (auto& [uid, job] : jobs_) {
    if (!job.attempt || job.attempt->failing || !job.attempt->start_sent || job.record.cancel_requested) continue;
    const auto part = job.attempt->parts.find(name);
    if (part == job.attempt->parts.end() || part->second.ended) continue;
    if (std::exchange(part->second.asked_to_leave, true)) continue;
    const bool leaves = can_save(uid);
    add_event(
        change, job,
        {.node = name,
         .attempt = job.attempt->record.number,
         .reason = "NodeDraining",
         .message = leaves ? "the ranks save and go on elsewhere" : "the job cannot save, so it stays to its end"});
    put_job(change, job);
    if (!leaves) continue;
    change.then.push_back([this, uid = uid, name, number = job.attempt->record.number] {
      const auto live = jobs_.find(uid);
      if (live != jobs_.end() && live->second.attempt && live->second.attempt->record.number == number) {
        send_stop(live->second, name);
      }
    });
  }
  if (change.mutations.empty()) return done(node_view(*nodes_.find(name)));
  change.then.push_back([this, name, done = std::move(done)] { done(node_view(*nodes_.find(name))); });
  commit(std::move(change));
}

}  // namespace titan::reconcile

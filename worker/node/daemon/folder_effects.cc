// Performs the core's effects on folders: the records in the state folder, and the folders and files prepared for an
// attempt and removed after it.

#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/node/daemon/effects.h"
#include "worker/node/daemon/prepare_files.h"
#include "worker/node/daemon/rank_user.h"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

using node::Written;

FailpointPair fence_points{failpoint::Failpoint("worker.fence"), failpoint::Failpoint("worker.fence.raised")},
    add_points{failpoint::Failpoint("worker.add"), failpoint::Failpoint("worker.added")},
    record_points{failpoint::Failpoint("worker.record"), failpoint::Failpoint("worker.recorded")},
    prepare_points{failpoint::Failpoint("worker.prepare"), failpoint::Failpoint("worker.prepared")},
    forget_points{failpoint::Failpoint("worker.forget"), failpoint::Failpoint("worker.forgotten")},
    cluster_points{failpoint::Failpoint("worker.cluster"), failpoint::Failpoint("worker.cluster.joined")};
failpoint::Failpoint token_point("worker.token.checked"), removed_point("worker.folder.removed"),
    stripped_point("worker.forget.saved");

}  // namespace

void Daemon::perform(node::RaiseFence& effect) {
  run_in(records_, [state = state_, effect] {
    std::string damage;
    const absl::StatusOr<int> highest =
        with_failpoints(fence_points, [&] { return state->raise_fence(effect.key, &damage); });
    if (highest.ok()) return node::FenceRaised{effect.op, *highest, "", damage};
    return node::FenceRaised{effect.op, 0, text_of(highest.status()), "", absl::IsDataLoss(highest.status())};
  });
}

void Daemon::perform(node::AddRecord& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(with_failpoints(add_points, [&] { return state->add(effect.record); }))};
  });
}

void Daemon::perform(node::WriteRecord& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(with_failpoints(record_points, [&] { return state->save(effect.record); }))};
  });
}

shim::Spec Daemon::make_spec(const AttemptRecord& record) const {
  shim::Spec spec;
  spec.job_uid = record.key.job_uid;
  spec.attempt = record.key.number;
  spec.leader = record.leader;
  spec.address = options_.store_address.empty() ? options_.address : options_.store_address;
  spec.rank_binary = options_.rank_binary;
  spec.ranks = record.ranks;
  spec.log_max_bytes = options_.log_max_bytes;
  if (record.orphan_timeout_seconds > 0) spec.orphan_timeout_seconds = record.orphan_timeout_seconds;
  if (groups_) {
    spec.group = {absl::StrCat(groups_->folder, "/", group_prefix(*state_), record.key.job_uid, "-", record.key.number),
                  groups_->unified, options_.memory_per_rank_bytes * static_cast<int64_t>(record.ranks.size())};
  }
  return spec;
}

void Daemon::perform(node::PrepareFolder& effect) {
  const std::string visible = resources_.visible_to_ranks(effect.record.devices);
  run_aside([effect, visible, state = state_, spec = make_spec(effect.record), everybody = options_.rank_user,
             grants = options_.grants, host = options_.address] {
    const Prepared prepared = with_failpoints(prepare_points, [&] {
      return prepare_as(*state, effect.record, effect.launch_json, spec, visible, everybody, grants, host);
    });
    return node::FolderPrepared{effect.op, prepared.refusal, prepared.folder_id, prepared.facts};
  });
}

void Daemon::perform(node::DiscardPrepared& effect) {
  std::thread([state = state_, effect, everybody = options_.rank_user] {
    if (effect.strip) state->strip(effect.record.key);
    const RanksAs as = ranks_as(effect.record, everybody, ::geteuid());
    if (!as.refusal) discard_token(effect.record, as.user);
  }).detach();
}

void Daemon::perform(node::CheckToken& effect) {
  run_aside([effect, folder = run_folder(effect.record.key), timeout = options_.token_timeout_seconds,
             everybody = options_.rank_user] {
    token_point.pass();
    const RanksAs as = ranks_as(effect.record, everybody, ::geteuid());
    if (as.refusal) return node::TokenChecked{effect.op, as.refusal};
    return node::TokenChecked{effect.op, check_token(effect.record, folder, timeout, as.user)};
  });
}

void Daemon::perform(node::ForgetAttempt& effect) {
  links_.erase(effect.record.key);
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(with_failpoints(forget_points, [&] {
                     (void)shim::remove_group(group_of(state->run_folder(effect.record.key)));
                     absl::Status saved = state->save(effect.record);
                     stripped_point.pass();
                     if (saved.ok()) state->strip(effect.record.key);
                     return saved;
                   }))};
  });
}

void Daemon::perform(node::DeleteFolder& effect) {
  records_.run([state = state_, effect] {
    state->remove(effect.key);
    removed_point.pass();
  });
}

void Daemon::perform(node::CleanUp& effect) {
  run_in(cleaner_, [state = state_, effect, age = options_.log_retention, bytes = options_.log_retention_bytes] {
    state->remove_old(age, bytes);
    return Written{effect.op, ""};
  });
}

void Daemon::perform(node::WriteCluster& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(with_failpoints(cluster_points, [&] { return state->join(effect.cluster); }))};
  });
}

void Daemon::perform(node::WriteLeaderEpoch& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(state->write_leader_epoch(effect.epoch))};
  });
}

}  // namespace titan::daemon

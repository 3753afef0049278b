// A node's regular beats: how far the ranks of its attempts are.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

bool speaks_of_its_own(const NodePart& part, const AttemptBeat& beat) {
  return std::all_of(beat.ranks.begin(), beat.ranks.end(),
                     [&](const RankStatus& rank) { return part.holds(rank.rank); });
}

}  // namespace

void on_beat(Step& step, Node& node, const Beat& beat) {
  note_condition(step, node, beat.unusable, beat.unix_nanoseconds);
  step.send(node.record.name, BeatAck{beat.sequence});
  for (const AttemptBeat& item : beat.attempts) {
    LiveJob* job = job_of(step.state.jobs, item.attempt);
    NodePart* part = part_of(job, node.record.name);
    if (part == nullptr) {
      if (is_elsewhere(step.state.jobs, node.record.name, item.attempt)) {
        note_foreign(step, node,
                     absl::StrCat("the beat of attempt ", item.attempt.second, " of job uid ", item.attempt.first,
                                  ", which is placed elsewhere"));
      }
      if (!may_list(step, node, item.attempt)) continue;
      Stray& stray = stray_of(step, node, item.attempt);
      stray.ranks.clear();
      for (const RankStatus& rank : item.ranks) {
        stray.ranks.push_back(rank.rank);
        stray.step = std::max(stray.step, rank.step);
      }
      take_stray(step, node, item.attempt, PartPhase::kStarted);
      continue;
    }
    if (!speaks_of_its_own(*part, item)) {
      note_foreign(step, node,
                   absl::StrCat("the beat of ranks of job ", job->record.name, " that are not placed there"),
                   job->record.name);
      continue;
    }
    note_beat(step, *job, *part, item);
    compare_ranks(step, *job);
    if (!slow_ranks_on(*job, node.record.name).empty()) step.touch(node.record.name);  // Its scores may have changed.
    int64_t train_step = 0;
    for (const RankStatus& rank : item.ranks) train_step = std::max(train_step, rank.step);
    if (!job->attempt->loaded || train_step <= job->attempt->record.resumed_step) continue;
    Change change;
    note_first_step(step, *job, change);
    const bool is_first = !change.mutations.empty();
    take_finished_step(step, *job, job->attempt->record.number, train_step, change);
    if (is_first) put_progress(change, *job);  // From now on the progress is this attempt's.
    step.commit(std::move(change));
  }
}

}  // namespace titan::core

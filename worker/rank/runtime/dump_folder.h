#pragma once

#include "absl/status/status.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"

// Whose the dump folder is.
namespace titan::runtime {

// Rank 0 takes the dump folder for this attempt, before anything in it is read, and shows from then on that it lives.
// What is known to have been committed there goes into the context. Throws Failure.
void take_dump_folder(const RankJob& job, RankContext& context);

// Whether the dump folder is there and this attempt's. Not under the fence's lock, for which all ranks would queue.
absl::Status has_dump_folder(const RankContext& context);

// Writes {dump}/config.json: the newest attempt's configuration, for users who find the folder; titanctl accepts it as
// it is. On a full disk the file is missing and the job runs. Throws Failure when the folder is another attempt's.
void save_config(const RankContext& context);

// A fenced rank says who has the folder, or else its checkpoints in an object store.
Failure with_holder(const RankJob& job, Failure failure);

}  // namespace titan::runtime

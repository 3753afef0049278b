#pragma once

// Bugs that tests plant on purpose, to see whether the simulation of whole clusters finds them. Only libraries that are
// compiled a second time with TITAN_PLANTED have them, and only test programs link those: everywhere else planted() is
// false when the code is compiled, and nothing of it is left.

namespace titan::testing {

enum class Bug {
  kNone,

  // controller/core: who is asked, told, waited for and blamed.
  kRefusingNodeIsNotBlamed,
  kNoPrepareDeadline,
  kNoStopDeadline,
  kOneStepIsALoss,  // A part must advance within three seconds, whatever it does.
  kNoGraceWhileNobodySpeaks,
  kReturningNodeIsEmpty,     // What an earlier attempt still has there does not count.
  kHangCountsPreparation,    // Its clock does not begin anew with the start.
  kNoHangCheck,              // Only the ranks' own timeouts.
  kNumberUsedAgain,          // After a restart of the controller.
  kUsedDevicesArePlaced,     // As if nothing ran.
  kFreedDevicesStayTaken,    // Of attempts that were given up, and have ended by now.
  kCommandsAreSaidOnce,      // Not again to the next session.
  kLostNodeStays,            // Its part never ends.
  kBackoffNeverEnds,         // Nobody looks at the clock.
  kNewerAttemptIsStopped,    // Instead of adopted.
  kUnknownAttemptIsStopped,  // Instead of left alone.
  kAnsweredBeforeDurable,
  kCancelForgottenAtLoad,
  kReservationLostAtLoad,
  kRevisionGoesBack,
  kDrainIsSaidOnce,
  kOldSessionsEndCounts,    // Of one that a newer session has replaced.
  kOldReportCounts,         // Of an earlier attempt, for the present one.
  kExitsOfOthersCount,      // A node speaks for ranks of another one.
  kAckedBeforeDurable,      // Events of ranks.
  kWelcomeWaitsForWrite,    // On a full disk: for long.
  kOwnPauseIsTheirSilence,  // The controller's, taken for the nodes'.
  kLimitCountsEachAttempt,  // Of a job's time, from its last placement on.
  kLimitForgottenAtLoad,
  // controller/core
  kLateRegisterCounts,
  // controller/reconcile
  kShownBeforeDurable,
  // worker/node/core: what is obeyed, remembered and believed.
  kFenceIsIgnored,
  kFenceIsNotWritten,
  kUnreadableIsGone,
  kEventsAreSentOnce,
  kStartLaunchesAgain,
  kStopIgnoredWhilePreparing,
  kOldLeaderIsObeyed,
  // common/io/storage
  kOldAttemptPublishes,
};

#ifdef TITAN_PLANTED
// The one that is there now. One at a time, for the whole process.
inline Bug planted_bug = Bug::kNone;
inline bool planted(Bug bug) { return bug == planted_bug; }
#else
constexpr bool planted(Bug) { return false; }
#endif

}  // namespace titan::testing

"""Rows of checkpoints: damaged ones, and saves that die halfway. Test programs check both; here they run in their long
form, with a clock."""

import re

from matrix.row import Measured, row


@row(16, "a checkpoint is damaged",
     how="seeded mutations: a bit is flipped, a file truncated, emptied, deleted, swapped, lengthened or stale, a chunk repeated, a range "
         "zeroed, a digit of the manifest changed; read by 1, 2 and 3 ranks",
     anchor="DCP loads what it finds or crashes late",
     invariant="nothing that differs from what was saved is loaded: all ranks fall back to the same step",
     ci="checkpoint_corruption_test (250 mutations)")
def damaged_checkpoint(case: Measured):
    mutations = 250 if case.short else 1200  # Mutations that change nothing do not count.
    _, output, seconds = case.test_program("checkpoint_corruption_test", TITAN_MUTATIONS=str(mutations))
    made = re.search(r"(\d+) mutations, (\d+) loaded silently", output)
    case.assertTrue(made, "the program does not say how many mutations it made")
    case.figure("mutations", int(made[1]), "", at_least=200 if case.short else 1000)
    case.figure("mutations loaded without an error", int(made[2]), "", at_most=0)
    case.figure("time", seconds, "s")


@row(17, "a rank dies during a save",
     how="_exit before each file operation of two consecutive saves, by 1 and by 2 ranks",
     anchor="no published figure",
     invariant="the newest committed step loads, a partial save is never taken for a checkpoint, and only committed steps are left after "
               "the next save",
     ci="checkpoint_crash_test")
def died_during_a_save(case: Measured):
    passed, output, seconds = case.test_program("checkpoint_crash_test")
    died = [int(count) for count in re.findall(r"died before each of (\d+) file operations", output)]
    case.assertEqual(2, passed)
    case.assertEqual(2, len(died), "the program does not say how often it died")
    case.figure("file operations before which it died", sum(died), "", at_least=60)
    case.figure("time", seconds, "s")
    case.note("Tests: Worlds/CrashTest.PreviousCheckpointStaysLoadable/0 and /1. checkpoint_test also has disks that are full, fail and hang, "
              "and faults_ranks kills real ranks.")

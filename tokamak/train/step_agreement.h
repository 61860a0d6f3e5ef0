// What one rank knows after a step and all ranks must act on alike.
#pragma once

#include "tokamak/comm/communicator.h"

namespace tokamak {

struct StepAgreement {
  int signal = 0;              ///< that asks the run to stop; 0 = none
  bool is_retry_due = false;   ///< a failed save is to be tried again
  bool is_save_asked = false;  ///< by SIGUSR1
  bool can_advance = false;    ///< this rank's part of a save in the background is done
};

/// Returns any signal, whether any rank was asked to save, whether all can advance, and by rank 0's
/// clock whether a retry is due. Collective.
StepAgreement agree_on_step(World& world, const StepAgreement& mine);

}  // namespace tokamak
